#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Slurm on this machine while a command runs.
#
#   tests/cluster/slurm/nodes.sh FOLDER PORT NODE_PORT[,NODE_PORT...] COMMAND...
#
# A node for each NODE_PORT: node1, node2, ... Each has a host name, an address of
# 127.0.0.0/8 and a disk at /mnt of its own; all else they share. Everything lies
# in FOLDER; munge's key is its own. The command finds the cluster by SLURM_CONF,
# and its exit code is the script's. At the end, or at a signal, nothing of it is
# left. Where it cannot be it prints "skip REASON" (one word) and ends with 0.
set -u
if [[ ${NODES_APART-} != "$$" ]]; then # its mounts are seen by nobody else
    ((EUID)) || NODES_APART=$$ exec unshare --mount "$0" "$@"
fi
folder=${1:?a folder} port=${2:?a port}
IFS=, read -ra ports <<< "${3:?a port for each node}"
shift 3

skip() {
    echo "skip $1"
    exit 0
}
((EUID == 0)) || skip root
for program in munged slurmctld slurmd srun sinfo; do
    command -v "$program" > /dev/null || skip "$program"
done

mountpoint -q /sys/fs/cgroup || skip cgroups

mkdir -p "$folder"/state "$folder"/spool
chmod 755 "$folder"
cp /etc/hosts "$folder/hosts"
nodes=()
for i in "${!ports[@]}"; do
    echo "127.0.0.$((i + 1)) node$((i + 1))" >> "$folder/hosts"
    nodes+=("NodeName=node$((i + 1)) NodeAddr=127.0.0.$((i + 1)) \
Port=${ports[i]} CPUs=16 State=UNKNOWN")
done
mount --bind "$folder/hosts" /etc/hosts || skip mounts
export SLURM_CONF=$folder/slurm.conf
cat > "$SLURM_CONF" << END
ClusterName=one
SlurmctldHost=$(hostname -s)(127.0.0.1)
SlurmctldPort=$port
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket,cred_expire=5
SlurmUser=root
SlurmdUser=root
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool/%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/%n.pid
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
MpiDefault=none
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=2
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
KillOnBadExit=1
WaitTime=5
$(printf '%s\n' "${nodes[@]}")
PartitionName=all Nodes=ALL Default=YES State=UP
END

pids=()
# Says what has ended, so that a hang shows whose it is.
end() {
    local i
    for ((i = ${#pids[@]} - 1; i >= 0; i--)); do
        kill "${pids[i]}" 2> /dev/null
    done
    for ((i = ${#pids[@]} - 1; i >= 0; i--)); do
        wait "${pids[i]}"
        echo "nodes.sh: daemon $((i + 1)) of ${#pids[@]} ended with $?" >&2
    done
}
trap end EXIT
trap 'exit 143' INT TERM HUP

# Starts "${@:2}" beside this script; what it says is in FOLDER/$1.out.
begin() {
    "${@:2}" > "$folder/$1.out" 2>&1 &
    pids+=($!)
}

# Asks every tenth of a second until "$@" succeeds, for half a minute.
until_it() {
    local i
    for ((i = 0; i < 300; i++)); do
        "$@" && return
        read -rt 0.1 <> <(:)
    done
    echo "no end of waiting for: $*" >&2
    tail -n 20 "$folder"/*.out >&2
    exit 1
}
# "idle" alone: sinfo's -t idle finds those that are completing, too.
all_are_idle() { [[ $(sinfo -hNo %T 2> /dev/null | grep -cx idle) == "${#ports[@]}" ]]; }

head -c 1024 /dev/urandom > "$folder/munge.key"
chmod 600 "$folder/munge.key"
begin munged munged --foreground --force --socket="$folder/munge.socket" \
    --key-file="$folder/munge.key" --pid-file="$folder/munged.pid" \
    --log-file="$folder/munged.log" --seed-file="$folder/munged.seed"
until_it test -S "$folder/munge.socket"
begin slurmctld slurmctld -D
for i in "${!ports[@]}"; do
    begin "node$((i + 1))" unshare --uts --mount sh -c 'hostname "$1" &&
        mount -t tmpfs node /mnt && exec slurmd -D -N "$1"' node "node$((i + 1))"
done
until_it all_are_idle
"$@" &
command=$!
wait "$command"
code=$?
echo "nodes.sh: the command ended with $code" >&2
# A step that cannot tell slurmctld that it has ended tries again for ever, and
# slurmd waits for it.
until_it all_are_idle
exit "$code"
