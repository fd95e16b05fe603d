#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A run with a host for each process (tests/cluster/net/hosts.sh), told by TF_CONFIG
# alone; worker 0 leads.
#
#   tests/cluster/net/cluster.sh PS WORKERS RATE LOGS JOB.json [ARGUMENT...]
#   tests/cluster/net/cluster.sh PS WORKERS RATE LOGS -- COMMAND [ARGUMENT...]
#
# ps are on the first hosts; with -- each worker is a process of COMMAND.
# Standard output is worker 0's, standard error of all goes to files in the
# folder LOGS; the exit code is worker 0's. What each host has sent, and what
# the switch has sent to it, is in LOGS/links, as tc counts it. Where there can
# be no hosts it prints "skip REASON" and ends with 0. The program is that of the
# variable CAPSTAN, else build/capstan.
set -u
ps=$1 workers=$2 rate=$3 logs=$4
shift 4

coproc hosts { exec "${BASH_SOURCE%/*}/hosts.sh" $((ps + workers)) "$rate"; }
read -r word name <&"${hosts[0]}"
if [[ $word != ready ]]; then
    echo "$word $name"
    exit
fi
keeper=$hosts_PID
started=()
end() {
    for ((i = 0; i < ps + workers; i++)); do
        tc -n "$name-$i" -s qdisc show dev eth0
        tc -n "$name-switch" -s qdisc show dev "host-$i"
    done > "$logs/links"
    ((${#started[@]})) && kill "${started[@]}" 2> /dev/null
    exec {hosts[1]}>&-
    wait "$keeper" "${started[@]}"
}
trap end EXIT
trap 'exit 1' INT TERM HUP

addresses() {
    local i list=
    for ((i = $1; i < $1 + $2; i++)); do list+=,\"10.0.0.$((i + 1)):2222\"; done
    echo "[${list#,}]"
}
cluster="{\"ps\":$(addresses 0 "$ps"),\"worker\":$(addresses "$ps" "$workers")}"

# start HOST TYPE INDEX COMMAND...
start() {
    local host=$1 type=$2 index=$3
    shift 3
    TF_CONFIG="{\"cluster\":$cluster,\"task\":{\"type\":\"$type\",\"index\":$index}}" \
        exec ip netns exec "$name-$host" "$@" \
        2> "$logs/$type-$index.err"
}

run=("${CAPSTAN:-build/capstan}" run)
if [[ $1 == -- ]]; then
    shift
    chief=("$@") worker=("$@")
else
    chief=("${run[@]}" "$@") worker=("${run[@]}")
fi
for ((i = 0; i < ps; i++)); do
    start "$i" ps "$i" "${run[@]}" > /dev/null &
    started+=($!)
done
for ((i = 1; i < workers; i++)); do
    start $((ps + i)) worker "$i" "${worker[@]}" > /dev/null &
    started+=($!)
done
start "$ps" worker 0 "${chief[@]}" &
started+=($!)
wait $!
