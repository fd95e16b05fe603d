#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What README.md tells a newcomer to type, on a machine that has nothing but make:
# tests/check_fresh.sh FOLDER SUITE MIRROR [TARGET...]
#
# Makes the TARGETS (demo, demo-sparse, check) of the commit in this order, so that
# none profits from what a later one installs. FOLDER is made and removed. Needs root
# and debootstrap. 77: the mirror cannot be reached.
set -eu -o pipefail
cd "$(dirname "$0")/.."
root=${1:?a folder to make} suite=$2 mirror=$3
shift 3
(($#)) || set -- demo demo-sparse check
. tests/fresh_root.sh

make_root "$suite" "$mirror"
mount_root
mkdir "$root/sources"
git archive HEAD | tar -x -C "$root/sources"
inside 'apt-get -q install -y --no-install-recommends make' > /dev/null
for target in "$@"; do
    inside "cd /sources; make ${MAKE_JOBS-} $target < /dev/null"
    echo "$suite: make $target works"
done
