#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Slurm with one node, this machine, while a command runs.
#
#   tests/cluster/slurm/one_node.sh FOLDER PORT OTHER_PORT COMMAND...
#
# Everything of it lies in FOLDER; munge's key is its own. The command finds it
# by SLURM_CONF, and its exit code is the script's. At the end, or at a signal,
# nothing of it is left. Where it cannot be it prints "skip REASON" (one word)
# and ends with 0.
set -u
folder=${1:?a folder} port=${2:?a port} other=${3:?a port}
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
host=$(hostname -s)
export SLURM_CONF=$folder/slurm.conf
cat > "$SLURM_CONF" << END
ClusterName=one
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
SlurmdPort=$other
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
MpiDefault=none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
NodeName=$host NodeAddr=127.0.0.1 CPUs=8 State=UNKNOWN
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
        echo "one_node.sh: daemon $((i + 1)) of ${#pids[@]} ended with $?" >&2
    done
}
trap end EXIT
trap 'exit 143' INT TERM HUP

# Starts "$@" beside this script; what it says is in FOLDER.
begin() {
    "$@" > "$folder/${1##*/}.out" 2>&1 &
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
node_is_idle() { sinfo -h -o %T 2> /dev/null | grep -q '^idle'; }

head -c 1024 /dev/urandom > "$folder/munge.key"
chmod 600 "$folder/munge.key"
begin munged --foreground --force --socket="$folder/munge.socket" \
    --key-file="$folder/munge.key" --pid-file="$folder/munged.pid" \
    --log-file="$folder/munged.log" --seed-file="$folder/munged.seed"
until_it test -S "$folder/munge.socket"
begin slurmctld -D
begin slurmd -D -N "$host"
until_it node_is_idle
"$@" &
command=$!
wait "$command"
code=$?
echo "one_node.sh: the command ended with $code" >&2
# A step that cannot tell slurmctld that it has ended tries again for ever, and
# slurmd waits for it.
until_it node_is_idle
exit "$code"
