/* SPDX-License-Identifier: Apache-2.0 */
/* The job's setting has precedence. Otherwise: parameter server if ps are
 * listed, all-reduce if several trainers are and no ps; a single trainer keeps
 * the weights in its own process. The error texts name the remedy that fits the
 * way in which the cluster was described. */
#include "chief/plan/strategy.h"

#include "chief/run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How to add what is missing, by enum strategy_members. */
static const struct {
    const char *no_ps, *add_ps, *add_worker;
} hints[] = {
    {"the cluster lists no ps", "list a ps in the cluster", "list a worker"},
    {"every rank is a worker",
     "give --num-ps N or CAPSTAN_NUM_PS=N, which makes the last N ranks ps",
     "start more processes"},
    {"there is no ps", "give --ps N", "give --workers N"},
    {"there is no ps", "give parameter_server_count", "give worker_count"},
};

static const char *backend_of(const struct job *job) {
    static const char *const names[] = {
        [JOB_BACKEND_AUTO] = "auto", [JOB_GLOO] = "gloo", [JOB_NCCL] = "nccl"};
    return names[job->backend];
}

/* A lower rank that uses RANK's device, or NULL. */
static const struct strategy_rank *find_device_sharer(
    const struct strategy_rank *ranks, uint32_t rank) {
    for (uint32_t r = 0; r < rank; r++)
        if (!strcmp(ranks[r].device, ranks[rank].device))
            return &ranks[r];
    return NULL;
}

/* Writes why nccl cannot be used; TEXT is "" if it can. */
static void find_nccl_obstacle(const struct job *job,
                               const struct strategy_rank *ranks,
                               uint32_t count, char *text, size_t size) {
    text[0] = 0;
    if (job->zero.offload)
        snprintf(text, size,
                 "offload_optimizer keeps the state in host memory");
    for (uint32_t r = 0; !text[0] && r < count; r++) {
        const struct strategy_rank *rank = &ranks[r];
        if (!rank->device) {
            snprintf(text, size, "%s computes in host memory", rank->name);
            return;
        }
        if (rank->replicas > 1) {
            snprintf(text, size,
                     "%s adds the gradients of %u devices in host memory",
                     rank->name, rank->replicas);
            return;
        }
        const struct strategy_rank *other = find_device_sharer(ranks, r);
        if (other)
            snprintf(text, size, "%s and %s share a device", other->name,
                     rank->name);
        else if (rank->without_nccl[0])
            snprintf(text, size, "nccl, at %s: %s", rank->name,
                     rank->without_nccl);
    }
}

const char *strategy_resolve_backend(const struct job *job,
                                     const struct strategy_rank *ranks,
                                     uint32_t count, const struct log *log) {
    char reason[512];
    find_nccl_obstacle(job, ranks, count, reason, sizeof reason);
    if (count > 1)
        log_info(log, "backend_chosen", "all-reduce by %s (auto: %s)",
                 reason[0] ? "gloo" : "nccl",
                 reason[0] ? reason
                           : "each trainer has a device of its own, where "
                             "gradients and state stay");
    return reason[0] ? "gloo" : "nccl";
}

bool strategy_resident(const struct job *job, const char *backend,
                       const struct strategy_rank *ranks, uint32_t count) {
    for (uint32_t r = 0; r < count; r++)
        if (!ranks[r].device || ranks[r].replicas > 1)
            return false;
    return !job->zero.offload && (count == 1 || !strcmp(backend, "nccl"));
}

/* Checks the settings that depend on the cluster; the others were checked when
 * the job was read. */
static enum status check_allreduce(const struct job *job,
                                   const struct strategy_case *given,
                                   struct failure *why) {
    static const char means[] = "several trainers and no ps mean all-reduce";
    if (job->staleness)
        return status_fail(why, FAILURE_JOB_UNFIT,
                           "%s, but strategy.staleness is set, which needs ps: "
                           "%s, or take it out",
                           means, hints[given->members].add_ps);
    if (job->backup_workers)
        return status_fail(why, FAILURE_JOB_UNFIT,
                           "%s, but strategy.backup_workers is set, which "
                           "needs ps: %s, or take it out",
                           means, hints[given->members].add_ps);
    if (job->algorithm == JOB_HALVING_DOUBLING && job->zero.stage)
        return status_fail(why, FAILURE_JOB_UNFIT,
                           "strategy.algorithm is halving_doubling, but "
                           "zero_optimization.stage %d scatters and gathers "
                           "around a ring: take one of them out",
                           (int)job->zero.stage);
    if (job->wire == JOB_WIRE_BF16)
        return status_fail(why, FAILURE_JOB_UNFIT,
                           "%s, whose messages are float32, but wire is bf16: "
                           "%s, or take it out",
                           means, hints[given->members].add_ps);
    return STATUS_OK;
}

/* Describes Gloo's algorithm if it differs from a ring by request. */
static const char *algorithm_of(const struct job *job, uint32_t trainers) {
    if (job->algorithm == JOB_RING || job->backend == JOB_NCCL)
        return "";
    return trainers & (trainers - 1)
               ? ", gloo's ring algorithm (halving and doubling takes 2, 4, "
                 "8, ... trainers)"
               : ", gloo's halving and doubling algorithm";
}

