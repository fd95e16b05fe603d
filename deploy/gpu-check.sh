#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs every test that uses this machine's GPU, then the kernels' tests and a short
# training under compute-sanitizer: deploy/gpu-check.sh [BUILD]
#
# Needs no compiler and no network. The last lines list the tests that ran, those
# that did not with the reason, and "N passed, N failed". Exit code 0: all ran and
# passed; 77: none failed, but not all ran; 1: one failed.
#
#   GPU_CHECK_TOOLS    of compute-sanitizer ("memcheck racecheck synccheck
#                      initcheck"); empty: none
#   GPU_CHECK_LIMIT    time limit of a program in seconds (900)
set -u
cd "$(dirname "$0")/.." || exit 1
build=$(realpath "${1-build}") || exit 1
. deploy/host-libs.sh
export CAPSTAN=$build/capstan SOAK_COUNT=${SOAK_COUNT-1}
export TEST_LIMIT=${GPU_CHECK_LIMIT-900}
tools=${GPU_CHECK_TOOLS-memcheck racecheck synccheck initcheck}
# The exit code of a finding; no test uses it.
found=86

made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
ran=() missing=() together=() alone=()

# Selects the programs NAME... in FOLDER that were built.
take() {
    local -n list=$1
    local program
    for program in "${@:3}"; do
        [[ -x $2/$program ]] && list+=("$2/$program")
    done
}

find_sanitizer() {
    local path
    command -v compute-sanitizer && return
    {
        printf '%s\n' /usr/local/cuda*/{bin,compute-sanitizer} \
            /opt/nvidia/{*/,}compute-sanitizer
        host_libs_folders "$host_libs_major" | sed 's:$:/../bin:'
    } | while read -r path; do
        [[ -x $path/compute-sanitizer ]] || continue
        echo "$path/compute-sanitizer"
        return
    done
}

# Makes a program NAME in $made that runs COMMAND...; if it prints no TAP, its exit
# code is one test.
make_program() {
    {
        echo '#!/usr/bin/env bash'
        printf '%q ' "${@:3}"
        [[ $2 == speaks ]] || printf '&& echo "ok 1 - %s"' "$1"
        echo
    } > "$made/$1"
    chmod +x "$made/$1"
    together+=("$made/$1")
}

# The kernels' tests and a training of 20 steps under TOOL.
add_sanitized() {
    local tool=$1 program
    local command=("$sanitizer" --tool "$tool" --error-exitcode "$found"
        --target-processes all)
    for program in "${kernels[@]}"; do
        make_program "${tool}_${program##*/}" speaks "${command[@]}" "$program"
    done
    make_program "${tool}_training" silent \
        env -u TF_CONFIG -u CLUSTER_SPEC "${command[@]}" "$CAPSTAN" run \
        deploy/gpu-bench.json --set device=cuda
}

kernels=()
[[ -d $build/gpu ]] && take kernels "$build/gpu" $(cd "$build/gpu" && ls)
take together "$build/tests" ops_test ops_cuda_capture_test collective_nccl_test
take alone "$build/tests" cluster_device_test cluster_emulated_test \
    cluster_gpu_bench_test cluster_nccl_test
ran+=("operations, all-reduce and whole runs, on the CPU and stand-ins")
reason=$(host_libs_no_gpu)
sanitizer=$(find_sanitizer)

if [[ -n $reason ]]; then
    missing+=("all that needs a GPU: no GPU: $reason")
elif ((!${#kernels[@]})); then
    missing+=("the kernels' tests: not built, there was no nvcc")
else
    together+=("${kernels[@]}")
    ran+=("the same and the kernels' tests on the GPU")
fi
if [[ -n $reason || -z $tools ]]; then
    missing+=("compute-sanitizer")
elif [[ -z $sanitizer ]]; then
    missing+=("compute-sanitizer: neither in PATH nor where CUDA's libraries are")
else
    for tool in $tools; do
        add_sanitized "$tool"
    done
    ran+=("the kernels' tests and a training under $tools")
fi

tests/run.sh "${together[@]}" -- "${alone[@]}" 2>&1 |
    tee "$made/log" | sed -u '$d'
code=${PIPESTATUS[0]}
printf 'ran: %s\n' "${ran[@]}"
((${#missing[@]})) && printf 'did not run: %s\n' "${missing[@]}"
tail -n 1 "$made/log"
((code)) && exit 1
((${#missing[@]})) && exit 77
exit 0
