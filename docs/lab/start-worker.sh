#!/usr/bin/env bash
# The worker (node 1): docs/lab/start-worker.sh EXPERIMENT [FLAGS …]
# MASTER_ADDR is the address of the master; PROCESSES is per node, the same on both.
set -euo pipefail
exec "${PYTHON:-python}" -m rollcall lab "${1:-hello}" --nnodes=2 --node_rank=1 \
    --master_addr="${MASTER_ADDR:-localhost}" --master_port="${MASTER_PORT:-29500}" \
    --nproc_per_node="${PROCESSES:-2}" --backend="${BACKEND:-gloo}" "${@:2}"
