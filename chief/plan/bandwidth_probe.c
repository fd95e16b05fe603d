/* SPDX-License-Identifier: Apache-2.0 */
/* Measures only if every process has a host of its own by name: on one host, or
 * if the hosts are unknown, there is no network to measure. A bandwidth that is
 * not reported within a second stays unknown. */
#include "chief/plan/bandwidth_probe.h"

#include "chief/plan/network_bound.h"
#include "chief/run.h"
#include "core/base/time.h"

#include <math.h>
#include <string.h>

static const int64_t LIMIT = TIME_S;

static const char *bandwidth_probe_host_of(const struct run *run,
                                           uint32_t slot) {
    const struct roster_slot *at = &run->roster.slots[slot];
    if (run->cluster->from_ranks) /* ranks carry their hosts' own names */
        return at->host;
    const struct cluster_task *task =
        cluster_find(run->cluster, at->role, at->index);
    return task ? task->host : NULL;
}

static bool bandwidth_probe_is_loopback(const char *host) {
    return !strcmp(host, "localhost") || !strncmp(host, "127.", 4) ||
           !strcmp(host, "::1");
}

/* Its host is not known before it joins, and it does so later. */
static bool may_come_later(const struct run *run, uint32_t slot) {
    return slot < run->roster.num_ranks && run_is_beyond(run, slot);
}

/* Compares the listed host names, or else the hosts' own names. */
static bool hosts_differ(const struct run *run) {
    for (uint32_t i = 0; i < run->roster.count; i++) {
        if (may_come_later(run, i))
            continue;
        const char *host = bandwidth_probe_host_of(run, i);
        if (!host || bandwidth_probe_is_loopback(host))
            return false;
        for (uint32_t k = 0; k < i; k++)
            if (!may_come_later(run, k) &&
                !strcmp(host, bandwidth_probe_host_of(run, k)))
                return false;
    }
    return true;
}

/* The rank that probes the first holder: a trainer on another host. */
static uint32_t prober_rank(const struct run *run) {
    return run->allreduce ? 1 : 0;
}

static void send_probe_request(struct run *run, uint32_t rank) {
    char address[300];
    Capstan__Measure measure = CAPSTAN__MEASURE__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    run_holder_address(run, 0, address, sizeof address);
    measure.address = address;
    measure.ps = run->allreduce ? 0 : run_holder(run, 0)->index;
    control.body_case = CAPSTAN__CONTROL__BODY_MEASURE;
    control.measure = &measure;
    control_server_send(run->control_server, &run->roster.slots[rank],
                        &control);
}

/* Only a comparison needs to know whose link limits: a single pair measures the
 * slower of its two links. */
static bool wants_aggregate(const struct run *run) {
    return run->series && run->bandwidth.measured && !run->allreduce &&
           run->roster.num_ranks > 1;
}

static bool is_aggregate_done(struct run *run, int64_t now) {
    if (!wants_aggregate(run) ||
        run->bandwidth.aggregate_reports == run->roster.num_ranks)
        return true;
    if (run->bandwidth.aggregate_requested_at)
        return now - run->bandwidth.aggregate_requested_at >= LIMIT;
    run->bandwidth.aggregate_requested_at = now;
    for (uint32_t r = 0; r < run->roster.num_ranks; r++)
        send_probe_request(run, r);
    return false;
}

bool bandwidth_probe_is_done(struct run *run, int64_t now) {
    if (run->bandwidth.gbits > 0 || run->bandwidth.logged)
        return is_aggregate_done(run, now);
    if (run->bandwidth.requested_at)
        return now - run->bandwidth.requested_at >= LIMIT;
    if (run->allreduce ? run->roster.num_ranks < 2 : run->ps_inproc != NULL)
        return true;
    if (!hosts_differ(run))
        return true;
    run->bandwidth.requested_at = now;
    send_probe_request(run, prober_rank(run));
    return false;
}

/* An invalid report of one trainer makes the sum unknown. */
static void receive_aggregate(struct run *run, uint32_t rank, double gbits) {
    struct run_trainer *trainer = &run->trainers[rank];
    if (trainer->measured)
        return;
    trainer->measured = true;
    run->bandwidth.aggregate_reports++;
    if (gbits > 0 && gbits <= LINK_MAX_GBITS)
        run->bandwidth.aggregate_gbits += gbits;
    else
        run->bandwidth.aggregate_gbits = NAN;
}

void bandwidth_probe_receive(struct run *run, const struct roster_slot *slot,
                             const Capstan__Measured *measured) {
    double gbits = network_bound_link_gbits(measured->bytes_per_second);
    if (run->phase != RUN_READYING || slot->rank >= run->roster.num_ranks)
        return;
    if (run->bandwidth.aggregate_requested_at) {
        receive_aggregate(run, slot->rank, gbits);
        return;
    }
    if (slot->rank != prober_rank(run) || !run->bandwidth.requested_at ||
        run->bandwidth.logged)
        return;
    run->bandwidth.logged = true;
    if (!(gbits > 0 && gbits <= LINK_MAX_GBITS))
        return;
    run->bandwidth.gbits = gbits;
    run->bandwidth.measured = true;
    log_info(run->log, "bandwidth_measured",
             "the network bandwidth is %.3g Gbit/s in each direction per host, "
             "measured between %s",
             gbits, run->allreduce ? "ranks 0 and 1" : "trainer 0 and ps 0");
}

double bandwidth_probe_aggregate_gbits(const struct run *run) {
    return run->bandwidth.aggregate_reports &&
                   run->bandwidth.aggregate_reports == run->roster.num_ranks
               ? run->bandwidth.aggregate_gbits
               : NAN;
}
