#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs fuzzing programs, as many at once as there are cores.
#
#   tests/fuzz/run.sh FOLDER RUNS TIME NAME...
#
# FOLDER has the programs fuzz_NAME, of which each ends after RUNS inputs (-1: no
# limit) or TIME seconds (0: no limit). Inputs that reach new code are kept in
# FOLDER/corpus for the next time, an input that fails in FOLDER. One line a
# program, the whole output of one that fails; the exit code is not 0 if there is
# any.
set -u

# One program. The seed is in the output.
fuzz() {
    local folder=$1 runs=$2 time=$3 name=$4 start=$SECONDS log
    log=$folder/$name.log
    mkdir -p "$folder/corpus/$name"
    if "$folder/fuzz_$name" "-runs=$runs" "-max_total_time=$time" \
        -timeout=25 -rss_limit_mb=2048 \
        -artifact_prefix="$folder/$name-" "$folder/corpus/$name" \
        "tests/fuzz/corpus/$name" > "$log" 2>&1; then
        printf '%-16s %s\n' "$name" "$(sed -n \
            's/^Done \([0-9]*\) runs.*/\1 runs/p' "$log") ($((SECONDS - start)) s)"
    else
        printf '%-16s FAILED\n%s\n' "$name" "$(sed 's/^/    /' "$log")"
        return 1
    fi
}
export -f fuzz

folder=$1 runs=$2 time=$3
shift 3
[[ $# -gt 0 ]] || { echo "no such program" >&2; exit 1; }
printf '%s\n' "$@" |
    xargs -P"$(nproc)" -I{} bash -c 'fuzz "$@"' fuzz "$folder" "$runs" "$time" {}
