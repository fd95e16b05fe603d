#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds deploy/docker/Dockerfile as docs/docker.md says and tries the image:
# tests/check_docker.sh FOLDER
#
# ENGINE: the command of docker or podman, with flags if it needs any; by default
# the one that runs here. Where none does, as root the Dockerfile's steps are
# executed in a root file system of debootstrap, and bubblewrap contains the
# processes; then what needs control groups and a network is not tried, and the last
# line says so. Where debian:12-slim cannot be fetched, debootstrap makes it, too.
# FOLDER is made and removed. 77: nothing here can do it.
set -eu -o pipefail
cd "$(dirname "$0")/.."
folder=${1:?a folder to make} name=capstan-check
[[ ! -e $folder ]] || { echo "check_docker: $folder is there" >&2; exit 2; }
[[ -v ENGINE ]] || for ENGINE in docker podman ''; do
    $ENGINE info > /dev/null 2>&1 && break
done
commit=$(git rev-parse HEAD) made=() tried=0

clean() {
    if [[ $ENGINE ]]; then
        $ENGINE rm -f $name > /dev/null 2>&1 || true
        compose down -v > /dev/null 2>&1 || true
        $ENGINE volume rm -f $name > /dev/null 2>&1 || true
        $ENGINE rmi -f "${made[@]}" > /dev/null 2>&1 || true
    fi
    rm -rf --one-file-system "$folder"
}
trap clean EXIT
mkdir -p "$folder/work"
chmod 1777 "$folder/work"
folder=$(realpath "$folder")

fail() {
    echo "check_docker: $*" >&2
    exit 1
}

# A root file system of Debian 12 in FOLDER/base.
bootstrap() {
    ((EUID == 0)) && command -v debootstrap > /dev/null || {
        echo "check_docker: no debian:12-slim here; root makes it by debootstrap" >&2
        exit 77
    }
    debootstrap --variant=minbase bookworm "$folder/base" \
        http://deb.debian.org/debian > "$folder/log" 2>&1 || {
        tail -n 3 "$folder/log" >&2
        exit 77
    }
}

build() {
    local base=docker.io/library/debian:12-slim
    local arguments=(COMMIT="$commit" PACKAGES=dataset-fashion-mnist)
    if [[ -z $ENGINE ]]; then
        command -v bwrap > /dev/null || {
            echo "check_docker: neither docker nor podman nor bwrap runs here" >&2
            exit 77
        }
        bootstrap
        python3 tests/cluster/cluster_docker.py execute deploy/docker/Dockerfile \
            "$folder/steps" "$folder/base" "${arguments[@]}"
        return
    fi
    $ENGINE image inspect $base > /dev/null 2>&1 || $ENGINE pull $base || {
        bootstrap
        tar -C "$folder/base" -c . | $ENGINE import - $base > /dev/null
        made+=($base)
    }
    $ENGINE build -f deploy/docker/Dockerfile --build-arg "${arguments[0]}" \
        --build-arg "${arguments[1]}" -t $name . >&2
    made+=($name)
}

# The command for a restricted container: FLAGS of the engine... -- ARGUMENTS. The
# volume is that of FLAGS "-v work", none is there without.
container() {
    local flags=() user=10001 volume=() entry=capstan
    while [[ $1 != -- ]]; do
        case $1 in
        --user=*) user=${1#*=} ;;
        -v) volume=(work) && shift ;;
        *) flags+=("$1") ;;
        esac
        shift
    done
    shift
    if [[ $ENGINE ]]; then
        $ENGINE run --name $name --read-only --tmpfs /tmp --user="$user" \
            --cap-drop=ALL --security-opt=no-new-privileges --shm-size=64m \
            --network=none ${volume:+-v "$name:/work"} "${flags[@]}" $name "$@"
        return
    fi
    bwrap --ro-bind "$folder/steps/image" / --dev /dev --size $((64 << 20)) \
        --tmpfs /dev/shm --proc /proc --tmpfs /tmp \
        ${volume:+--bind "$folder/work" /work} --unshare-user --unshare-all \
        --uid "$user" --gid "$user" --cap-drop ALL --die-with-parent --clearenv \
        --setenv HOME /work --setenv PATH /usr/bin:/bin --chdir /work $entry "$@"
}

