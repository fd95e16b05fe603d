#include "chief/measures.h"

#include "chief/bound.h"
#include "chief/causes.h"
#include "chief/link_rate.h"
#include "proto/base/time.h"
#include "proto/math/encoding.h"
#include "proto/math/schedule.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int64_t SHOW_EVERY = TIME_S;
static const double WORTH_A_CHANGE = 0.1; /* of the trainers' time */

static void note_reached(struct run *run) {
    uint64_t step = run_step(run);
    if (step > run->reached)
        run->reached = step;
}

void measures_beat(struct run *run, const struct roster_slot *slot,
                   const Capstan__Beat *beat, int64_t now) {
    struct run_trainer *trainer = &run->trainers[slot->rank];
    if (!trainer->viewed)
        return;
    if (beat->clock > trainer->beat.clock) {
        trainer->moved = now;
        run->began = true;
    }
    uint64_t clock = trainer->beat.clock;
    trainer->beat = *beat;
    trainer->beat.waiting_for = (char *)protobuf_c_empty_string;
    trainer->beat.n_memory = 0;
    if (!beat->clock)
        trainer->beat.clock = clock; /* it has not begun */
    note_reached(run);
}

void measures_step(struct run *run, uint64_t step) {
    if (run_synchronous(run) || step <= run->told || step <= run->rounds.start)
        return;
    run->told = step;
    run->began = true;
    note_reached(run);
}

/* Losses and samples of all trainers since the start. */
static struct run_point total(const struct run *run) {
    struct run_point point = {0};
    for (uint32_t r = 0; r < run->roster.num_ranks; r++) {
        const struct run_trainer *trainer = &run->trainers[r];
        point.loss += trainer->past_loss + trainer->beat.loss_sum;
        point.samples += trainer->past_samples + trainer->beat.samples;
        if (trainer->beat.training_s > point.seconds)
            point.seconds = trainer->beat.training_s;
    }
    return point;
}

/* The same when each was at the step it evaluated: the same in every run of a
 * synchronous job. */
static struct run_point total_marked(const struct run *run) {
    struct run_point point = {0};
    for (uint32_t r = 0; r < run->roster.num_ranks; r++) {
        const struct run_trainer *trainer = &run->trainers[r];
        point.loss += trainer->mark.loss;
        point.samples += trainer->mark.samples;
        if (trainer->mark.seconds > point.seconds)
            point.seconds = trainer->mark.seconds;
    }
    return point;
}

static double mean_loss(struct run_point from, struct run_point to) {
    return to.samples > from.samples
               ? (to.loss - from.loss) / (double)(to.samples - from.samples)
               : NAN;
}

static double rate(struct run_point from, struct run_point to) {
    double seconds = to.seconds - from.seconds;
    return seconds > 0 ? (double)(to.samples - from.samples) / seconds : NAN;
}

static double seconds_left(const struct run *run, uint64_t step) {
    double seconds = total(run).seconds;
    uint64_t taken = step - run->rounds.start;
    return taken && seconds > 0
               ? seconds / (double)taken * (double)(run->rounds.total - step)
               : NAN;
}

static struct progress_numbers numbers(const struct run *run, uint64_t step) {
    uint64_t epochs = run->job->has_steps ? 0 : run->job->epochs;
    uint64_t epoch = rounds_epochs(&run->rounds, step) + 1;
    if (step > run->rounds.total)
        step = run->rounds.total;
    return (struct progress_numbers){
        .step = step,
        .total_steps = run->rounds.total,
        .epoch = epochs && epoch > epochs ? epochs : epoch,
        .epochs = epochs,
        .loss = run->shown_loss,
        .accuracy = NAN,
        .examples_per_second = run->shown_rate,
        .seconds_left = seconds_left(run, step),
    };
}

static void scalar(struct run *run, const char *tag, uint64_t step,
                   double value) {
    struct failure why;
    if (!run->events || !isfinite(value))
        return;
    if (!events_scalar(run->events, tag, step, value, &why))
        return;
    log_warning(run->log, "no more TensorBoard events: %s", why.text);
    events_close(&run->events);
}

