/* SPDX-License-Identifier: Apache-2.0 */
/* The compute thread's life cycle: it reports data, layout and device, waits
 * for a plan, allocates memory, gets initial weights and takes steps. After the
 * last step it serves evaluations until it is cancelled. The mutex guards what
 * the communication thread sets (plan, exchange, requests, leaving, cancelled)
 * and what it reads (progress). All else belongs to the compute thread until
 * it is joined, except the layout, which all may read once it has been
 * reported. */
#include "worker/train/trainer.h"

#include "core/base/time.h"
#include "core/base/trace.h"
#include "proto/plan/encoding.h"
#include "worker/data/dataset.h"
#include "worker/data/features.h"
#include "worker/train/external.h"
#include "worker/train/trainer_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Device selection. Trainers that see the same device id are on one machine,
 * whatever the cluster calls their hosts: each reports its device ids to the
 * chief, which assigns each a place among the device's users. For devices
 * without ids the host names decide. */

/* If other ranks are lost, the device's work would wait for them forever. */
static bool is_aborted(void *context) {
    struct trainer *trainer = context;
    return trainer_is_cancelled(trainer) ||
           (trainer->exchange &&
            trainer->exchange->peer_lost(trainer->exchange, NULL));
}

/* Local ranks come from the cluster description or the launcher. */
static struct local_device_request make_request(struct trainer *trainer) {
    const struct job *job = trainer->settings.job;
    return (struct local_device_request){
        .kind = job->device,
        .threads = job->threads,
        .local_rank = trainer->settings.local_rank,
        .local_trainers = trainer->settings.local_trainers,
        .cuda = trainer->settings.cuda,
        .timeout = job->timeouts.step,
        .tf32 = job->tf32,
        .is_cancelled = is_aborted,
        .context = trainer,
    };
}

/* A launcher that gives local ranks means one process per device, so a trainer
 * takes one only; unless the launcher says that it is the only process. */
static bool may_use_all_devices(const struct trainer *trainer) {
    const struct trainer_settings *settings = &trainer->settings;
    return !settings->reported ||
           (settings->local_trainers == 1 && settings->local_rank == 0);
}

static uint32_t device_limit(const struct job *job) {
    return job->devices && job->devices < JOB_MAX_DEVICES ? job->devices
                                                          : JOB_MAX_DEVICES;
}

/* Reports the devices that it sees if the chief assigns them. */
static void trainer_device_report(struct trainer *trainer) {
    struct trainer_report report = {.event = TRAINER_DEVICES_LISTED,
                                    .replicas = 1};
    struct local_device_request request = make_request(trainer);
    char ids[JOB_MAX_DEVICES][DEVICE_ID];
    uint32_t usable, max_devices = device_limit(trainer->settings.job);
    if (!trainer->settings.requests_assignment)
        return;
    report.num_devices =
        local_device_list_ids(&request, ids, JOB_MAX_DEVICES, &usable);
    for (uint32_t i = 0; i < report.num_devices; i++)
        memcpy(report.devices[i].id, ids[i], DEVICE_ID);
    if (usable && may_use_all_devices(trainer))
        report.replicas = usable < max_devices ? usable : max_devices;
    trainer->devices_reported = report.num_devices > 0;
    event_queue_push(&trainer->event_queue, &report);
}

void trainer_assign_device(struct trainer *trainer, uint32_t sharer_index,
                           uint32_t trainers) {
    waiter_enter(&trainer->waiter);
    trainer->sharer_index = sharer_index;
    trainer->device_sharers = trainers;
    waiter_leave_changed(&trainer->waiter);
}

/* False: it was cancelled. */
static bool wait_assignment(struct trainer *trainer) {
    waiter_enter(&trainer->waiter);
    while (trainer->devices_reported && !trainer->device_sharers &&
           waiter_wait(&trainer->waiter, TIME_NEVER, NULL))
        ;
    bool go = !trainer->waiter.cancelled;
    waiter_leave(&trainer->waiter);
    return go;
}

