/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/report/summary.h"

#include "chief/plan/bound.h"
#include "chief/plan/link_rate.h"
#include "chief/report/causes.h"
#include "chief/report/measures.h"
#include "proto/base/time.h"
#include "proto/tensor/encoding.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const double WORTH_A_CHANGE = 0.1; /* of the trainers' time */

struct share {
    char cause[128];
    double seconds;
    char key[160]; /* what to change; "": none helps */
};

/* One trainer and its ps in this process. */
static bool is_alone(const struct run *run) {
    return run->ps_inside && !run->allreduce && run->roster.num_ranks == 1;
}

/* A larger batch has fewer rounds to wait for. With staleness nobody waits for
 * another trainer, if there is one, but each push is an update of its own. */
static struct share waiting(const struct run *run) {
    struct share share = {0};
    snprintf(share.cause, sizeof share.cause, "%s",
             run->allreduce  ? "waiting for other trainers (network, sums)"
             : is_alone(run) ? "waiting for weights (the ps of this process)"
                             : "waiting for weights (wire, ps and other "
                               "trainers)");
    bool staleness =
        run_synchronous(run) && !run->allreduce && run->roster.num_ranks > 1;
    snprintf(share.key, sizeof share.key, "%s (larger)%s", run->job->batch_key,
             staleness ? ", or strategy.staleness with a smaller rate" : "");
    return share;
}

/* No key makes a peer answer. */
static struct share silence(const struct run *run, double waited) {
    const struct run_lost *lost = &run->lost_time;
    struct share share = {.seconds = fmin(lost->seconds, waited)};
    snprintf(share.cause, sizeof share.cause,
             "waiting for %s, which was silent for %.1f s", lost->peer,
             lost->longest);
    return share;
}

/* The largest cause of lost time, its share, and the one key to change, if
 * there is one. */
static struct share largest_loss(const struct run *run, double *all) {
    double update = 0;
    struct share input = {.cause = "input", .key = "data.num_workers (larger)"};
    struct share weights = waiting(run);
    *all = 0;
    for (uint32_t r = 0; r < run->roster.num_ranks; r++) {
        const Capstan__Beat *beat = &run->trainers[r].beat;
        input.seconds += beat->input_s;
        weights.seconds += beat->wire_s;
        *all += beat->training_s;
    }
    for (uint32_t i = 0; i < run->roster.num_ps; i++)
        update += run->ps[i].update_s;
    struct share silent = silence(run, weights.seconds);
    weights.seconds -= silent.seconds;
    if (silent.seconds > weights.seconds && silent.seconds > input.seconds)
        return silent;
    double ps = run->allreduce || is_alone(run)
                    ? 0
                    : update / run_holding(run) * (double)run->roster.num_ranks;
    if (ps > weights.seconds / 2 && weights.seconds > input.seconds)
        return (struct share){.cause = "ps arithmetic",
                              .seconds = ps,
                              .key = "more ps in the cluster"};
    return weights.seconds > input.seconds ? weights : input;
}

/* Of the last epoch that ended here, else of all steps. */
static double run_loss(const struct run *run) {
    struct run_point none = {0};
    return isfinite(run->epoch_loss)
               ? run->epoch_loss
               : measures_mean_loss(none, measures_total(run));
}

static double training_seconds(const struct run *run) {
    return measures_total(run).seconds;
}

static double steps_per_second(const struct run *run) {
    double seconds = training_seconds(run);
    return seconds > 0 ? (double)(run->end_step - run->rounds.start) / seconds
                       : NAN;
}

/* NAN: the link's rate is not known. */
static double bound(const struct run *run) {
    if (!run->layout || !(run->link_gbits > 0))
        return NAN;
    bool synchronous = run_synchronous(run);
    struct bound_case given = {
        .num_trainers = run->roster.num_ranks,
        .num_ps = (uint32_t)run_holding(run),
        .bytes = (double)encoding_bytes(run->job->wire, run->layout->elements),
        .link_gbits = run->link_gbits,
        .synchronous = synchronous,
        .allreduce = run->allreduce,
        .twice =
            synchronous && !run->allreduce && run->job->gradient_clipping > 0,
    };
    return bound_steps_per_second(&given);
}

static void set_real(json_t *object, const char *key, double value) {
    json_object_set_new(object, key,
                        isfinite(value) ? json_real(value) : json_null());
}

json_t *summary_object(const struct run *run) {
    double seconds = training_seconds(run);
    uint64_t step = run->end_step;
    json_t *object = json_object();
    json_object_set_new(object, "exit", json_integer(run->status));
    json_object_set_new(object, "steps", json_integer((json_int_t)step));
    json_object_set_new(object, "rounds",
                        run_synchronous(run) ? json_integer((json_int_t)step)
                                             : json_null());
    set_real(object, "steps_per_second", steps_per_second(run));
    set_real(object, "examples_per_second",
             seconds > 0 ? (double)measures_total(run).samples / seconds : NAN);
    set_real(object, "train_loss", run_loss(run));
    set_real(object, "test_accuracy", run->accuracy);
    if (measures_checks_overflow(run)) {
        set_real(object, "loss_scale", measures_loss_scale(run));
        json_object_set_new(object, "skipped_steps",
                            json_integer((json_int_t)measures_skipped(run)));
    }
    set_real(object, "link_gbits", run->link_gbits > 0 ? run->link_gbits : NAN);
    if (run->series)
        set_real(object, "ps_link_gbits", link_rate_together(run));
    set_real(object, "bound_steps_per_second", bound(run));
    set_real(object, "share_of_bound", steps_per_second(run) / bound(run));
    causes_add(object, run);
    set_real(object, "wall_seconds",
             time_to_seconds(time_now() - run->opened + run->still));
    json_object_set_new(object, "checkpoint",
                        run->has_saved ? json_string(run->checkpoint)
                                       : json_null());
    return object;
}

