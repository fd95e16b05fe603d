#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Hosts on one machine: network namespaces joined by veth pairs and a bridge,
# each limited to a rate each way by tbf, as one port of a switch is.
#
#   tests/cluster/net/hosts.sh COUNT [RATE]     RATE as tc writes it; 1gbit
#
# Builds them, prints "ready NAME" and waits for the end of its standard input;
# then, or at a signal, nothing of them is left. Host i (from 0) is the network
# namespace NAME-i with the address 10.0.0.(i + 1) on eth0; its switch port is
# host-i in NAME-switch. NAME is of this process alone. Where it cannot be, it
# prints "skip REASON" (one word) and ends with 0.
set -u
count=${1:?how many hosts}
rate=${2:-1gbit}
name=capstan-$$

skip() {
    echo "skip $1"
    exit 0
}
((EUID == 0)) || skip root
command -v ip > /dev/null && command -v tc > /dev/null || skip iproute2

remove() {
    local each
    for each in /run/netns/"$name"-*; do
        [[ -e $each ]] && ip netns del "${each##*/}"
    done
}
trap remove EXIT
trap 'exit 1' INT TERM HUP

# Both sides limit what leaves them: the host its sending, the switch what it
# hands to the host. Segments travel in trains, counted as the packets they are;
# the bucket holds a train or two, and the queue is that of a small switch port.
# From a gigabit on trains are of up to 64 KiB, as a network card takes and gives
# them: shorter ones cost more processor than one machine has for many hosts. On
# slower links they are of 16 KiB, so that a full bucket is soon empty.
case $rate in
*gbit | [1-9][0-9][0-9][0-9]mbit) train=65536 bucket=68kb ;;
*) train=16384 bucket=32kb ;;
esac
limit() {
    ip -n "$1" link set "$2" gso_max_size "$train" &&
        tc -n "$1" qdisc add dev "$2" root tbf rate "$rate" \
            burst "$bucket" limit 512kb
}

# Reno is in every kernel and allowed in every namespace, unlike what this
# machine may be set to.
congestion() {
    ip netns exec "$1" sysctl -qw \
        net.ipv4.tcp_congestion_control="${HOSTS_CONGESTION:-reno}"
}

build() {
    local switch=$name-switch i
    ip netns add "$switch" &&
        ip -n "$switch" link add bridge type bridge &&
        ip -n "$switch" link set bridge up || return 1
    for ((i = 0; i < count; i++)); do
        ip netns add "$name-$i" &&
            ip -n "$switch" link add "host-$i" type veth \
                peer name eth0 netns "$name-$i" &&
            ip -n "$switch" link set "host-$i" master bridge up &&
            ip -n "$name-$i" addr add "10.0.0.$((i + 1))/24" dev eth0 &&
            ip -n "$name-$i" link set lo up &&
            congestion "$name-$i" &&
            ip -n "$name-$i" link set eth0 up &&
            limit "$switch" "host-$i" && limit "$name-$i" eth0 || return 1
    done
}

build || skip namespaces
echo "ready $name"
read -r _