/* Opens its devices once the assignment is known; none if it was cancelled
 * before. */
static enum status trainer_device_find(struct trainer *trainer,
                                       struct failure *why) {
    const struct trainer_settings *settings = &trainer->settings;
    struct local_device_request request = make_request(trainer);
    bool alone = request.local_trainers == 1 && request.local_rank == 0;
    if (!wait_assignment(trainer))
        return STATUS_OK;
    if (trainer->devices_reported) {
        alone = trainer->device_sharers == 1 && may_use_all_devices(trainer);
        request.local_trainers = trainer->device_sharers;
        if (!settings->reported)
            request.local_rank = trainer->sharer_index;
    }
    struct local_group_search search = {.request = &request,
                                        .alone = alone,
                                        .max_devices = settings->job->devices,
                                        .nccl = settings->nccl,
                                        .has_secret = settings->has_secret,
                                        .log = settings->log};
    return local_group_find(&trainer->local_group, &search, why);
}

static void trainer_device_describe_device(struct trainer_report *model_spec,
                                           const struct local_device *device) {
    struct trainer_device *reported =
        &model_spec->devices[model_spec->num_devices];
    if (!local_device_query_memory(device, &reported->free, reported->id))
        return;
    snprintf(reported->name, sizeof reported->name, "%s", device->name);
    model_spec->num_devices++;
}

/* Fills the device fields of MODEL_SPEC. */
static void trainer_device_declare(const struct trainer *trainer,
                                   struct trainer_report *model_spec) {
    const struct local_group *group = &trainer->local_group;
    model_spec->replicas = group->count;
    model_spec->adds_on_host = local_group_reduces_on_host(group);
    for (uint32_t i = 0; i < group->count; i++)
        trainer_device_describe_device(
            model_spec, &group->members[i].device_replica.executor.device);
}

/* Its first device and the model on it. */
static const struct executor *trainer_device_first(
    const struct trainer *trainer) {
    return &trainer->local_group.members[0].device_replica.executor;
}

bool trainer_has_device_memory(const struct trainer *trainer) {
    const struct device_ops *ops = trainer_device_first(trainer)->device.ops;
    return ops && ops->async; /* an external model's is the caller's */
}

uint32_t trainer_device_index(const struct trainer *trainer) {
    return trainer_device_first(trainer)->device.index;
}

/* Evaluations on the compute thread: its own part of the test set after a
 * planned round, the part of a snapshot that the chief requests, and the
 * requests that it serves after the loop. */

static enum status pack_scores(struct binary_scores *scores,
                               struct trainer_report *result,
                               struct failure *why) {
    if (!scores->count)
        return STATUS_OK;
    result->predicted_sum = scores->predicted_sum;
    result->target_sum = scores->target_sum;
    result->scores = binary_scores_pack(scores, &result->scores_bytes);
    return result->scores
               ? STATUS_OK
               : status_fail(why, FAILURE_NO_MEMORY,
                             "no memory for the scores of %zu samples",
                             scores->count);
}

/* Evaluates a part of the test set on the current weights. */
static enum status trainer_evaluation_evaluate(
    struct trainer *trainer, const struct trainer_evaluation_request *request,
    struct failure *why) {
    struct trainer_report result = {.event = TRAINER_EVALUATED,
                                    .id = request->id,
                                    .step = request->step,
                                    .part = request->part};
    uint64_t total = trainer->test ? trainer->test->count : 0;
    struct evaluation_range part = {
        .test = trainer->test,
        .first = total * request->part / request->parts,
        .end = total * (request->part + 1) / request->parts,
        .embedding = trainer->embedding,
        .clock = request->id ? 0 : trainer->clock,
        .snapshot = request->id};
    int64_t start = time_now();
    struct evaluation found = {0};
    enum status status = STATUS_OK;
    if (trainer->test)
        status = executor_evaluate(
            &trainer->local_group.members[0].device_replica.executor, &part,
            &found, why);
    if (!status)
        status = pack_scores(&found.scores, &result, why);
    binary_scores_clear(&found.scores);
    if (status || trainer->aborted)
        return status;
    result.loss_sum = found.loss_sum;
    result.correct = found.correct;
    result.regression =
        trainer->local_group.members[0].device_replica.executor.spec.regression;
    result.count = found.count;
    result.bad_lines = found.bad_lines;
    trainer_progress(trainer, &result.progress);
    event_queue_push(&trainer->event_queue, &result);
    trainer->evaluating += time_now() - start;
    return STATUS_OK;
}

