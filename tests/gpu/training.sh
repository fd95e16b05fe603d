#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A short training on the GPU beside the CPU's: tests/gpu/training.sh CASE, of
# cases(); the program is that of the variable CAPSTAN. Prints TAP.
#
#   WORKERS  trainers, one GPU each (1)
#   SAID     what the training on GPUs logs
set -u -o pipefail
cd "$(dirname "$0")/../.." || exit 1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# Trains as 1 worker with PS ps, to $folder/NAME; prints the loss's mean.
train() {
    local name=$1 ps=$2 sets=() set
    for set in steps=60 devices=1 "checkpoint.dir=$folder/$name" "${@:3}"; do
        sets+=(--set "$set")
    done
    env -u TF_CONFIG -u CLUSTER_SPEC "$CAPSTAN" local --json --ps "$ps" \
        --workers "${WORKERS-1}" "${sets[@]}" deploy/gpu-bench.json \
        > "$folder/$name.out" 2> "$folder/$name.err" ||
        { cat "$folder/$name.err"; return 1; } >&2
    grep -o '"train_loss":[-+.0-9e]*' "$folder/$name.out" | cut -d : -f 2
}

# The mean losses of CPU and GPU differ by at most TOLERANCE of the first.
learns() {
    local ps=$1 tolerance=$2 cpu gpu
    cpu=$(train cpu "$ps" device=cpu "${@:3}") &&
        gpu=$(train gpu "$ps" device=cuda "${@:3}") || return
    echo "# the CPU's loss is $cpu, the GPU's $gpu"
    grep -q "${SAID-}" "$folder/gpu.err" || { echo "no log of ${SAID-}"; return 1; }
    awk -v cpu="$cpu" -v gpu="$gpu" -v tolerance="$tolerance" 'BEGIN {
        off = gpu - cpu
        exit !((off < 0 ? -off : off) <= tolerance * cpu) }'
}

# Two runs leave the same weights.
repeats() {
    local name
    for name in one two; do
        train "$name" "$1" device=cuda "${@:2}" > /dev/null &&
            "$CAPSTAN" ckpt export --format npz "$folder/$name" \
                "$folder/$name.npz" > /dev/null || return
    done
    cmp "$folder/one.npz" "$folder/two.npz"
}

# Ends as a skipped test where there are fewer GPUs than COUNT.
need_gpus() {
    local found
    found=$("$CAPSTAN" info --json | grep -o '"compute_capability"' | wc -l)
    ((found >= $1)) && return
    echo "# skipped: $1 GPUs are needed; capstan info tells of $found"
    echo "ok 1 - $what # SKIP"
    exit
}

cases() {
    case $1 in
    float32) learns 1 1e-3 ;;
    bf16) learns 1 1e-2 bf16.enabled=true ;;
    fp16) learns 1 1e-2 fp16.enabled=true ;;
    adam) learns 1 1e-3 optimizer.type=Adam optimizer.params.lr=0.001 \
        gradient_clipping=1 gradient_accumulation_steps=2 ;;
    resident) SAID="all-reduce: 1 " learns 0 1e-3 strategy.type=allreduce ;;
    two_gpus)
        need_gpus 2
        WORKERS=2 SAID="all-reduce by nccl" \
            learns 0 1e-3 strategy.type=allreduce
        ;;
    twice) repeats 1 ;;
    twice_resident) repeats 0 strategy.type=allreduce ;;
    *) echo "no case $1" && return 1 ;;
    esac
}

what=${1-}
cases "$what" 2>&1 && echo "ok 1 - $what" && exit
echo "not ok 1 - $what"
exit 1