static enum status choose_allreduce(struct strategy *out, const struct job *job,
                                    const struct strategy_case *given,
                                    const struct log *log,
                                    struct failure *why) {
    char zero[24] = "";
    enum status status = check_allreduce(job, given, why);
    if (status)
        return status;
    out->allreduce = true;
    out->backend = backend_of(job);
    bool is_auto = job->backend == JOB_BACKEND_AUTO;
    if (job->zero.stage)
        snprintf(zero, sizeof zero, ", ZeRO stage %d", (int)job->zero.stage);
    const char *idle = given->num_ps ? "; the listed ps hold nothing" : "";
    if (given->trainers == 1)
        log_info(log, "strategy_chosen",
                 "all-reduce: 1 trainer, without peers%s", idle);
    else
        log_info(log, "strategy_chosen",
                 "all-reduce: %u trainers%s, by %s%s%s%s", given->trainers,
                 job->strategy == JOB_ALLREDUCE ? "" : " (no ps is listed)",
                 is_auto ? "gloo or nccl" : out->backend, zero,
                 algorithm_of(job, given->trainers), idle);
    return STATUS_OK;
}

/* With no ps listed, a single trainer keeps the weights in its own process. */
enum status strategy_choose(struct strategy *out, const struct job *job,
                            const struct strategy_case *given,
                            const struct log *log, struct failure *why) {
    uint32_t trainers = given->trainers, num_ps = given->num_ps;
    enum job_strategy strategy = job->strategy;
    *out = (struct strategy){0};
    if (!trainers)
        return status_fail(why, FAILURE_JOB_UNFIT,
                           "no trainer at all: there is no worker and the "
                           "chief only coordinates; %s, set \"workers\", or "
                           "let the chief train (\"chief\": \"train\")",
                           hints[given->members].add_worker);
    if (strategy == JOB_PS && !num_ps && !given->alone)
        return status_fail(why, FAILURE_JOB_UNFIT,
                           "strategy.type is ps, but %s: %s, or train without "
                           "(--set strategy.type=allreduce)",
                           hints[given->members].no_ps,
                           hints[given->members].add_ps);
    if (strategy == JOB_ALLREDUCE ||
        (strategy == JOB_STRATEGY_UNSET && !num_ps && trainers > 1))
        return choose_allreduce(out, job, given, log, why);
    if (job->backup_workers >= trainers)
        return status_fail(why, FAILURE_JOB_UNFIT,
                           "strategy.backup_workers: found %u, and the run has "
                           "%u trainer%s; allowed: 0 to %u",
                           job->backup_workers, trainers, log_plural(trainers),
                           trainers - 1);
    if (num_ps)
        log_info(log, "strategy_chosen",
                 "parameter server: %u trainer%s, %u ps%s%s", trainers,
                 log_plural(trainers), num_ps,
                 strategy == JOB_PS ? "" : " (ps are listed)",
                 job->wire == JOB_WIRE_BF16 ? ", bf16 on the wire" : "");
    else
        log_info(
            log, "strategy_chosen",
            "one trainer and no ps: a ps inside this process keeps the weights");
    return STATUS_OK;
}

void strategy_declare_rank(struct run_trainer *trainer,
                           const Capstan__ModelSpec *model_spec) {
    bool any = model_spec->n_devices > 0;
    snprintf(trainer->device, sizeof trainer->device, "%s",
             any ? model_spec->devices[0]->key : "");
    snprintf(trainer->without_nccl, sizeof trainer->without_nccl, "%s",
             model_spec->without_nccl);
}

static void list_ranks(const struct run *run, struct strategy_rank *ranks,
                       char (*names)[64]) {
    for (uint32_t r = 0; r < run->roster.num_ranks; r++) {
        const struct run_trainer *trainer = &run->trainers[r];
        roster_name(&run->roster.slots[r], names[r], sizeof names[r]);
        ranks[r] = (struct strategy_rank){
            names[r], trainer->device[0] ? trainer->device : NULL,
            trainer->without_nccl, trainer->replicas};
    }
}

static void resolve_backend(struct run *run,
                            const struct strategy_rank *ranks) {
    uint32_t count = run->roster.num_ranks;
    bool tables = run->plan.layout->num_tables > 0;
    if (tables && !strcmp(run->plan.backend, "auto"))
        snprintf(run->plan.backend, sizeof run->plan.backend, "gloo");
    if (!strcmp(run->plan.backend, "auto"))
        snprintf(run->plan.backend, sizeof run->plan.backend, "%s",
                 strategy_resolve_backend(run->job, ranks, count, run->log));
    run->plan.resident =
        !tables && strategy_resident(run->job, run->plan.backend, ranks, count);
}

bool strategy_select_collective(struct run *run) {
    uint32_t count = run->roster.num_ranks;
    if (!run->allreduce)
        return true;
    struct strategy_rank *ranks = calloc(count, sizeof *ranks);
    char(*names)[64] = calloc(count, sizeof *names);
    bool allocated = ranks && names;
    if (allocated) {
        list_ranks(run, ranks, names);
        resolve_backend(run, ranks);
    } else {
        run_stop(run, FAILURE_NO_MEMORY, "no memory for the plan");
    }
    free(ranks);
    free(names);
    return allocated;
}