/* After a planned round, without backup workers, the arena has that round's
 * weights, and no ps closes the next one, of rows too, before this trainer's
 * next push. */
static enum status trainer_evaluate_own(struct trainer *trainer,
                                        struct failure *why) {
    struct trainer_evaluation_request request = {
        .step = trainer->clock,
        .part = trainer->settings.rank,
        .parts = trainer->settings.num_ranks};
    return trainer_evaluation_evaluate(trainer, &request, why);
}

/* A snapshot overwrites the current weights, which are read again
 * afterwards. */
static enum status evaluate_snapshot(
    struct trainer *trainer, const struct trainer_evaluation_request *request,
    struct failure *why) {
    if (!trainer_wait_all_weights(trainer))
        return STATUS_OK;
    trainer->exchange->pull(trainer->exchange, trainer->clock, request->id);
    if (!trainer_wait_all_weights(trainer))
        return STATUS_OK;
    enum status status = trainer_evaluation_evaluate(trainer, request, why);
    if (status)
        return status;
    trainer->exchange->pull(trainer->exchange, trainer->clock, 0);
    trainer_wait_all_weights(trainer);
    return STATUS_OK;
}

static bool take_request(struct trainer *trainer,
                         struct trainer_evaluation_request *request) {
    waiter_enter(&trainer->waiter);
    bool evaluation_requested = trainer->evaluation_requested;
    *request = trainer->request;
    trainer->evaluation_requested = false;
    waiter_leave(&trainer->waiter);
    return evaluation_requested;
}

/* If an evaluation is requested: reads its snapshot into the arena, evaluates
 * the requested part, reports it, and reads the current weights again. */
static enum status trainer_evaluate_requested(struct trainer *trainer,
                                              struct failure *why) {
    struct trainer_evaluation_request request;
    return take_request(trainer, &request)
               ? evaluate_snapshot(trainer, &request, why)
               : STATUS_OK;
}

/* After the loop the trainer still takes part in evaluations. */
static enum status trainer_serve_requests(struct trainer *trainer,
                                          struct failure *why) {
    enum status status = STATUS_OK;
    while (!status) {
        waiter_enter(&trainer->waiter);
        while (!trainer->evaluation_requested && !trainer->serve_requested &&
               waiter_wait(&trainer->waiter, TIME_NEVER, NULL))
            ;
        bool cancelled = trainer->waiter.cancelled;
        trainer->serve_requested = false;
        waiter_leave(&trainer->waiter);
        if (cancelled)
            return STATUS_OK;
        trainer->exchange->serve(trainer->exchange);
        status = trainer_evaluate_requested(trainer, why);
    }
    return status;
}

static void look_up(void *context, uint64_t clock, bool early,
                    uint64_t snapshot, struct row_batch *rows) {
    struct trainer *trainer = context;
    trainer->exchange->lookup(trainer->exchange, clock, early, snapshot, rows);
}

static bool wait_rows(void *context) {
    struct trainer *trainer = context;
    struct trace *trace = trainer->exchange->trace;
    int64_t start = trace_begin(trace, trainer->clock);
    if (!trainer->exchange->wait_rows(trainer->exchange, TIME_NEVER))
        trainer->aborted = true;
    trace_end(trace, start, TRACE_WAIT, trainer->clock, 0);
    return !trainer->aborted;
}