static void print_json(const struct run *run) {
    json_t *object = summary_object(run);
    char *text = json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(9));
    if (text)
        printf("%s\n", text);
    fflush(stdout);
    free(text);
    json_decref(object);
}

/* A key to change is named when it is worth a change, and helps. In a run that
 * has failed trainers waited for what failed. */
static void say_lost_time(const struct run *run) {
    double all;
    if (run->status && !run->interrupted)
        return;
    struct share share = largest_loss(run, &all);
    double part = all > 0 ? share.seconds / all : 0;
    if (part >= WORTH_A_CHANGE)
        log_info(run->log, "largest cause of lost time: %s, %.0f %%%s%s",
                 share.cause, 100 * part, share.key[0] ? "; key: " : "",
                 share.key);
    else if (all > 0)
        log_info(run->log, "no cause of lost time stands out: %s, %.0f %%",
                 share.cause, 100 * part);
}

static void say_skipped(const struct run *run) {
    char scale[48] = "";
    if (measures_loss_scale(run) > 0)
        snprintf(scale, sizeof scale, "; loss scale %g",
                 measures_loss_scale(run));
    log_info(run->log,
             "steps skipped, as their gradients overflowed: %" PRIu64 "%s",
             measures_skipped(run), scale);
}

/* Of the first step of each trainer that was there from the run's first: before
 * anything was learnt. NAN: not known. */
static double first_loss(const struct run *run) {
    double sum = 0;
    uint32_t count = 0;
    for (uint32_t r = 0; r < run->roster.num_ranks; r++) {
        const struct run_trainer *trainer = &run->trainers[r];
        if (!(trainer->beat.first_loss > 0) || trainer->past_samples)
            continue;
        sum += trainer->beat.first_loss;
        count++;
    }
    return count && !run->has_restored ? sum / count : NAN;
}

/* Has the loss risen for good? By its mean over each tenth of the steps: it was
 * above that of the first step and has not come down again by a tenth of that,
 * or it ends half as high again as it has been. WORDS say so. */
static bool rises(const struct run *run, char *words, size_t size) {
    double first = first_loss(run), least = INFINITY, most = 0, last = NAN;
    for (int i = 0; i < RUN_TENTHS; i++) {
        double mean = measures_mean_loss((struct run_point){0}, run->tenths[i]);
        if (isnan(mean))
            continue;
        least = fmin(least, mean);
        most = fmax(most, mean);
        last = mean;
    }
    bool stays = most > 1.05 * first && last > 0.9 * first;
    snprintf(words, size,
             "train loss %.4g %s, %.4g at its highest, %.4g at the end",
             stays ? first : least, stays ? "at first" : "at its lowest", most,
             last);
    return stays || last > 1.5 * least;
}

/* A rate that fits a synchronous run may be too large for pushes that are not
 * averaged; one trainer's are as they are there. */
static void say_diverged(const struct run *run) {
    const struct schedule *schedule = &run->job->schedule;
    bool warms = schedule->type == SCHEDULE_WARMUP ||
                 schedule->type == SCHEDULE_WARMUP_DECAY;
    double rate = warms ? schedule->warmup_max_lr : schedule->lr;
    uint32_t trainers = run->roster.num_ranks;
    char words[160];
    bool risen = rises(run, words, sizeof words);
    if (run_synchronous(run) || trainers < 2 || !(risen || run->diverged))
        return;
    log_warning(run->log,
                "the run has diverged: %s. With staleness each push of the %u "
                "trainers is an update of its own, where a synchronous run "
                "averages them: try %s %g, which is %g over %u",
                run->diverged ? "the loss is no number" : words, trainers,
                warms ? "scheduler.params.warmup_max_lr"
                      : "optimizer.params.lr",
                rate / trainers, rate, trainers);
}

void summary_tell(const struct run *run, bool json) {
    uint64_t step = run->end_step;
    double seconds = training_seconds(run);
    char loss[32];
    progress_loss_text(loss, sizeof loss, run_loss(run));
    if (run->began && seconds > 0)
        log_info(run->log,
                 "%" PRIu64 " steps in %.1f s: %.1f steps/s, %.0f examples/s; "
                 "train %s%s",
                 step - run->rounds.start, seconds, steps_per_second(run),
                 (double)measures_total(run).samples / seconds, loss,
                 run->status ? "; not complete" : "");
    if (run->began)
        say_diverged(run);
    if (run->began && measures_checks_overflow(run))
        say_skipped(run);
    if (run->began && seconds > 0 && bound(run) > 0)
        log_info(run->log,
                 "%.0f %% of what the network allows: %.1f steps/s at %.3g "
                 "Gbit/s each way a host (%s)",
                 100 * steps_per_second(run) / bound(run), bound(run),
                 run->link_gbits,
                 run->link_measured ? "measured"
                 : run->together
                     ? "--link-gbits, as if each had a host of its own"
                     : "--link-gbits");
    if (run->began)
        say_lost_time(run);
    if (run->has_saved)
        log_info(run->log, "checkpoint: %s", run->checkpoint);
    if (json)
        print_json(run);
}
