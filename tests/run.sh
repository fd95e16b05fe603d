#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs test programs: tests/run.sh SIDE_BY_SIDE... [-- ONE_BY_ONE...]
#
# A line for each program and each test that it skips, with the reason
# (tests/lib/skip.h); all output of those that fail; and last, alone on its line,
# "N passed, N failed", then ", N skipped" if any were, counting cmocka's tests, and
# ", N not run", counting programs.
# A program that ends badly and names no test counts as one failed; one that does
# not end names the test under way (tests/lib/room.c). The exit code is 1 when
# anything failed, else 75 when time did not suffice for all.
#   TEST_LIMIT   seconds a program may take (900)
#   TEST_JOBS    programs side by side (two more than there are cores, as most of them
#                wait most of the time)
#   TEST_UNTIL   in seconds since 1970: when all end (never)
set -u
export TEST_LIMIT=${TEST_LIMIT:-900} TEST_UNTIL=${TEST_UNTIL:-0}
export CMOCKA_MESSAGE_OUTPUT=TAP
# What libraries that know no sanitizer do inside is not looked at.
export TSAN_OPTIONS=${TSAN_OPTIONS:-ignore_noninstrumented_modules=1}
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
# What runs keep of their data files goes with it.
export results XDG_CACHE_HOME="$results/cache"

# The tests that LOG says were skipped, a line each.
list_skipped() {
    awk '/^# skipped: / { reason = substr($0, 12) }
         /^(not )?ok [0-9].* # SKIP/ {
             # The name is behind SKIP, or before it (cmocka 2).
             sub(/^(not )?ok [0-9]+ (- )?/, "")
             sub(/ *# SKIP */, "")
             print "    skipped: " $0 ": " (reason ? reason : "no reason given")
             reason = ""
         }' "$1"
}
export -f list_skipped

# The seconds that a program may take now.
time_left() {
    local left=$((TEST_UNTIL - EPOCHSECONDS))
    ((!TEST_UNTIL || left > TEST_LIMIT)) && left=$TEST_LIMIT
    echo "$left"
}
export -f time_left

# Leaves "PASSED FAILED SKIPPED NOT_RUN" in a file of the program's name.
run_program() {
    local program=$1 name=${1##*/} started=$SECONDS code log fixed=()
    local passed failed skipped left not_run=0
    log=$results/$name.log
    left=$(time_left)
    if ((left <= 0)); then
        flock "$results" echo "$name not run: no time was left"
        echo 0 0 0 1 > "$results/$name.count"
        return
    fi
    # gcc 12's thread sanitizer cannot live with a kernel's widest layouts.
    [[ $program == *-thread/* ]] && setarch -R true 2> /dev/null &&
        fixed=(setarch -R)
    "${fixed[@]}" timeout -k 10 "$left" "$program" \
        > "$log" 2>&1 < /dev/null
    code=$?
    if ((code && left < TEST_LIMIT && SECONDS - started >= left)); then
        not_run=1
        sed -i '/: under way when the program was ended$/d' "$log"
    fi
    passed=$(grep '^ok [0-9]' "$log" | grep -vc '# SKIP')
    skipped=$(list_skipped "$log" | wc -l)
    failed=$(grep -E '^not ok [0-9]' "$log" | grep -vc '# SKIP')
    ((code && !failed && !not_run)) && failed=1
    ((code == 124)) && echo "no end within $left s" >> "$log"
    {
        printf '%-32s %3d passed' "$name" "$passed"
        ((skipped)) && printf ', %d skipped' "$skipped"
        ((failed)) && printf ', %d FAILED (exit code %d)' "$failed" "$code"
        ((not_run)) && printf ', not run to its end: no time was left'
        echo " ($((SECONDS - started)) s)"
        list_skipped "$log"
        ((failed)) && sed 's/^/    /' "$log"
    } > "$results/$name.said"
    # Whole: others print at the same time.
    flock "$results" cat "$results/$name.said"
    echo "$passed $failed $skipped $not_run" > "$results/$name.count"
}
export -f run_program

together=() alone=()
while (($#)) && [[ $1 != -- ]]; do
    together+=("$1")
    shift
done
(($#)) && alone=("${@:2}")

((${#together[@]})) && printf '%s\0' "${together[@]}" |
    xargs -0 -n 1 -P "${TEST_JOBS:-$(($(nproc) + 2))}" bash -c 'run_program "$0"'
for program in "${alone[@]}"; do
    run_program "$program"
done

cat "$results"/*.count 2> /dev/null |
    awk '{ passed += $1; failed += $2; skipped += $3; not_run += $4 }
         END { printf "%d passed, %d failed", passed, failed
               if (skipped)
                   printf ", %d skipped", skipped
               if (not_run)
                   printf ", %d not run", not_run
               print ""
               exit failed ? 1 : not_run ? 75 : passed == 0 }'