static void push_rows(void *context, uint64_t clock, enum contribution kind,
                      struct row_batch *rows) {
    struct trainer *trainer = context;
    if (!trainer_push_rows(trainer, clock, kind, rows))
        trainer->aborted = true;
}

static bool settle_rows(void *context) {
    struct trainer *trainer = context;
    if (!trainer_settle_rows(trainer, TIME_NEVER))
        trainer->aborted = true;
    return !trainer->aborted;
}

static enum status open_embedding(struct trainer *trainer,
                                  struct failure *why) {
    const struct job *job = trainer->settings.job;
    struct executor *executor =
        &trainer->local_group.members[0].device_replica.executor;
    struct embedding_settings settings = {
        .layout = trainer->plan->layout,
        .spec = &executor->spec,
        .device = &executor->device,
        .max_batch = job->micro_batch > EVALUATION_BATCH ? job->micro_batch
                                                         : EVALUATION_BATCH,
        .micro_batches = job->accumulation,
        .source = {trainer, look_up, wait_rows, push_rows, settle_rows}};
    if (trainer->local_group.count > 1)
        return status_fail(why, FAILURE_JOB_UNFIT,
                           "the model has tables: a trainer computes it on one "
                           "device, and here it has %u; set \"devices\": 1",
                           trainer->local_group.count);
    return embedding_open(&trainer->embedding, &settings, why);
}

/* Model memory is allocated after the plan has arrived, as the chief may reject
 * its size. */
static enum status trainer_open_model(struct trainer *trainer,
                                      struct failure *why) {
    struct exchange *exchange = trainer->exchange;
    struct local_group_model model = {
        .count = plan_replicas(trainer->plan, trainer->settings.rank),
        .job = trainer->settings.job,
        .layout = trainer->layout,
        .features = trainer->train->feature_set,
        .pixels =
            trainer->train->pixels && (!trainer->test || trainer->test->pixels),
        .arena = &trainer->arena,
        .evaluates = trainer->test != NULL,
        .resident = exchange->resident,
    };
    enum status status = local_group_open(&trainer->local_group, &model, why);
    if (!status && trainer->layout->num_tables)
        status = open_embedding(trainer, why);
    if (status || !exchange->resident)
        return status;
    struct reducer_device_arena place =
        device_transfer_arena(&trainer_device_first(trainer)->device_transfer);
    return exchange->begin(exchange, &place, why);
}

static uint32_t num_data_shares(const struct trainer *trainer) {
    return trainer->settings.num_ranks - trainer->settings.num_beyond;
}

/* The rank whose share this trainer reads: its own, if it has one. */
static uint32_t data_share_of(const struct trainer *trainer) {
    return trainer->settings.rank % num_data_shares(trainer);
}

/* Its number among the trainers that read this share. */
static uint32_t share_turn(const struct trainer *trainer) {
    return trainer->settings.rank / num_data_shares(trainer);
}

/* The sampler options of this trainer's first replica. */
static struct sampler_options sampler_settings(const struct trainer *trainer) {
    const struct job *job = trainer->settings.job;
    return (struct sampler_options){
        .rank = plan_first_replica(trainer->plan, data_share_of(trainer)),
        .num_ranks =
            plan_first_replica(trainer->plan, num_data_shares(trainer)),
        .micro_batch = job->micro_batch,
        .seed = job->seed,
        .shuffle = job->data.shuffle,
        .drop_last = job->data.drop_last,
        .epoch_batches = trainer_is_synchronous(trainer)
                             ? trainer->plan->run_schedule.epoch_batches
                             : 0,
        .num_devices = plan_replicas(trainer->plan, trainer->settings.rank),
    };
}

