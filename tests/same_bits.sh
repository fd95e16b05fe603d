#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Do two programs train to the same bits? tests/same_bits.sh OLD NEW [JOB.json]
#
# Each trains STEPS (60) of the job, by default the demo's, by 2 trainers: with
# 2 ps and by all-reduce, in float32, bf16 and fp16, and with bf16 on the wire;
# and NEW goes on with what OLD has left half way. Matrix products of a model
# like this have other bits on other processors, so both run here, and no digest
# is kept (tests/cluster/cluster_compatibility_test.c has those of a model without).
# A line for each case; exit 1: some differ.
set -u
[[ $# -ge 2 ]] || { sed -n '3s/^# //p' "$0" >&2; exit 2; }
old=$(realpath "$1") new=$(realpath "$2")
job=${3:-deploy/fashion-mnist.json}
steps=${STEPS:-60}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
failed=0

# train PROGRAM DIR STEPS ARGUMENTS...
train() {
    local program=$1 dir=$folder/$2 steps=$3
    shift 3
    "$program" local --workers 2 --set epochs=null --set "steps=$steps" \
        --set tensorboard=null --set export=null --set "checkpoint.dir=$dir" \
        --set checkpoint.every_steps=1000000 "$@" "$job" > "$dir.log" 2>&1 &&
        "$program" ckpt export --state "$dir" "$dir-$steps.safetensors" \
            >> "$dir.log" 2>&1 && return
    tail -n 5 "$dir.log" >&2
    return 1
}

# compare NAME A B: two of the files that train writes.
compare() {
    local size
    if cmp -- "$folder/$2.safetensors" "$folder/$3.safetensors"; then
        size=$(stat -c %s "$folder/$2.safetensors")
        echo "same: $1, $size bytes"
    else
        echo "DIFFERENT: $1"
        failed=1
    fi
}

# both NAME ARGUMENTS...
both() {
    local name=$1
    shift
    rm -rf "${folder:?}"/*
    train "$old" old "$steps" "$@"
    train "$new" new "$steps" "$@"
    compare "$name" "old-$steps" "new-$steps"
    train "$old" resumed $((steps / 2)) "$@" &&
        train "$new" resumed "$steps" "$@"
    compare "$name, resumed" "old-$steps" "resumed-$steps"
}

ps=(--ps 2)
allreduce=(--ps 0 --set 'strategy={"type": "allreduce"}')
for precision in float32 bf16 fp16; do
    set=(--set "bf16.enabled=$([[ $precision = bf16 ]] && echo true || echo false)"
        --set "fp16.enabled=$([[ $precision = fp16 ]] && echo true || echo false)")
    both "ps, $precision" "${ps[@]}" "${set[@]}"
    both "all-reduce, $precision" "${allreduce[@]}" "${set[@]}"
done
both "ps, bf16 on the wire" "${ps[@]}" --set wire=bf16
both "ps, clipped" "${ps[@]}" --set gradient_clipping=0.5
exit $failed
