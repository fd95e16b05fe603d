#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures a training step on this machine's GPU beside the bounds of copies and
# network: deploy/gpu-bench.sh [BUILD] [FLAGS of build/bench/gpu_bench]
#
# Needs no compiler and no network. Exit code 0: measured; 77: not measured, as
# there is no GPU; 1, 2: as gpu_bench.
set -u
cd "$(dirname "$0")/.." || exit 1
build=build
[[ ${1--} == -* ]] || { build=$1 && shift; }
. deploy/host-libs.sh
export CAPSTAN=$build/capstan

if [[ " $* " != *" --device cpu "* && " $* " != *" --device=cpu "* ]]; then
    reason=$(host_libs_no_gpu)
    if [[ -n $reason ]]; then
        echo "gpu-bench: nothing was measured. No GPU: $reason"
        echo "did not run: computing alone, copies, loopback, 1 ps and 1" \
            "worker (the CPU's: --device cpu --batches 256)"
        exit 77
    fi
fi
exec "$build/bench/gpu_bench" "$@"