bool trainer_wait_exchange(struct trainer *trainer, int64_t until) {
    waiter_enter(&trainer->waiter);
    while (!trainer->exchange && waiter_wait(&trainer->waiter, until, NULL))
        ;
    bool here = trainer->exchange && !trainer->waiter.cancelled;
    waiter_leave(&trainer->waiter);
    return here;
}

/* Initial weights: computed from the seed if the ps compute the same, rounded
 * to the wire format; else read. */
static bool load_first_weights(struct trainer *trainer) {
    const struct job *job = trainer->settings.job;
    const struct layout *layout = trainer->layout;
    if (trainer->exchange->fetch(trainer->exchange, trainer->from - 1))
        return trainer_wait_all_weights(trainer);
    for (uint32_t b = 0; b < layout->num_blocks; b++) {
        const struct block *block = &layout->blocks[b];
        float *weights =
            trainer->arena.weight_of[block->parameter] + block->offset;
        layout_init_block(layout, b, job->seed, weights);
        encoding_round(job->wire, weights, block->elements);
    }
    return true;
}

/* The micro batches of a replica by which a trainer is ahead of the first one
 * that reads its share: half of the share, a quarter, three quarters, an
 * eighth (van der Corput's sequence). So they read different samples. */
static uint64_t batches_ahead(const struct trainer *trainer) {
    const struct job *job = trainer->settings.job;
    const struct sampler_options options = sampler_settings(trainer);
    bool records =
        job->data.format != JOB_IDX; /* they are those of the share */
    double place = 0, part = 0.5;
    for (uint32_t turn = share_turn(trainer); turn; turn >>= 1, part /= 2)
        place += turn & 1 ? part : 0;
    uint64_t batches = run_schedule_share_batches(
        trainer->train->count,
        records ? options.num_devices : options.num_ranks, job->micro_batch,
        job->data.drop_last);
    return (uint64_t)(place * (double)batches);
}

/* The number of the micro batch with which push CLOCK begins, on each replica.
 */
static uint64_t first_micro_batch(const struct trainer *trainer,
                                  uint64_t clock) {
    const struct run_schedule *run_schedule = &trainer->plan->run_schedule;
    uint64_t steps = clock - 1;
    if (trainer_is_synchronous(trainer))
        steps = steps - run_schedule->start + run_schedule->start_batch;
    return steps * trainer->settings.job->accumulation + batches_ahead(trainer);
}

/* True if there is a step after trainer->clock. */
static bool has_next_step(struct trainer *trainer) {
    uint64_t total = trainer->plan->run_schedule.total;
    if (trainer->aborted || trainer_is_leaving(trainer))
        return false;
    if (trainer_is_synchronous(trainer))
        return trainer->clock < total;
    uint32_t last = trainer->layout->num_parameters - 1;
    return trainer_wait_weights(trainer, last) &&
           trainer->exchange->global_step(trainer->exchange) < total &&
           trainer->plan->run_schedule.start < total;
}

/* With staleness the answer to a push tells its step of the run. */
static void count_answered(struct trainer *trainer) {
    if (!trainer_is_synchronous(trainer) && trainer->clock >= trainer->from &&
        !trainer->aborted)
        trainer_step_count(trainer,
                           trainer->exchange->global_step(trainer->exchange));
}

/* ROUND has closed without this trainer's steps since `clock`: the next one is
 * of the round behind it, with the samples of that. */
static enum status skip_to(struct trainer *trainer, uint64_t round,
                           struct failure *why) {
    const struct trainer_settings *settings = &trainer->settings;
    enum status status = STATUS_OK;
    while (!status && trainer->clock < round &&
           round < trainer->plan->run_schedule.total &&
           !trainer_is_leaving(trainer)) {
        status = local_group_skip(&trainer->local_group,
                                  settings->job->accumulation, why);
        trainer->clock++;
    }
    trainer->clock = round;
    if (!status)
        trainer_step_count(trainer, round);
    return status;
}