static uint64_t smaller(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

/* Are steps whose gradients overflow skipped? */
static bool checks_overflow(const struct run *run) {
    return run->job &&
           (run->job->fp16.enabled ||
            (run->job->bf16.enabled && run->job->bf16.check_overflow));
}

static uint64_t skipped(const struct run *run) {
    uint64_t most = 0;
    for (uint32_t r = 0; r < run->roster.num_ranks; r++)
        if (run->trainers[r].beat.skipped > most)
            most = run->trainers[r].beat.skipped;
    return most;
}

/* As the trainer that is furthest has read it; NAN where there is none. */
static double loss_scale(const struct run *run) {
    double scale = NAN;
    uint64_t furthest = 0;
    for (uint32_t r = 0; r < run->roster.num_ranks; r++) {
        const Capstan__Beat *beat = &run->trainers[r].beat;
        if (beat->loss_scale > 0 && beat->clock >= furthest) {
            furthest = beat->clock;
            scale = beat->loss_scale;
        }
    }
    return scale;
}

static double current_rate(const struct run *run, uint64_t step) {
    struct schedule schedule = run->job->schedule;
    if (run->job->scale_lr)
        schedule_scale(&schedule, run->num_replicas);
    step -= smaller(step, skipped(run));
    return schedule_rate(&schedule, step ? step : 1);
}

/* Shares of the trainers' time since the start. */
static void write_shares(struct run *run, uint64_t step) {
    double input = 0, compute = 0, waiting = 0, all = 0;
    for (uint32_t r = 0; r < run->roster.num_ranks; r++) {
        const Capstan__Beat *beat = &run->trainers[r].beat;
        input += beat->input_s;
        compute += beat->compute_s;
        waiting += beat->wire_s;
        all += beat->training_s;
    }
    if (all <= 0)
        return;
    scalar(run, "time/input", step, input / all);
    scalar(run, "time/compute", step, compute / all);
    scalar(run, "time/waiting_for_weights", step, waiting / all);
}

static void write_metrics(struct run *run, uint64_t step) {
    struct failure why;
    scalar(run, "train/loss", step, run->shown_loss);
    scalar(run, "train/examples_per_second", step, run->shown_rate);
    scalar(run, "train/learning_rate", step, current_rate(run, step));
    scalar(run, "train/loss_scale", step, loss_scale(run));
    if (checks_overflow(run))
        scalar(run, "train/skipped_steps", step, (double)skipped(run));
    write_shares(run, step);
    if (run->events && events_flush(run->events, &why))
        log_warning(run->log, "%s", why.text);
}

void measures_show(struct run *run, int64_t now) {
    if (run->phase != RUN_TRAINING || !run->began)
        return;
    uint64_t step = run_step(run);
    struct run_point point = total(run);
    bool turn = now - run->shown_at >= SHOW_EVERY;
    if (turn)
        run->shown_from = run->shown;
    if (point.samples > run->shown_from.samples) {
        run->shown_loss = mean_loss(run->shown_from, point);
        run->shown_rate = rate(run->shown_from, point);
    }
    if (turn) {
        run->shown = point;
        run->shown_at = now;
        write_metrics(run, step);
    }
    struct progress_numbers shown = numbers(run, step);
    progress_update(&run->progress, &shown, now);
}

void measures_epoch(struct run *run, uint64_t step,
                    const struct part_result *result) {
    struct run_point point = total_marked(run);
    struct progress_numbers shown = numbers(run, step);
    uint64_t epochs = rounds_epochs(&run->rounds, step);
    bool whole = epochs > run->epochs_ended;
    double loss = mean_loss(run->epoch_start, point);
    run->evaluated = step;
    if (result->count) {
        run->accuracy = (double)result->correct / (double)result->count;
        run->test_loss = result->loss_sum / (double)result->count;
        scalar(run, "test/accuracy", step, run->accuracy);
        scalar(run, "test/loss", step, run->test_loss);
    }
    if (whole && isfinite(loss)) {
        run->epoch_loss = loss;
        shown.examples_per_second = rate(run->epoch_start, point);
        run->epoch_start = point;
    }
    run->epochs_ended = epochs;
    shown.epoch = epochs ? epochs : 1;
    shown.loss = isfinite(loss) ? loss : run->shown_loss;
    shown.accuracy = result->count ? run->accuracy : NAN;
    shown.share = (double)result->count / (double)run->test_samples;
    progress_epoch(&run->progress, &shown);
}

struct share {
    const char *cause;
    double seconds;
    char key[160]; /* what to change */
};

/* One trainer and its ps in this process. */
static bool is_alone(const struct run *run) {
    return run->ps_inside && !run->allreduce && run->roster.num_ranks == 1;
}

/* A larger batch has fewer rounds to wait for. With staleness nobody waits for
 * another trainer, if there is one, but each push is an update of its own. */
static struct share waiting(const struct run *run) {
    struct share share = {
        .cause = run->allreduce ? "waiting for other trainers (network, sums)"
                 : is_alone(run)
                     ? "waiting for weights (the ps of this process)"
                     : "waiting for weights (wire, ps and other trainers)"};
    bool staleness =
        run_synchronous(run) && !run->allreduce && run->roster.num_ranks > 1;
    snprintf(share.key, sizeof share.key, "%s (larger)%s", run->job->batch_key,
             staleness ? ", or strategy.staleness with a smaller rate" : "");
    return share;
}

/* The largest cause of lost time, its share, and the one key to change. */
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
    return isfinite(run->epoch_loss) ? run->epoch_loss
                                     : mean_loss(none, total(run));
}

