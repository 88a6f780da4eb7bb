#!/usr/bin/env bash
# One simulated node of run own-model: bash node.sh NODE_RANK
# The local backend starts 1 of these, each on a loopback address of its own. It sets
# ORCHESTRATE_HEAD, _ADDRESS, _PORT, _ID (rendezvous), _RUN_DIR, _WORKDIR (folders),
# _PYTHON, _NODE_PY, _ENTRY (programs): paths of a machine have no place in a rendered file.
# shellcheck disable=SC2016 # values of the job file: nothing in them is to be expanded
set -euo pipefail

export GLOO_SOCKET_IFNAME=lo
export OMP_NUM_THREADS=1
export PYTHONUNBUFFERED=1

exec "$ORCHESTRATE_PYTHON" "$ORCHESTRATE_NODE_PY" \
  --run-dir "$ORCHESTRATE_RUN_DIR" \
  --workdir "$ORCHESTRATE_WORKDIR" \
  --nnodes 1 \
  --node-rank "$1" \
  --nproc-per-node 2 \
  --head "$ORCHESTRATE_HEAD" \
  --port "$ORCHESTRATE_PORT" \
  --address "$ORCHESTRATE_ADDRESS" \
  --id "$ORCHESTRATE_ID" \
  --start-timeout-s 601 \
  --shutdown-timeout-s 300 \
  --backend gloo \
  --allow-loopback \
  -- "$ORCHESTRATE_PYTHON" "$ORCHESTRATE_ENTRY" --config "$ORCHESTRATE_RUN_DIR/rendered/trainer.json"