uint64_t trainer_count_missed(struct trainer *trainer) {
    bool late;
    uint64_t round = trainer->exchange->round(trainer->exchange, &late);
    uint64_t missed = round > trainer->clock ? round - trainer->clock : 0;
    waiter_enter(&trainer->waiter);
    trainer->progress.late += late;
    trainer->progress.missed += missed;
    if (missed)
        trainer->progress.clock = round;
    waiter_leave(&trainer->waiter);
    return missed;
}

static enum status catch_up(struct trainer *trainer, struct failure *why) {
    if (!trainer->settings.job->backup_workers || trainer->aborted ||
        !trainer_wait_all_weights(trainer))
        return STATUS_OK;
    uint64_t missed = trainer_count_missed(trainer);
    return missed ? skip_to(trainer, trainer->clock + missed, why) : STATUS_OK;
}

static enum status train(struct trainer *trainer, struct failure *why) {
    const struct job *job = trainer->settings.job;
    enum status status = STATUS_OK;
    trainer->clock = trainer->from - 1;
    trainer->started_at = time_now();
    trainer->waited = trainer->exchange->waited(trainer->exchange);
    while (!status && !(status = catch_up(trainer, why)) &&
           has_next_step(trainer)) {
        count_answered(trainer);
        trainer->clock++;
        status = trainer_step_run(trainer, why);
        if (!status && trainer_is_synchronous(trainer) &&
            !job->backup_workers &&
            run_schedule_evaluates(&trainer->plan->run_schedule,
                                   trainer->clock) &&
            trainer_wait_all_weights(trainer))
            status = trainer_evaluate_own(trainer, why);
        if (!status)
            status = trainer_evaluate_requested(trainer, why);
    }
    struct loss_scaler now;
    bool answered =
        !status && trainer_wait_all_weights(trainer) &&
        (!trainer->embedding || embedding_settle(trainer->embedding));
    if (answered)
        count_answered(trainer);
    if (answered && grad_scaler_checks_gradients(job))
        (void)trainer_step_scale(trainer, &now);
    return status ? status
                  : trainer->exchange->download_weights(trainer->exchange, why);
}

static bool trainer_data_cancelled(void *context) {
    return trainer_is_cancelled(context);
}

/* A share's records are counted if epochs, or its place in a share that it does
 * not read alone, need it; a test set is cut by number. */
static enum status load_data(struct trainer *trainer, struct failure *why) {
    const struct job *job = trainer->settings.job;
    const struct model *model = model_find(&job->model);
    const struct job_data *data = &job->data;
    struct dataset_options train = {
        .job = job,
        .files = &data->train,
        .key = "data.train",
        .rank = data_share_of(trainer),
        .num_ranks = num_data_shares(trainer),
        .count =
            share_turn(trainer) || (!job->has_steps && !job->steps_per_epoch),
        .is_cancelled = trainer_data_cancelled,
        .cancel_context = trainer,
        .log = trainer->settings.log};
    struct dataset_options test = {.job = job,
                                   .files = &data->test,
                                   .key = "data.test",
                                   .num_ranks = 1,
                                   .count = true,
                                   .is_cancelled = trainer_data_cancelled,
                                   .cancel_context = trainer,
                                   .log = trainer->settings.log};
    enum status status = dataset_open(&trainer->train, &train, why);
    if (!status && data->test.paths[0])
        status = dataset_open(&trainer->test, &test, why);
    if (!status && trainer->test)
        status = dataset_compare_columns(trainer->train, trainer->test,
                                         "data.test", why);
    if (!status)
        status =
            model->check_data(&job->model, trainer->train, &data->train, why);
    if (!status && trainer->test)
        status =
            model->check_data(&job->model, trainer->test, &data->test, why);
    return status;
}

