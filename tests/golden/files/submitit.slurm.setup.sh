#!/bin/bash
# Run by-submitit: 2 nodes x 2 ranks.
# Read on the job's first node by the script that submitit writes: source setup.sh RUN_DIR

# shellcheck disable=SC2016 # values of the job file: nothing in them is to be expanded
set -uo pipefail
run_dir=$1
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
# The way to another node: by its name, or where names do not resolve by the address Slurm knows.
peers=("${hosts[1]}" "$(scontrol show node "${hosts[1]}" | sed -n 's/.*NodeAddr=\([^ ]*\).*/\1/p')")
meeting=$(python3 "$run_dir/launch/batch.py" head \
  "$attempt_id" "${peers[@]}") || exit
read -r head port <<<"$meeting"
log "attempt $attempt_id on ${hosts[*]}, meeting at $head port $port"

# What teardown.sh asks for: this shell goes on after a TERM, once srun has ended.
# shellcheck disable=SC2034
asked=''
trap 'asked=TERM' TERM

# submitit starts one task a node by srun. The task reads these, and is imported by its module's name
# from the working folder.
export ORCHESTRATE_ID=$attempt_id ORCHESTRATE_HEAD=$head ORCHESTRATE_PORT=$port
export ORCHESTRATE_GPUS=0
unset PYTHONSAFEPATH
cd -- "$run_dir/launch" || exit 1
if ! python3 -c 'import submitit'; then
  log 'python3 has no submitit on this node: install it there, or set slurm.venv'
  exit 78
fi