# A container that ends with CODE and says TEXT: expect CODE TEXT FLAGS... -- ...
expect() {
    local code=0 expected=$1 text=$2
    shift 2
    container "$@" > "$folder/said" 2>&1 || code=$?
    [[ -z $ENGINE ]] || $ENGINE rm -f $name > /dev/null
    [[ $code == "$expected" ]] && grep -qF -- "$text" "$folder/said" || {
        cat "$folder/said" >&2
        fail "$*: exit code $code, expected $expected and: $text"
    }
    echo "ok: $*: $(grep -m 1 -oF -- "$text" "$folder/said")"
    tried=$((tried + 1))
}

job=/usr/share/capstan/jobs/fashion-mnist.json
train=(local --ps 1 --workers 2 --json-log --set epochs=1)

try_restrictions() {
    expect 0 "commit ${commit:0:12}" -- info
    expect 0 "/usr/lib/capstan/capstan-gloo.so" -- info
    expect 0 "checkpoint: /work/a/step-000000235" -v work -- \
        "${train[@]}" --set checkpoint.dir=/work/a $job
    expect 0 "over shared memory" -v work --user=54321 -- \
        "${train[@]}" --set checkpoint.dir=/work/b $job
    expect 0 "60000    2.0 MB" -v work -- ckpt ls /work/b
    expect 0 "all-reduce: over shared memory" -v work -- local --ps 0 --workers 2 --set epochs=1 \
        --set strategy.type=allreduce --set checkpoint.dir=/work/c $job
    expect 2 "checkpoint.dir: cannot make the folder /work/a: Read-only file system; choose a folder on a disk or volume that can be written" -- \
        "${train[@]}" --set checkpoint.dir=/work/a $job
}

# What needs an engine.
try_engine() {
    expect 0 "over shared memory" -v work --shm-size=64k -- \
        "${train[@]}" --set checkpoint.dir=/work/d $job
    expect 0 '"role":"worker"' --entrypoint=/usr/bin/env -- capstan cluster
    expect 2 "Permission denied to user 54322, group " -v work --user=54322 -- \
        "${train[@]}" --set checkpoint.dir=/work/b $job
    expect 138 "pids.max of a control group (a container's --pids-limit)" \
        --pids-limit=6 -v work -- run --set checkpoint.dir=/work/e $job
    expect 2 "(left by control group /" --memory=300m -v work -- \
        "${train[@]}" --set train_batch_size=60000 $job
}

# SIGTERM of "stop" to process 1: a checkpoint, and 143.
try_stop() {
    local end=$((SECONDS + 60)) code
    container -d -v work -- run --set epochs=10000 \
        --set checkpoint.dir=/work/f $job > /dev/null
    until $ENGINE logs $name 2>&1 | grep -q "step 200/"; do
        ((SECONDS < end)) || fail "no step in 60 s: $($ENGINE logs $name 2>&1)"
        sleep 0.2
    done
    $ENGINE stop -t 40 $name > /dev/null
    code=$($ENGINE inspect --format '{{.State.ExitCode}}' $name)
    $ENGINE logs $name > "$folder/said" 2>&1
    $ENGINE rm -f $name > /dev/null
    [[ $code == 143 ]] && grep -q "resumes from /work/f/step-" "$folder/said" ||
        fail "stop: exit code $code: $(cat "$folder/said")"
    echo "ok: stop: exit code 143 after a checkpoint"
    tried=$((tried + 1))
}

compose() {
    local tool=($ENGINE compose)
    [[ $ENGINE == podman* ]] && tool=(podman-compose)
    "${tool[@]}" -p $name -f "$folder/compose.yaml" "$@"
}

# deploy/docker/compose.yaml as it is, but for the image's name.
try_compose() {
    sed "s/image: capstan/image: $name/" deploy/docker/compose.yaml \
        > "$folder/compose.yaml"
    compose version > /dev/null 2>&1 || {
        echo "no compose for $ENGINE here"
        return
    }
    timeout 300 bash -c "$(declare -f compose); ENGINE='$ENGINE' name=$name
        folder='$folder'; compose up" > "$folder/said" 2>&1 || {
        cat "$folder/said" >&2
        fail "compose up"
    }
    grep -q "chief: checkpoint: /work/run/step-000002820" "$folder/said" &&
        [[ $(grep -c "the run is over: done" "$folder/said") == 4 ]] ||
        fail "compose: $(cat "$folder/said")"
    echo "ok: compose: $(grep -o 'epoch 12/12: test accuracy [0-9.]*' \
        "$folder/said")"
    tried=$((tried + 1))
}

build
try_restrictions
if [[ $ENGINE ]]; then
    try_engine
    try_stop
    try_compose
    echo "$tried checks of the image passed, by $ENGINE"
else
    echo "$tried checks passed in a root file system; no engine here, so control" \
        "groups, signals and several containers were not tried"
fi