static void declare(struct trainer *trainer) {
    bool records = trainer->settings.job->data.format != JOB_IDX;
    const struct features *features = trainer->train->feature_set;
    struct batch_spec spec;
    if (features)
        model_inputs(trainer->settings.job, features, &spec);
    struct trainer_report model_spec = {
        .event = TRAINER_DECLARED,
        .train_samples = records ? 0 : trainer->train->count,
        .share_samples = records ? trainer->train->count : 0,
        .features = features ? features_digest(features, &spec) : 0,
        .features_unplaced = features ? features_digest(features, NULL) : 0,
        .uncounted = !trainer->train->count,
        .test_samples = trainer->test ? trainer->test->count : 0,
    };
    trainer_device_declare(trainer, &model_spec);
    event_queue_push(&trainer->event_queue, &model_spec);
}

/* Devices are reported first: other trainers wait for the assignment, none for
 * the data. */
static enum status trainer_prepare(struct trainer *trainer,
                                   struct failure *why) {
    trainer_device_report(trainer);
    enum status status = load_data(trainer, why);
    if (!status)
        status = model_layout(&trainer->layout, &trainer->settings.job->model,
                              trainer->train->feature_set, why);
    if (!status)
        status = trainer_device_find(trainer, why);
    if (!status && !trainer_is_cancelled(trainer))
        declare(trainer);
    return status;
}

static enum status open_loader(struct trainer *trainer, struct failure *why) {
    struct sampler_options options = sampler_settings(trainer);
    return local_group_load(&trainer->local_group, trainer->train, options,
                            first_micro_batch(trainer, trainer->from),
                            &trainer->settings.job->data, why);
}

static enum status trainer_run(struct trainer *trainer, struct failure *why) {
    enum status status = trainer_prepare(trainer, why);
    if (status || !trainer_wait_exchange(trainer, TIME_NEVER))
        return status;
    status = trainer_open_model(trainer, why);
    if (status || !load_first_weights(trainer))
        return status;
    status = open_loader(trainer, why);
    if (!status)
        status = train(trainer, why);
    if (status)
        return status;
    struct trainer_report finished = {.event = TRAINER_FINISHED,
                                      .clock = trainer->clock};
    if (!trainer->aborted)
        event_queue_push(&trainer->event_queue, &finished);
    return trainer_serve_requests(trainer, why);
}

static void *trainer_run_thread(void *argument) {
    struct trainer *trainer = argument;
    struct trainer_report failed = {.event = TRAINER_FAILED};
    struct failure lost;
    time_slice_set(0);
    if (!trainer_run(trainer, &failed.why))
        return NULL;
    waiter_enter(&trainer->waiter);
    struct exchange *exchange = trainer->exchange;
    waiter_leave(&trainer->waiter);
    if (exchange && exchange->peer_lost(exchange, &lost))
        failed.why = lost; /* the lost peer is the cause of the failed wait */
    event_queue_push(&trainer->event_queue, &failed);
    return NULL;
}

enum status trainer_open(struct trainer **out,
                         const struct trainer_settings *settings,
                         struct failure *why) {
    struct trainer *trainer = calloc(1, sizeof *trainer);
    if (!trainer)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for a trainer");
    enum status status =
        event_queue_open(&trainer->event_queue, trainer->report_slots,
                         sizeof *trainer->report_slots, TRAINER_REPORTS, why);
    if (status) {
        free(trainer);
        return status;
    }
    status =
        event_queue_open(&trainer->points, trainer->point_slots,
                         sizeof *trainer->point_slots, TRAINER_POINTS, why);
    if (status) {
        event_queue_close(&trainer->event_queue);
        free(trainer);
        return status;
    }
    trainer->settings = *settings;
    trainer->grad_scaler =
        (struct grad_scaler){.job = settings->job,
                             .log = settings->log,
                             .logs_changes = !settings->rank};
    waiter_open(&trainer->waiter);
    int error = 0;
    if (!settings->external)
        error =
            pthread_create(&trainer->thread, NULL, trainer_run_thread, trainer);
    if (!error) {
        *out = trainer;
        if (settings->external)
            external_attach(settings->external, trainer);
        return STATUS_OK;
    }
    event_queue_close(&trainer->event_queue);
    event_queue_close(&trainer->points);
    free(trainer);
    return status_errno(why, FAILURE_SYSTEM_REFUSED, error,
                        "cannot start the compute thread");
}

