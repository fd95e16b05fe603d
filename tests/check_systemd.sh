#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The units of deploy/systemd under systemd, booted in a fresh root file system of
# Debian: tests/check_systemd.sh FOLDER SUITE MIRROR DEB...
#
# Installs the packages there, describes a cluster of one host, and lets systemd start,
# restart, watch and stop it (tests/systemd/in_guest.sh). FOLDER is made and removed.
# Needs root, debootstrap and systemd-nspawn. 77: one of them or the mirror is missing.
set -eu -o pipefail
cd "$(dirname "$0")/.."
root=${1:?a folder to make} suite=$2 mirror=$3
shift 3
for program in debootstrap systemd-nspawn; do
    command -v "$program" > /dev/null || { echo "no $program here" >&2; exit 77; }
done
. tests/fresh_root.sh

make_root "$suite" "$mirror" --include=systemd-sysv,dbus
mkdir "$root/packages"
cp "$@" "$root/packages"
inside 'apt-get -q install -y --no-install-recommends /packages/capstan_*.deb \
    dataset-fashion-mnist' > /dev/null

install -D tests/systemd/in_guest.sh "$root/check/in_guest.sh"
cat > "$root/etc/systemd/system/check.service" << 'END'
[Unit]
After=basic.target
SuccessAction=exit-force
FailureAction=exit-force
[Service]
Type=exec
ExecStart=/check/in_guest.sh
StandardOutput=file:/check/log
StandardError=inherit
TimeoutStopSec=1
END
# A container of the same kind as a virtual machine of one host: own network, own
# processes. Without a systemd of this machine nobody registers it.
code=0
timeout -k 10 "${TEST_LIMIT:-400}" systemd-nspawn -q -D "$root" -b --private-network \
    --register=no --keep-unit --console=pipe systemd.unit=check.service \
    < /dev/null > "$root/check/console" 2>&1 || code=$?
cat "$root/check/log" 2> /dev/null || cat "$root/check/console"
((code == 0)) || { echo "$suite: failed with $code" >&2; exit 1; }
echo "$suite: systemd starts, restarts, watches and stops the units"
