#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Trains a job on the hosts of a hostfile, by mpirun of Open MPI or of MPICH (Hydra).
#
#   run.sh HOSTFILE JOB.json [FLAG OF CAPSTAN RUN...]
#
# The last NUM_PS (2) ranks are ps, the others workers, of which the first leads; with
# NUM_PS=0 the job trains by all-reduce. After a failure for which a retry is
# worthwhile the run is started again, RESTARTS (20) times at most, and resumes.
# CAPSTAN: the program, at one path on every host. MPIRUN: mpirun, and its flags.
# GRACE: seconds that Open MPI waits before SIGTERM and before SIGKILL, in which the
# ranks write a checkpoint (36: timeouts.grace + timeouts.stop + 1; its own: 1).
set -u
hostfile=${1:?a hostfile} job=${2:?a job file}
shift 2
num_ps=${NUM_PS:-2}
mode=(--num-ps "$num_ps")
((num_ps)) || mode=(--set strategy.type=allreduce)
read -ra mpirun <<< "${MPIRUN:-mpirun}"

# host:slots for each line.
hosts=$(sed 's/#.*//' "$hostfile" | awk 'NF { slots = 1
    for (i = 2; i <= NF; i++) if (sub(/^slots=/, "", $i)) slots = $i
    print $1 ":" slots }')
ranks=$(awk -F: '{ sum += $NF } END { print sum + 0 }' <<< "$hosts")
((ranks > num_ps)) || { echo "$hostfile has $ranks slots" >&2; exit 2; }
export MASTER_ADDR=${MASTER_ADDR:-${hosts%%:*}} MASTER_PORT=${MASTER_PORT:-29500}

# Ranks go to the hosts in turns, so that each host has a ps.
if "${mpirun[@]}" --version 2> /dev/null | grep -q 'Open MPI'; then
    # When a rank fails or mpirun gets a signal, the others write a checkpoint.
    mpirun+=(--hostfile "$hostfile" -n "$ranks" --map-by node --bind-to none
        --mca odls_base_sigkill_timeout "${GRACE:-36}"
        -x MASTER_ADDR -x MASTER_PORT)
    for name in $(compgen -e CAPSTAN_) OMP_NUM_THREADS; do
        [[ -v $name ]] && mpirun+=(-x "$name")
    done
else
    # Hydra hands on the whole environment. It takes hosts in turns if each has
    # one slot, and goes round again.
    mpirun+=(-hosts "$(sed 's/:[0-9]*$/:1/' <<< "$hosts" | paste -sd,)"
        -n "$ranks")
fi

# A signal to this script ends the run. Open MPI hands SIGUSR1 to the ranks at once,
# which requests a checkpoint, and SIGTERM only after GRACE; of two signals that it
# finds together it may lose the first. mpirun has a process group of its own, so that
# Ctrl-C reaches it once: at a second one it does not wait.
stopped=0
stop() {
    ((! stopped)) || return
    stopped=1
    kill -USR1 $! && sleep 1 && kill -TERM $!
}
trap 'stop 2> /dev/null' TERM INT HUP
trap 'kill -USR1 $!' USR1
# Waits for the process that was started last; a signal does not end the wait.
await() {
    while wait $!; kill -0 $! 2> /dev/null; do :; done
    wait $!
}
set -m

for ((restarts = ${RESTARTS:-20}; ; restarts--)); do
    "${mpirun[@]}" "${CAPSTAN:-capstan}" run "${mode[@]}" "$job" "$@" < /dev/null &
    await
    code=$?
    ((code == 0 || ! stopped)) || exit 143
    # docs/running.md. Hydra has 9 for a rank that was killed.
    ((restarts > 0)) && [[ $code == 13[78] || $code == 9 ]] || exit "$code"
    echo "run.sh: exit code $code; the run is started again in 5 s" >&2
    sleep 5 &
    await
    ((! stopped)) || exit 143
done