void trainer_close(struct trainer **where) {
    struct arena_kept kept = {0};
    trainer_close_and_keep(where, &kept);
    arena_kept_close(&kept);
}

void trainer_close_and_keep(struct trainer **where, struct arena_kept *kept) {
    struct trainer *trainer = *where;
    *where = NULL;
    if (!trainer)
        return;
    waiter_enter(&trainer->waiter);
    trainer->waiter.cancelled = true;
    if (trainer->exchange)
        trainer->exchange->cancel(trainer->exchange);
    waiter_leave_changed(&trainer->waiter);
    event_queue_cancel(&trainer->event_queue);
    event_queue_cancel(&trainer->points);
    if (trainer->settings.external)
        external_detach(trainer->settings.external);
    else
        pthread_join(trainer->thread, NULL);
    struct trainer_report left;
    while (event_queue_pop(&trainer->event_queue, &left))
        free(left.scores);
    if (trainer->exchange)
        trainer->exchange->end(trainer->exchange);
    embedding_close(&trainer->embedding);
    local_group_close(&trainer->local_group);
    dataset_free(&trainer->train);
    dataset_free(&trainer->test);
    layout_free(&trainer->layout);
    arena_keep(&trainer->arena, kept);
    waiter_close(&trainer->waiter);
    event_queue_close(&trainer->event_queue);
    event_queue_close(&trainer->points);
    free(trainer);
}

int trainer_descriptor(const struct trainer *trainer) {
    return trainer->event_queue.descriptor;
}

bool trainer_next_report(struct trainer *trainer,
                         struct trainer_report *report) {
    return event_queue_pop(&trainer->event_queue, report);
}

bool trainer_next_point(struct trainer *trainer, struct trainer_point *point) {
    return event_queue_pop(&trainer->points, point);
}

const struct layout *trainer_layout(const struct trainer *trainer) {
    return trainer->layout;
}

enum status trainer_allocate(struct trainer *trainer, bool padded,
                             struct failure *why) {
    struct arena_kept none = {0};
    struct arena_kept *kept = trainer->settings.kept;
    return trainer->arena.weights
               ? STATUS_OK
               : arena_open_kept(&trainer->arena, trainer->layout, padded,
                                 kept ? kept : &none, why);
}

void trainer_arenas(struct trainer *trainer, struct buffer **weights,
                    struct buffer **gradients, const uint64_t **offsets) {
    *weights = trainer->arena.weights;
    *gradients = trainer->arena.gradients;
    *offsets = trainer->arena.offsets;
}

float *const *trainer_weights(const struct trainer *trainer) {
    return trainer->arena.weight_of;
}

void trainer_begin(struct trainer *trainer, struct exchange *exchange,
                   const struct plan *plan, uint64_t from) {
    waiter_enter(&trainer->waiter);
    trainer->plan = plan;
    trainer->from = from;
    trainer->exchange = exchange;
    waiter_leave_changed(&trainer->waiter);
}

void trainer_request_evaluation(
    struct trainer *trainer, const struct trainer_evaluation_request *request) {
    waiter_enter(&trainer->waiter);
    trainer->evaluation_requested = true;
    trainer->request = *request;
    waiter_leave_changed(&trainer->waiter);
}

void trainer_request_serve(struct trainer *trainer) {
    waiter_enter(&trainer->waiter);
    trainer->serve_requested = true;
    waiter_leave_changed(&trainer->waiter);
}

void trainer_leave(struct trainer *trainer) {
    waiter_enter(&trainer->waiter);
    trainer->leaving = true;
    waiter_leave_changed(&trainer->waiter);
}
