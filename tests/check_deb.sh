#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The packages of make deb in a fresh root file system of Debian or Ubuntu:
# tests/check_deb.sh FOLDER SUITE MIRROR [DEB...]
#
# Installs them there, trains with the installed program, builds a program with
# pkg-config, removes them, and compares the files with those before. Without
# DEB they are built from the commit in a copy of that root, FOLDER.build, so that
# nothing of what a build needs is there. Both folders are made and removed. Needs root
# and debootstrap. 77: the mirror cannot be reached.
set -eu -o pipefail
cd "$(dirname "$0")/.."
root=${1:?a folder to make} suite=$2 mirror=$3
shift 3
. tests/fresh_root.sh

make_root "$suite" "$mirror"
install='apt-get -q install -y --no-install-recommends'

# All but what apt and dpkg keep of what has been there, and what is left of packages on
# which libgloo0 depends: the traces of the group that libibverbs1 makes, and of Ubuntu
# 24.04 a link that ldconfig makes for a library of libopenmpi3t64.
files() {
    inside 'find / -xdev \( -path /proc -o -path /sys -o -path /tmp -o -path /run -o \
        -path "/etc/*-" -o \
        -path /packages -o -path /var/cache -o -path /var/log -o \
        -path /var/lib/apt -o -path /var/lib/dpkg -o -path /etc/ld.so.cache \
        -o -path "/usr/lib/*/libmpi_usempi_ignore_tkr-gfortranso.40" \
        \) -prune -o -print | sort'
}

# In the copy, so the root is another one here.
build() {
    mkdir "$root/sources"
    git archive HEAD | tar -x -C "$root/sources"
    mount_root
    inside "$install make > /dev/null; cd /sources
        ./deploy/deps.sh > /dev/null; make ${MAKE_JOBS:--j2} deb" >&2
}

mkdir "$root/packages"
if (($#)); then
    cp "$@" "$root/packages"
else
    fresh=$root
    trap 'root=$fresh.build remove_root; root=$fresh remove_root' EXIT
    cp -a "$root" "$root.build"
    root=$root.build build
    cp "$root.build"/sources/build/*.deb "$root/packages"
    root=$root.build remove_root
fi
mount_root
# apt of Ubuntu 26.04 keeps adduser, on which libibverbs1 depends, as an alternative of
# its own dependency: it is there before.
inside "$install dataset-fashion-mnist gcc libc6-dev pkg-config man-db \
    groff-base adduser > /dev/null"
files > "$root/tmp/before"
inside "$install /packages/*.deb > /dev/null
    cd /tmp; capstan --version
    capstan local --ps 2 --workers 2 --json --set epochs=1 \
        --set export.path=/tmp/model.npz \
        /usr/share/capstan/jobs/fashion-mnist.json
    capstan local --ps 0 --workers 2 --json --set epochs=1 \
        --set strategy.type=allreduce \
        /usr/share/capstan/jobs/fashion-mnist.json | grep -o '\"exit\":0'
    capstan info | grep gloo
    man -P cat capstan-job | grep -m 1 zero_optimization.stage
    . /usr/share/bash-completion/completions/capstan; complete -p capstan
    echo '#include <capstan.h>
        #include <stdio.h>
        int main(void) { puts(capstan_version()); }' > a.c
    gcc a.c \$(pkg-config --cflags --libs capstan) -o a; ./a"
# Without the options apt keeps what a package that was there before suggests.
inside 'apt-get -q purge -y capstan libcapstan-dev > /dev/null
    apt-get -q autoremove -y --purge -o APT::AutoRemove::SuggestsImportant=false \
        -o APT::AutoRemove::RecommendsImportant=false > /dev/null'
files | diff "$root/tmp/before" -
echo "$suite: the packages install, train and leave nothing"
