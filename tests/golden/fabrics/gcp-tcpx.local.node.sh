#!/usr/bin/env bash
# One simulated node of run wired: bash node.sh NODE_RANK
# The local backend starts 2 of these, each on a loopback address of its own. It sets
# ORCHESTRATE_HEAD, _ADDRESS, _PORT, _ID (rendezvous), _RUN_DIR, _WORKDIR (folders),
# _PYTHON, _NODE_PY, _ENTRY (programs): paths of a machine have no place in a rendered file.
# shellcheck disable=SC2016 # values of the job file: nothing in them is to be expanded
set -euo pipefail

export NCCL_ALGO=Ring
export NCCL_BUFFSIZE=4194304
export NCCL_CROSS_NIC=0
export NCCL_DYNAMIC_CHUNK_SIZE=524288
export NCCL_GPUDIRECTTCPX_CTRL_DEV=eth0
export NCCL_GPUDIRECTTCPX_FORCE_ACK=0
export NCCL_GPUDIRECTTCPX_PROGRAM_FLOW_STEERING_WAIT_MICROS=500000
export NCCL_GPUDIRECTTCPX_RX_BINDINGS='eth1:22-35,124-139;eth2:22-35,124-139;eth3:74-87,178-191;eth4:74-87,178-191'
export NCCL_GPUDIRECTTCPX_SOCKET_IFNAME=eth1,eth2,eth3,eth4
export NCCL_GPUDIRECTTCPX_TX_BINDINGS='eth1:8-21,112-125;eth2:8-21,112-125;eth3:60-73,164-177;eth4:60-73,164-177'
export NCCL_GPUDIRECTTCPX_UNIX_CLIENT_PREFIX=/run/tcpx
export NCCL_NET_GDR_LEVEL=PIX
export NCCL_NSOCKS_PERTHREAD=4
export NCCL_PROTO=Simple
export NCCL_SOCKET_IFNAME='=lo'
export NCCL_SOCKET_NTHREADS=1
export OMP_NUM_THREADS=1
export PYTHONUNBUFFERED=1

exec "$ORCHESTRATE_PYTHON" "$ORCHESTRATE_NODE_PY" \
  --run-dir "$ORCHESTRATE_RUN_DIR" \
  --workdir "$ORCHESTRATE_WORKDIR" \
  --nnodes 2 \
  --node-rank "$1" \
  --nproc-per-node 1 \
  --head "$ORCHESTRATE_HEAD" \
  --port "$ORCHESTRATE_PORT" \
  --address "$ORCHESTRATE_ADDRESS" \
  --id "$ORCHESTRATE_ID" \
  --start-timeout-s 602 \
  --shutdown-timeout-s 300 \
  --backend nccl --library-path /usr/local/nvidia/lib64 --preflight mig,nccl-conf \
  --allow-loopback \
  -- "$ORCHESTRATE_PYTHON" "$ORCHESTRATE_ENTRY" --config "$ORCHESTRATE_RUN_DIR/rendered/trainer.json"
