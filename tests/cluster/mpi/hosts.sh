#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# node1 and node2 of deploy/mpi/hostfile on this machine while a command runs, for
# Open MPI: tests/cluster/mpi/hosts.sh FOLDER COMMAND...
#
# Each has a host name and an address of 127.0.0.0/8; in place of ssh a script in
# FOLDER starts what runs on node2. Needs root; elsewhere it prints "skip REASON" and
# ends with 0.
set -eu
if [[ ${HOSTS_APART-} != "$$" ]]; then
    ((EUID == 0)) || { echo "skip root"; exit 0; }
    HOSTS_APART=$$ exec unshare --mount --uts "$0" "$@"
fi
folder=${1:?a folder}
shift
mkdir -p "$folder"
{ cat /etc/hosts; echo 127.0.0.1 node1; echo 127.0.0.2 node2; } > "$folder/hosts"
mount --bind "$folder/hosts" /etc/hosts || { echo "skip mounts"; exit 0; }
hostname node1
cat > "$folder/agent" << 'END'
#!/bin/sh
host=$1
shift
exec unshare --uts sh -c 'hostname "$0" && eval "$1"' "$host" "$*"
END
chmod +x "$folder/agent"
export OMPI_MCA_plm_rsh_agent=$folder/agent OMPI_MCA_oob_tcp_if_include=lo
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
exec "$@"
