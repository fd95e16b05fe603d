/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/report/time_breakdown.h"

#include "chief/plan/device_replicas.h"
#include "proto/plan/encoding.h"

#include <math.h>

/* Seconds since the start, summed over all trainers and over all ps. */
struct seconds {
    double input, compute, waiting, rule, updates;
};

static struct seconds sum_seconds(const struct run *run) {
    struct seconds sum = {0};
    for (uint32_t r = 0; r < run->roster.num_ranks; r++) {
        const Capstan__Heartbeat *heartbeat = &run->trainers[r].heartbeat;
        sum.input += heartbeat->input_s;
        sum.compute += heartbeat->compute_s;
        sum.waiting += heartbeat->wire_s;
        sum.rule += heartbeat->update_s;
    }
    for (uint32_t i = 0; i < run->roster.num_ps; i++)
        sum.updates += run->ps[i].update_s;
    return sum;
}

static void time_breakdown_set_real(json_t *object, const char *key,
                                    double value) {
    json_object_set_new(object, key,
                        isfinite(value) ? json_real(value) : json_null());
}

/* Does the caller of the library compute the gradients? Then only it knows its
 * batches, and how long it waits for them. */
static bool time_breakdown_is_external(const struct run *run) {
    return run->job->model.type == JOB_EXTERNAL;
}

/* Seconds per step of one trainer and of one ps. Steps are those of each
 * trainer, even if the run's step counts the steps of all. */
static json_t *seconds_per_step(const struct run *run) {
    struct seconds sum = sum_seconds(run);
    double trainers = run->roster.num_ranks;
    double steps = (double)(run->end_step - run->plan.schedule.start);
    double each = run_synchronous(run) ? steps : steps / trainers;
    double trainer_steps = trainers * each;
    double update = run->allreduce ? sum.rule / trainer_steps
                                   : sum.updates / run_holder_count(run) / each;
    json_t *object = json_object();
    time_breakdown_set_real(
        object, "input",
        time_breakdown_is_external(run) ? NAN : sum.input / trainer_steps);
    time_breakdown_set_real(object, "compute", sum.compute / trainer_steps);
    time_breakdown_set_real(object, "waiting_for_weights",
                            run->allreduce ? 0 : sum.waiting / trainer_steps);
    time_breakdown_set_real(object, "waiting_for_gradients",
                            run->allreduce ? sum.waiting / trainer_steps : 0);
    time_breakdown_set_real(object, "update", update);
    return object;
}

/* Counts each byte once: gradients one way and weights back, with the rows of
 * tables (as many back as there, at most), or the messages of a ring. */
static double bytes_per_step(const struct run *run, double wire_bytes) {
    double trainers = run->roster.num_ranks;
    if (run->allreduce)
        return 2 * (trainers - 1) * wire_bytes + trainers * run_row_bytes(run);
    if (run->ps_inproc && trainers == 1)
        return 0;
    return 2 * (wire_bytes + run_row_bytes(run)) *
           (run_synchronous(run) ? trainers : 1);
}

static void time_breakdown_set_count(json_t *object, const char *key,
                                     uint32_t count) {
    json_object_set_new(object, key, count ? json_integer(count) : json_null());
}

static void add_batch(json_t *object, const struct run *run) {
    const struct job *job = run->job;
    bool known =
        run->plan.num_replicas && job && !time_breakdown_is_external(run);
    time_breakdown_set_count(object, "replicas", run->plan.num_replicas);
    time_breakdown_set_count(object, "devices", device_replicas_devices(run));
    time_breakdown_set_count(object, "micro_batch",
                             known ? job->micro_batch : 0);
    time_breakdown_set_count(object, "accumulation",
                             known ? job->accumulation : 0);
}

void time_breakdown_add(json_t *object, const struct run *run) {
    bool planned = run->plan.layout && run->job;
    double bytes = planned ? (double)encoding_bytes(run->job->wire,
                                                    run->plan.layout->elements)
                           : NAN;
    json_object_set_new(
        object, "parameters",
        planned ? json_integer((json_int_t)run->plan.layout->elements)
                : json_null());
    add_batch(object, run);
    time_breakdown_set_real(object, "wire_bytes", bytes);
    time_breakdown_set_real(object, "bytes_per_step",
                            planned ? bytes_per_step(run, bytes) : NAN);
    json_object_set_new(object, "seconds_per_step",
                        planned && run->end_step > run->plan.schedule.start
                            ? seconds_per_step(run)
                            : json_null());
}
