#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Jobs of deploy/slurm that are disturbed end with the weights of one that is not:
# tests/cluster/slurm/requeue.sh DEPLOY, in a folder with job.json, under nodes.sh.
#
# limit: the batch script gets the signal that --signal sends before the time limit,
# and checkpoints are on the nodes' own disks. requeued: by an administrator.
set -eu
deploy=${1:?the folder of the batch files}

# Submits file $2 as job $1, and prints its number.
submit() {
    local name=$1 file=$2
    shift 2
    sbatch --parsable --job-name="$name" --output=%x.log "$deploy/$file" \
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

for file in ps allreduce; do
    submit $file-quiet $file.sbatch > /dev/null
    until_it 60 is_over $file-quiet
    limit=$(LOCAL_DIR=/mnt/$file SHARED_DIR=$PWD/$file-shared \
        submit $file-limit $file.sbatch)
    until_it 60 says $file-limit 'chief: checkpoint '
    scancel --batch --signal=USR1 "$limit"
    requeued=$(submit $file-requeued $file.sbatch)
    until_it 60 says $file-requeued 'chief: checkpoint '
    scontrol requeue "$requeued"
done
for file in ps allreduce; do
    for name in $file-limit $file-requeued; do
        until_it 120 is_over $name
        says $name 'resuming from ' || { cat $name.log >&2; exit 1; }
        cmp $file-quiet.safetensors $name.safetensors
    done
    says $file-limit '^capstan ended with 143 at the time limit'
    [[ -d $file-shared && ! -d $file-limit ]]
done
[[ -z $(scontrol show job -o | grep -v JobState=COMPLETED) ]]
