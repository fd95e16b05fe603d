#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the tests that use this machine's GPU: deploy/gpu-check.sh [BUILD [PART...]]
# Needs no compiler and no network. The parts, all in this order if none is given:
#
#   tests        the kernels, each operation beside sums in double precision,
#                graphs, two ranks by NCCL: 4 programs side by side
#   training     short trainings beside the CPU's and twice (tests/gpu/training.sh):
#                4 side by side
#   sanitizers   a training, then the kernels' tests, under each tool of
#                compute-sanitizer: 3 side by side
#
# A line for each program; the last lines list the parts that ran, what did not
# with the reason, and "N passed, N failed". Exit code 0: all ran and passed; 1: one
# failed; 75: none failed, and time did not suffice for those named as not run; 77:
# none failed, but not all can run on this machine.
#
#   GPU_CHECK_SECONDS  when all end (480)
#   GPU_CHECK_LIMIT    time limit of a program in seconds (180)
#   GPU_CHECK_TOOLS    of compute-sanitizer ("memcheck racecheck synccheck
#                      initcheck"); empty: none
set -u
cd "$(dirname "$0")/.." || exit 1
build=$(realpath "${1-build}") || exit 1
parts=("${@:2}")
((${#parts[@]})) || parts=(tests training sanitizers)
for part in "${parts[@]}"; do
    [[ $part =~ ^(tests|training|sanitizers)$ ]] || {
        echo "gpu-check: there is no part $part: tests, training, sanitizers" >&2
        exit 2
    }
done
. deploy/host-libs.sh
export CAPSTAN=$build/capstan SOAK_COUNT=${SOAK_COUNT-1}
export TEST_LIMIT=${GPU_CHECK_LIMIT-180}
export TEST_UNTIL=$((EPOCHSECONDS + ${GPU_CHECK_SECONDS-480}))
tools=${GPU_CHECK_TOOLS-memcheck racecheck synccheck initcheck}
programs=(cluster_nccl_test ops_test ops_cuda_capture_test collective_nccl_test)
trainings=(float32 bf16 fp16 adam resident two_gpus twice twice_resident)
# The exit code of a finding; no test uses it.
found=86

made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
touch "$made/totals"
ran=() missing=() chosen=() codes=()

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
    chosen+=("$made/$1")
}

# Runs what was chosen, JOBS side by side, and says that WHAT ran.
run_chosen() {
    local jobs=$1 what=$2
    TEST_JOBS=$jobs tests/run.sh "${chosen[@]}" 2>&1 |
        tee "$made/log" | sed -u '$d'
    codes+=("${PIPESTATUS[0]}")
    tail -n 1 "$made/log" >> "$made/totals"
    ran+=("$what")
    chosen=()
}

run_tests() {
    # The first of them has nothing to do without a GPU.
    take chosen "$build/tests" "${programs[@]:${#reason}>0}"
    [[ -n $reason ]] || chosen+=("${kernels[@]}")
    [[ -n $reason ]] || ((${#kernels[@]})) ||
        missing+=("the kernels' tests: not built, there was no nvcc")
    run_chosen 4 "tests${reason:+ of operations, on the CPU}"
}

run_training() {
    local training
    [[ -z $reason ]] || return
    for training in "${trainings[@]}"; do
        make_program "training_$training" speaks tests/gpu/training.sh \
            "$training"
    done
    run_chosen 4 "training"
}

# A training of 20 steps and the kernels' tests, the trainings first.
run_sanitizers() {
    local sanitizer tool program
    [[ -z $reason && -n $tools ]] || { missing+=("sanitizers"); return; }
    sanitizer=$(find_sanitizer)
    [[ -n $sanitizer ]] || {
        missing+=("sanitizers: compute-sanitizer is neither in PATH nor beside CUDA")
        return
    }
    # Calls that fail by intention (a question for code, an unpinnable memory) are
    # no findings.
    local command=("$sanitizer" --report-api-errors no --error-exitcode "$found"
        --target-processes all --tool)
    for tool in $tools; do
        make_program "${tool}_training" silent env -u TF_CONFIG \
            -u CLUSTER_SPEC "${command[@]}" "$tool" "$CAPSTAN" run \
            deploy/gpu-bench.json --set device=cuda
    done
    for tool in $tools; do
        for program in "${kernels[@]}"; do
            make_program "${tool}_${program##*/}" speaks "${command[@]}" \
                "$tool" "$program"
        done
    done
    run_chosen 3 "sanitizers: $tools"
}

kernels=()
[[ -d $build/gpu ]] && take kernels "$build/gpu" $(cd "$build/gpu" && ls)
reason=$(host_libs_no_gpu)
[[ -z $reason ]] || missing+=("all that needs a GPU: no GPU: $reason")
for part in "${parts[@]}"; do
    "run_$part"
done

((${#ran[@]})) && printf 'ran: %s\n' "${ran[@]}"
((${#missing[@]})) && printf 'did not run: %s\n' "${missing[@]}"
awk '{ for (i = 1; i < NF; i += 2) { word = $(i + 1); sub(/,$/, "", word)
                                    sum[word] += $i } }
     END { printf "%d passed, %d failed", sum["passed"], sum["failed"]
           if (sum["skipped"]) printf ", %d skipped", sum["skipped"]
           if (sum["not"]) printf ", %d not run", sum["not"]
           print "" }' "$made/totals"
[[ " ${codes[*]} " == *" 1 "* ]] && exit 1
[[ " ${codes[*]} " == *" 75 "* ]] && exit 75
((${#missing[@]})) && exit 77
exit 0
