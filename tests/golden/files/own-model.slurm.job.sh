#!/bin/bash
# Run own-model: 1 nodes x 2 ranks.
# Submitted as: sbatch --chdir=RUN_DIR --output=... job.sh RUN_DIR WORKDIR
#SBATCH --job-name=own-model
#SBATCH --dependency=singleton
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=2
#SBATCH --signal=B:USR1@330
#SBATCH --open-mode=append
#SBATCH --requeue

# shellcheck disable=SC2016 # values of the job file: nothing in them is to be expanded
set -uo pipefail
run_dir=$1 workdir=$2
log() { printf '[batch] %s\n' "$*" >&2; }

# What every rank sees. Not by sbatch --export: that cuts values at commas.
export OMP_NUM_THREADS=1
export PYTHONUNBUFFERED=1

# Left over from the shell that submitted, or not understood alike by all releases of srun:
# an inner srun would start with no PATH, or refuse --cpus-per-task.
unset SLURM_EXPORT_ENV SRUN_CPUS_PER_TASK SLURM_CPUS_PER_TASK SLURM_TRES_PER_TASK
unset "${!PET_@}" "${!TORCHELASTIC_@}" MASTER_ADDR MASTER_PORT

# The batch script runs on the job's first node, which is node 0 of the run. Where it listens is
# settled here, once, and handed to all: each node would find another free port.
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
# An element of an array has a job id of its own, and the first of them that of the whole array.
job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
job=${job:-$SLURM_JOB_ID}
restarts=${SLURM_RESTART_COUNT:-0}
attempt_id=$job.$restarts
peers=(localhost)
meeting=$(python3 "$run_dir/launch/batch.py" head \
  "$attempt_id" "${peers[@]}") || exit
read -r head port <<<"$meeting"
log "attempt $attempt_id on ${hosts[*]}, meeting at $head port $port"

# A stop is asked for in both ways: the drain file of the newest attempt, which is this job's
# (there is never a second one of this name), and the signal, for the time before it is claimed.
asked='' interrupted='' step=''
# shellcheck disable=SC2317,SC2329 # the traps call it
drain() {
  asked=$1 interrupted=yes
  log "$1: checkpoint and stop"
  newest=$(cd "$run_dir/attempts" 2>/dev/null && printf '%s\n' [0-9]* | sort -n | tail -n 1)
  # Its owner is looked at: on a node that was cut off, this script may outlive its turn.
  if [[ -n $newest && ! -e $run_dir/attempts/$newest/end.json ]] &&
    grep -qsF "\"job\": \"$attempt_id\"" "$run_dir/attempts/$newest/owner.json"; then
    : >"$run_dir/attempts/$newest/drain"
  fi
  [[ -z $step ]] || kill -USR1 "$step" 2>/dev/null
}
trap 'drain USR1' USR1
trap 'drain TERM' TERM

# In the background, since a trap waits until a foreground command has ended. srun is not to end the
# step when one task fails: node.py ends the others. A step is known by its job and number alone, so
# an srun left on a node that was cut off would, once healed, end the step of the next attempt.
srun --nodes=1 --ntasks=1 --ntasks-per-node=1 --cpus-per-task=2 \
  --kill-on-bad-exit=0 --wait=0 --export=ALL \
  python3 "$run_dir/launch/node.py" \
  --run-dir "$run_dir" --workdir "$workdir" \
  --nnodes 1 --node-rank-from SLURM_NODEID --nproc-per-node 2 \
  --backend gloo \
  --head "$head" --port "$port" --id "$attempt_id" \
  --start-timeout-s 601 --shutdown-timeout-s 300 --echo \
  --entry trainer.entry -- --config "$run_dir/rendered/trainer.json" &
step=$!
[[ -z $asked ]] || kill -USR1 "$step" # asked before there was a step

# `wait` also returns when a trap has run; once it has given the step's code it knows no more (127).
code=1
while true; do
  interrupted=''
  wait "$step"
  status=$?
  ((status == 127)) || code=$status
  [[ -n $interrupted ]] || break
done

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
