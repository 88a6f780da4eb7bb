#!/bin/bash
# Run by-submitit, after its tasks. Read by the script that submitit writes, in the shell in
# which it has read setup.sh: source teardown.sh CODE

# shellcheck disable=SC2016,SC2154 # values of the job file; variables of setup.sh
code=$1

# Asks Slurm to start the job again, unless Slurm's count of restarts says that it has done so itself:
# on a node that was cut off this script may outlive its turn, and the job that runs is then another
# attempt. The line in the file tells batch.py which restarts were asked for here.
requeue() {
  local now tries=12 # for two minutes, where Slurm does not answer
  while ((tries-- > 0)) && [[ $asked != TERM ]]; do
    now=$(scontrol show job "$job" | sed -n 's/^ *Requeue=[01] Restarts=\([0-9]*\) .*/\1/p')
    if [[ $now == "$restarts" ]]; then
      echo "$attempt_id $code" >>"$run_dir/slurm-requeues" || return
      scontrol requeue "$job" && return # ends this script
      echo "$attempt_id void" >>"$run_dir/slurm-requeues"
    elif [[ -n $now ]]; then
      log "Slurm has requeued the job itself"
      return
    fi
    sleep 10
  done
  log "the job was not requeued"
}

# srun gives the highest of its tasks' codes; what all nodes agreed on is in the attempt's folder.
read -r next agreed < <(python3 "$run_dir/launch/batch.py" next \
  "$run_dir" "$attempt_id" "$code" 3 1000 0)
[[ -n $next ]] || log "batch.py gave no answer: not started again"
code=${agreed:-$code}
if [[ -e $run_dir/cancel && $code -ne 0 ]]; then
  scancel "$job" # so that Slurm says CANCELLED
# After a TERM Slurm itself decides: it cancels, or requeues what it has preempted.
elif [[ $next == again && $asked != TERM ]]; then
  requeue
fi
exit "$code"
