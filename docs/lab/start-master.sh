#!/usr/bin/env bash
# The master (node 0): docs/lab/start-master.sh EXPERIMENT [FLAGS …]
# MASTER_ADDR is the address at which the worker reaches this machine; PROCESSES is per node, the same on both.
set -euo pipefail
exec "${PYTHON:-python}" -m rollcall lab "${1:-hello}" --nnodes=2 --node_rank=0 \
    --master_addr="${MASTER_ADDR:-localhost}" --master_port="${MASTER_PORT:-29500}" \
    --nproc_per_node="${PROCESSES:-2}" --backend="${BACKEND:-gloo}" "${@:2}"
