#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Jobs of deploy/slurm that Slurm disturbs resume, and end with the weights of jobs
# that it leaves alone: tests/cluster/slurm/requeue.sh DEPLOY, in a folder with
# job.json, under nodes.sh.
#
# ps-limit: the batch script gets the signal that --signal sends before the time
# limit; the checkpoints are on the nodes' own disks. allreduce-requeued: by an
# administrator. unsaved: the limit without a checkpoint. failing: a program in place
# of capstan that fails, on task 0 later than the cluster's WaitTime; on its node's disk
# are the checkpoints that it would resume from.
set -eu
deploy=${1:?the folder of the batch files}
trap 'scancel --user=root' EXIT # nodes.sh waits until they have ended

# Submits job $1, and prints its number.
submit() {
    local name=$1
    shift
    sbatch --parsable --job-name="$name" --output=%x.log "$deploy/capstan.sbatch" \
        job.json --set export.path="$name.safetensors" \
        --set checkpoint.dir="$name" "$@"
}

# Asks every tenth of a second until "${@:2}" succeeds, for $1 seconds.
until_it() {
    local i
    for ((i = 0; i < $1 * 10; i++)); do
        "${@:2}" && return
        read -rt 0.1 <> <(:) || true
    done
    echo "no end of waiting for: ${*:2}" >&2
    tail -n 40 ./*.log >&2
    exit 1
}
says() { grep -qs "$2" "$1.log"; }
is_over() { says "$1" '^capstan ended with 0'; }

limit=$(LOCAL_DIR=/mnt/checkpoints SHARED_DIR=$PWD/shared \
    submit ps-limit)
until_it 60 says ps-limit 'chief: checkpoint '
scancel --batch --signal=USR1 "$limit"
requeued=$(NUM_PS=0 submit allreduce-requeued)
until_it 60 says allreduce-requeued 'chief: checkpoint '
scontrol requeue "$requeued"

cat > failing << 'END'
#!/bin/bash
((SLURM_PROCID == 0)) || exit 138
dir=${*: -1} # checkpoint.dir
ls "${dir#*=}"/*/manifest.json
sleep 7
echo "task 0 is left alone"
exit 138
END
chmod +x failing
for step in "000 null" "100 null" "200 null" "300 {\"step\":100,\"hash\":\"0\"}" "400 null"; do
    mkdir -p "bases/step-000000${step% *}"
    echo "{\"base\":${step#* }}" > "bases/step-000000${step% *}/manifest.json"
done
mkdir bases/step-000000500 # incomplete
RESTARTS=1 CAPSTAN=$PWD/failing LOCAL_DIR=/mnt/bases SHARED_DIR=$PWD/bases \
    submit failing > /dev/null
unsaved=$(NUM_PS=0 submit unsaved --set checkpoint.dir=null --set steps=100000000 --set steps_per_print=100)
until_it 60 says unsaved 'chief: step '
scancel --batch --signal=USR1 "$unsaved"
submit ps-quiet > /dev/null
NUM_PS=0 submit allreduce-quiet > /dev/null
for name in ps-limit allreduce-requeued; do
    until_it 120 is_over $name
    until_it 120 is_over ${name%-*}-quiet
    says $name 'resuming from ' || { cat $name.log >&2; exit 1; }
    cmp $name.safetensors ${name%-*}-quiet.safetensors
done
says ps-limit '^capstan ended with 143 at the time limit'
if says ps-limit "worker .: signal 15"; then exit 1; fi # only the first task
[[ -d shared/step-000003000 && ! -e ps-limit ]]

until_it 60 says unsaved '^not requeued: no checkpoint is newer'
until_it 60 says failing '^not requeued: failure 2, and RESTARTS is 1'
[[ $(grep -o 'step-.*/manifest' failing.log | sort -u | tr -dc '1-9\n' | paste -sd,) == 1,3,4 ]]
[[ $(grep -c '^task 0 is left alone' failing.log) == 2 ]]
