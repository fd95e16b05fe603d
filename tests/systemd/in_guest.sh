#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What tests/check_systemd.sh runs under systemd: the units of the installed package as
# docs/systemd.md says, a line for each promise that holds.
set -eEu -o pipefail
trap 'echo "in_guest: line $LINENO failed"
    timeout 5 systemctl --no-pager list-units --all "capstan*"
    timeout 5 journalctl --no-pager -n 60 -u "capstan*"' ERR

units=(capstan-chief capstan-ps@0 capstan-ps@1 capstan-worker@0)

# A property of a unit.
of() { systemctl show -P "$2" "$1"; }
# Asks five times a second until "$@" succeeds, for a minute.
until_it() {
    local i
    for ((i = 0; i < 300; i++)); do
        "$@" && return
        sleep 0.2
    done
    echo "no end of waiting for: $*"
    return 1
}
is() { [[ $(of "$1" "$2") == "$3" ]]; }
says() { journalctl --no-pager -o cat -u "$1" --since "@$since" | grep -q "$2"; }
trains() { [[ $(of "$1" StatusText) == training,\ step* ]]; }
all_train() {
    local unit
    for unit in "${units[@]}"; do
        trains "$unit" || return
    done
}
# The target is stopped before they are.
stop_all() {
    local unit
    timeout 90 systemctl stop capstan.target
    for unit in "${units[@]}"; do
        until_it is_stopped "$unit"
    done
}
is_stopped() { [[ $(of "$1" ActiveState) == @(inactive|failed) ]]; }
now() { since=$(date +%s); }

now
mkdir -p /etc/capstan
sed 's/host-[ab]/127.0.0.1/g; s/^PS_HOSTS=.*/PS_HOSTS=127.0.0.1:2223,127.0.0.1:2225/
    s/^WORKER_HOSTS=.*/WORKER_HOSTS=127.0.0.1:2224/' \
    /usr/share/capstan/systemd/cluster.env > /etc/capstan/cluster.env
job() {
    sed "s/\"epochs\": 12/\"epochs\": $1/
        s|^  \"strategy\"|  \"checkpoint\": {\"dir\": \"/var/lib/capstan/run\"},\n&|
        s/\"total_num_steps\": 2820/\"total_num_steps\": 100000000/" \
        /usr/share/capstan/jobs/fashion-mnist.json > /etc/capstan/job.json
}
job 100000

for unit in "${units[@]}"; do
    systemd-analyze --man=no verify "$unit.service"
    [[ $(systemctl is-enabled "$unit" || true) == disabled ]]
done
echo "the units verify, and the package enables none"
systemd-analyze security capstan-ps@0.service | tail -n 1

systemctl enable -q "${units[@]}"
timeout 90 systemctl start capstan.target
until_it all_train
[[ $(of capstan.target After) != *capstan-* && $(of multi-user.target After) != *capstan* ]]
is capstan-ps@0 ActiveState active
[[ $(stat -c %u "/proc/$(of capstan-ps@0 MainPID)") != 0 ]]
says capstan-worker@0 'over shared memory'
echo "capstan.target starts all; each is active once it has joined, and says its step"

systemctl kill -s KILL capstan-worker@0
until_it is capstan-worker@0 NRestarts 1
until_it all_train
is capstan-ps@0 NRestarts 0
echo "a killed worker is restarted, and the run goes on"

now
mkdir -p /etc/systemd/system/capstan-.service.d
printf '[Service]\nWatchdogSec=6\n' > /etc/systemd/system/capstan-.service.d/site.conf
mkdir -p /etc/systemd/system/capstan-worker@.service.d
printf '[Service]\nWatchdogSec=0\n' > /etc/systemd/system/capstan-worker@.service.d/site.conf
stop_all
for unit in "${units[@]}"; do
    is "$unit" ActiveState inactive
    is "$unit" Result success
done
says capstan-chief 'checkpoint /var/lib/capstan/run/step-'
echo "capstan.target stops all, after a checkpoint, and none has failed"

now
systemctl daemon-reload
timeout 90 systemctl start capstan.target
until_it all_train
says capstan-chief 'resuming from /var/lib/capstan/run/step-'
echo "started again, the run resumes"

kill -STOP "$(of capstan-ps@1 MainPID)"
until_it says capstan-ps@1 'Watchdog timeout (limit 6s)'
until_it says capstan-chief 'the run goes on after step '
until_it all_train
is capstan-ps@1 NRestarts 1
is capstan-chief NRestarts 0
echo "the watchdog ends a ps that stands still; started again, it takes the run back"

before=$(of capstan-ps@0 NRestarts)
worker=$(of capstan-worker@0 MainPID)
kill -STOP "$worker" # for less than timeouts.peer
sleep 20
is capstan-ps@0 NRestarts "$before"
is capstan-ps@0 ActiveState active
kill -CONT "$worker"
until_it all_train
is capstan-worker@0 MainPID "$worker"
echo "a ps that only waits, for longer than the watchdog's time, is left alone"
stop_all

now
job 0
systemctl start --no-block capstan.target
until_it is capstan-chief ActiveState failed
is capstan-chief ExecMainStatus 2
is capstan-chief NRestarts 0
echo "a wrong job ends with 2, and is not tried again"
stop_all
systemctl reset-failed

now
job 100000
timeout 90 systemctl start capstan.target
until_it all_train
stop_all
step=$(capstan ckpt ls --json /var/lib/capstan/run | grep -o '"step":[ 0-9]*' |
    grep -o '[0-9]*' | sort -n | tail -n 1)
job "$((step / 235 + 2))"
now
timeout 90 systemctl start capstan.target "${units[@]}" # waits until they have joined
for unit in "${units[@]}"; do
    until_it is "$unit" ActiveState inactive
    is "$unit" Result success
    is "$unit" ExecMainStatus 0
done
says capstan-chief '(100%)'
echo "a run that is done ends everywhere with 0 and is not started again"

now
capstan keygen /etc/capstan/secret
cat > /etc/systemd/system/capstan-.service.d/secret.conf << 'END'
[Service]
LoadCredential=secret:/etc/capstan/secret
Environment=CAPSTAN_SECRET_FILE=%d/secret
ExecStartPre=/usr/bin/test -r ${CAPSTAN_SECRET_FILE}
END
systemctl daemon-reload
job 100000
timeout 90 systemctl start capstan.target "${units[@]}"
until_it all_train
for unit in "${units[@]}"; do
    tr '\0' '\n' < "/proc/$(of "$unit" MainPID)/environ" |
        grep -q "^CAPSTAN_SECRET_FILE=/run/credentials/$unit.service/secret$"
done
stop_all
mv /etc/capstan/secret /etc/capstan/other
sleep 1 # of what it said before
now
systemctl start --no-block capstan-chief
until_it says capstan-chief 'Failed to set up credentials'
if says capstan-chief 'listening on port'; then false; fi
systemctl stop capstan-chief
echo "each has the run's secret as a credential, and does not start without it"