static double training_seconds(const struct run *run) {
    return total(run).seconds;
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

json_t *measures_object(const struct run *run) {
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
             seconds > 0 ? (double)total(run).samples / seconds : NAN);
    set_real(object, "train_loss", run_loss(run));
    set_real(object, "test_accuracy", run->accuracy);
    if (checks_overflow(run)) {
        set_real(object, "loss_scale", loss_scale(run));
        json_object_set_new(object, "skipped_steps",
                            json_integer((json_int_t)skipped(run)));
    }
    set_real(object, "link_gbits", run->link_gbits > 0 ? run->link_gbits : NAN);
    if (run->series)
        set_real(object, "ps_link_gbits", link_rate_together(run));
    set_real(object, "bound_steps_per_second", bound(run));
    set_real(object, "share_of_bound", steps_per_second(run) / bound(run));
    causes_add(object, run);
    set_real(object, "wall_seconds", time_to_seconds(time_now() - run->opened));
    json_object_set_new(object, "checkpoint",
                        run->has_saved ? json_string(run->checkpoint)
                                       : json_null());
    return object;
}

static void print_json(const struct run *run) {
    json_t *object = measures_object(run);
    char *text = json_dumps(object, JSON_COMPACT | JSON_REAL_PRECISION(9));
    if (text)
        printf("%s\n", text);
    fflush(stdout);
    free(text);
    json_decref(object);
}

/* A key to change is named when it is worth a change. In a run that has failed
 * trainers waited for what failed. */
static void say_lost_time(const struct run *run) {
    double all;
    if (run->status && !run->interrupted)
        return;
    struct share share = largest_loss(run, &all);
    double part = all > 0 ? share.seconds / all : 0;
    if (part >= WORTH_A_CHANGE)
        log_info(run->log, "largest cause of lost time: %s, %.0f %%; key: %s",
                 share.cause, 100 * part, share.key);
    else if (all > 0)
        log_info(run->log, "no cause of lost time stands out: %s, %.0f %%",
                 share.cause, 100 * part);
}

static void say_skipped(const struct run *run) {
    char scale[48] = "";
    if (loss_scale(run) > 0)
        snprintf(scale, sizeof scale, "; loss scale %g", loss_scale(run));
    log_info(run->log,
             "steps skipped, as their gradients overflowed: %" PRIu64 "%s",
             skipped(run), scale);
}

void measures_summary(struct run *run, bool json) {
    uint64_t step = run->end_step;
    double seconds = training_seconds(run);
    char loss[32];
    progress_loss_text(loss, sizeof loss, run_loss(run));
    if (run->began && seconds > 0)
        log_info(run->log,
                 "%" PRIu64 " steps in %.1f s: %.1f steps/s, %.0f examples/s; "
                 "train %s%s",
                 step - run->rounds.start, seconds, steps_per_second(run),
                 (double)total(run).samples / seconds, loss,
                 run->status ? "; not complete" : "");
    if (run->began && checks_overflow(run))
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
