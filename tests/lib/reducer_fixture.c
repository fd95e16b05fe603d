/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/reducer_fixture.h"

#include "core/base/time.h"
#include "core/tensor/philox.h"
#include "core/tensor/schedule.h"
#include "tests/gpu/stream_collective.h"
#include "tests/lib/test.h"

#include <math.h>
#include <time.h>

const struct optimizer reducer_fixture_sgd = {.type = OPTIMIZER_SGD};
const struct optimizer reducer_fixture_adam = {
    .type = OPTIMIZER_ADAM, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};

/* Where block B begins in a model. */
static uint64_t place_of(const struct reducer_fixture *fixture, uint32_t b) {
    uint64_t place = 0;
    for (uint32_t before = 0; before < b; before++)
        place += fixture->layout->blocks[before].elements;
    return place;
}

static enum status load(void *context, uint32_t b, float *const *tensors,
                        uint64_t *rule_step, struct failure *why) {
    struct reducer_fixture *fixture = context;
    size_t bytes = fixture->layout->blocks[b].elements * sizeof(float);
    if (fixture->loaded.fail_load == b + 1)
        return status_fail(why, FAILURE_IO_ERROR, "the disk is gone");
    *rule_step =
        fixture->loaded.rule_steps[fixture->layout->blocks[b].parameter];
    for (unsigned t = 0; t <= rule_slots(&fixture->job.optimizer); t++)
        memcpy(tensors[t], fixture->loaded.tensors[t] + place_of(fixture, b),
               bytes);
    return STATUS_OK;
}

static void note(void *context, const struct loss_scaler *scaler) {
    struct reducer_fixture *fixture = context;
    fixture->scaler = *scaler;
}

static enum status save(void *context, uint64_t round, uint32_t b,
                        const float *const *tensors, uint64_t rule_step,
                        struct failure *why) {
    struct reducer_fixture *fixture = context;
    struct reducer_model *saved = &fixture->saved;
    size_t bytes = fixture->layout->blocks[b].elements * sizeof(float);
    if (saved->fail_save == b + 1)
        return status_fail(why, FAILURE_IO_ERROR, "the disk is full");
    for (unsigned t = 0; t <= rule_slots(&fixture->job.optimizer); t++)
        memcpy(saved->tensors[t] + place_of(fixture, b), tensors[t], bytes);
    saved->rule_steps[fixture->layout->blocks[b].parameter] = rule_step;
    saved->out_of_order |= saved->saved != b;
    saved->saved = (b + 1) % fixture->layout->num_blocks;
    saved->saves += saved->saved == 0;
    saved->round = round;
    if (saved->saved == 0)
        sem_post(&fixture->handed_over);
    return STATUS_OK;
}

static void after_round(void *context, uint64_t round) {
    struct reducer_fixture *fixture = context;
    if (fixture->pause)
        fixture->pause(fixture, round);
    if (round == fixture->rounds)
        sem_post(&fixture->finished);
}

void reducer_model_open(struct reducer_model *model,
                        const struct reducer_fixture *fixture) {
    *model = (struct reducer_model){0};
    for (unsigned t = 0; t < REDUCER_FIXTURE_TENSORS; t++)
        model->tensors[t] = calloc(fixture->layout->elements, sizeof(float));
}

void reducer_model_close(struct reducer_model *model) {
    for (unsigned t = 0; t < REDUCER_FIXTURE_TENSORS; t++)
        free(model->tensors[t]);
    *model = (struct reducer_model){0};
}

void reducer_fixture_open(struct reducer_fixture *fixture, uint32_t ranks,
                          const uint32_t *elements, uint32_t count,
                          const struct optimizer *rule, double rate) {
    struct parameter parameters[REDUCER_FIXTURE_PARAMETERS] = {0};
    assert_true(count <= REDUCER_FIXTURE_PARAMETERS &&
                ranks <= COLLECTIVE_FIXTURE_RANKS);
    for (uint32_t p = 0; p < count; p++) {
        snprintf(parameters[p].name, sizeof parameters[p].name, "p%u", p);
        parameters[p].num_dims = 1;
        parameters[p].dims[0] = elements[p];
        parameters[p].init_bound = 0.5f;
    }
    *fixture = (struct reducer_fixture){
        .ranks = ranks,
        .rounds = 3,
        .separate_parameters = true,
        .timeout = 60,
        .job = {.seed = 5,
                .optimizer = *rule,
                .schedule.lr = rate,
                .zero = {.reduce_bucket = 500000000,
                         .allgather_bucket = 500000000,
                         .overlap = true}},
        .course = {.accumulation = 1, .epoch_batches = 1000},
    };
    assert_ok(layout_build(&fixture->layout, parameters, count, &failure));
    reducer_model_open(&fixture->saved, fixture);
    reducer_model_open(&fixture->loaded, fixture);
    collective_fixture_open(&fixture->rendezvous, ranks);
    sem_init(&fixture->finished, 0, 0);
    sem_init(&fixture->handed_over, 0, 0);
    fixture->store.context = &fixture->rendezvous;
    fixture->rank0_snapshot_agent = (struct reducer_storage){
        .context = fixture,
        .load = load,
        .note = note,
        .save = save,
        .pause = after_round,
    };
}

void reducer_fixture_open_default(struct reducer_fixture *fixture,
                                  uint32_t ranks) {
    static const uint32_t shapes[] = {1025, 7, 255, 1, 40000, 1025};
    reducer_fixture_open(fixture, ranks, shapes, sizeof shapes / sizeof *shapes,
                         &reducer_fixture_adam, 0.01);
}

static void close_device(struct reducer_rank *rank) {
    const struct device_ops *ops = rank->place.ops;
    if (!rank->device)
        return;
    rank->exchange->cancel(rank->exchange);
    rank->exchange->end(rank->exchange);
    for (uint32_t p = 0; p < rank->fixture->layout->num_parameters; p++)
        ops->event_close(rank->device, &rank->complete[p]);
    ops->release(rank->device, rank->place.weights);
    ops->close(&rank->device);
    free(rank->complete);
}

void reducer_fixture_close(struct reducer_fixture *fixture) {
    for (uint32_t r = 0; r < fixture->ranks; r++) {
        close_device(&fixture->rank[r]);
        reducer_close(&fixture->rank[r].reducer);
        free(fixture->rank[r].rounds);
        arena_close(&fixture->rank[r].arena);
    }
    collective_fixture_close(&fixture->rendezvous);
    sem_destroy(&fixture->finished);
    sem_destroy(&fixture->handed_over);
    reducer_model_close(&fixture->saved);
    reducer_model_close(&fixture->loaded);
    layout_free(&fixture->layout);
}

void reducer_fixture_gradient(uint32_t rank, uint64_t round, float *floats,
                              uint64_t elements) {
    philox_uniform(99, rank * 1000 + round, 0, 1, floats, elements);
}

static enum contribution contribution(const struct reducer_fixture *fixture,
                                      uint32_t rank, uint64_t round) {
    if (fixture->voids && fixture->voids(rank, round))
        return CONTRIBUTION_OVERFLOWED;
    return fixture->empty && fixture->empty(rank, round) ? CONTRIBUTION_EMPTY
                                                         : CONTRIBUTION_FULL;
}

static bool is_void(const struct reducer_fixture *fixture, uint64_t round) {
    for (uint32_t r = 0; r < fixture->ranks; r++)
        if (contribution(fixture, r, round) == CONTRIBUTION_OVERFLOWED)
            return true;
    return false;
}

/* Rounds up to ROUND that were applied. */
static uint64_t step_of(const struct reducer_fixture *fixture, uint64_t round) {
    uint64_t step = 0;
    for (uint64_t i = fixture->course.start + 1; i <= round; i++)
        step += !is_void(fixture, i);
    return fixture->course.start + step;
}

static bool wait_all(struct reducer_rank *rank) {
    for (uint32_t p = 0; p < rank->fixture->layout->num_parameters; p++)
        if (!rank->exchange->wait(rank->exchange, p, TIME_NEVER))
            return false;
    return true;
}

/* Where parameter P begins in a model, in floats. */
static uint64_t model_offset(const struct layout *layout, uint32_t p) {
    uint64_t offset = 0;
    for (uint32_t before = p + 1; before < layout->num_parameters; before++)
        offset += layout->parameters[before].elements;
    return offset;
}

/* A rank's gradients of ROUND, as a model's. */
static float *gradients_of(const struct reducer_rank *rank, uint64_t round) {
    const struct reducer_fixture *fixture = rank->fixture;
    return rank->rounds +
           (round - fixture->course.start - 1) * fixture->layout->elements;
}

/* Parameter P's gradient of ROUND is computed on the device: it comes there,
 * and when, is recorded if it is SAID. */
static void compute(struct reducer_rank *rank, uint32_t p, uint64_t round,
                    bool said) {
    const struct layout *layout = rank->fixture->layout;
    const struct reducer_device_arena *place = &rank->place;
    const float *floats = gradients_of(rank, round) + model_offset(layout, p);
    size_t bytes = layout->parameters[p].elements * sizeof *floats;
    if (!rank->fixture->resident) {
        memcpy(rank->arena.gradient_of[p], floats, bytes);
        return;
    }
    place->ops->upload(place->device, STREAM_COMPUTE,
                       place->gradients + rank->arena.offsets[p], floats,
                       bytes);
    if (said)
        place->ops->record(place->device, STREAM_COMPUTE, rank->complete[p]);
}

/* Parameters are announced one by one, but for every third, which waits for the
 * next one. */
static bool announce_all(struct reducer_rank *rank, uint64_t round) {
    uint32_t count = rank->fixture->layout->num_parameters, unannounced = 0;
    for (uint32_t p = count; p-- > 0;) {
        atomic_store(&rank->left, p);
        compute(rank, p, round, true);
        unannounced++;
        if (p % 3 == 1)
            continue;
        rank->exchange->announce(rank->exchange, p, unannounced, round,
                                 CONTRIBUTION_FULL);
        unannounced = 0;
        if (rank->fixture->in_two_steps && p == count / 2 &&
            !rank->exchange->wait(rank->exchange, count - 1, TIME_NEVER))
            return false;
    }
    return true;
}

static bool train_round(struct reducer_rank *rank, uint64_t round) {
    const struct layout *layout = rank->fixture->layout;
    float *gradients = gradients_of(rank, round);
    enum contribution what = contribution(rank->fixture, rank->rank, round);
    if (what != CONTRIBUTION_FULL) {
        for (uint64_t i = 0; i < layout->elements; i++)
            gradients[i] = NAN;
        for (uint32_t p = 0; p < layout->num_parameters; p++)
            compute(rank, p, round, false);
        rank->exchange->announce(rank->exchange, 0, layout->num_parameters,
                                 round, what);
        return true;
    }
    reducer_fixture_gradient(rank->rank, round, gradients, layout->elements);
    return announce_all(rank, round);
}

/* What STREAM_COMPUTE has of the weights is the arena's. */
static void bring_weights(struct reducer_rank *rank) {
    const struct layout *layout = rank->fixture->layout;
    const struct reducer_device_arena *place = &rank->place;
    for (uint32_t p = 0; p < layout->num_parameters; p++)
        place->ops->download(place->device, STREAM_COMPUTE,
                             rank->arena.weight_of[p],
                             place->weights + rank->arena.offsets[p],
                             layout->parameters[p].elements * sizeof(float));
    place->ops->synchronize(place->device, NULL);
}

static void *train(void *argument) {
    struct reducer_rank *rank = argument;
    struct reducer_fixture *fixture = rank->fixture;
    bool here = true;
    if (fixture->resident &&
        rank->exchange->begin(rank->exchange, &rank->place, &rank->why)) {
        rank->ended = true;
        return NULL;
    }
    here = wait_all(rank);
    for (uint64_t round = fixture->course.start + 1;
         here && round <= fixture->rounds; round++)
        here = train_round(rank, round) && wait_all(rank);
    if (here && fixture->resident)
        bring_weights(rank);
    rank->ended = !here;
    return NULL;
}

static void wake(void *rank) {
    (void)rank; /* the test serves it */
}

static void open_device(struct reducer_rank *rank) {
    const struct reducer_fixture *fixture = rank->fixture;
    const struct device_ops *ops = fake_device_ops();
    const struct layout *layout = fixture->layout;
    uint64_t floats = buffer_bytes(rank->arena.weights) / sizeof(float);
    struct device_settings settings = {.threads = 1,
                                       .timeout = fixture->timeout};
    assert_ok(ops->open(&rank->device, &settings, &failure));
    float *memory = ops->allocate(rank->device, 2 * floats * sizeof *memory);
    rank->complete = calloc(layout->num_parameters, sizeof *rank->complete);
    for (uint32_t p = 0; p < layout->num_parameters; p++)
        rank->complete[p] = ops->event_open(rank->device);
    ops->run(rank->device, STREAM_EXCHANGE, op_fill(memory, 2 * floats, 0));
    ops->synchronize(rank->device, NULL);
    rank->place = (struct reducer_device_arena){
        ops, rank->device, memory, memory + floats, rank->complete};
}

static void open_rank(struct reducer_fixture *fixture, uint32_t r) {
    struct reducer_rank *rank = &fixture->rank[r];
    *rank = (struct reducer_rank){.fixture = fixture, .rank = r};
    assert_ok(arena_open(&rank->arena, fixture->layout,
                         fixture->separate_parameters, &failure));
    rank->rounds = calloc(fixture->rounds - fixture->course.start,
                          fixture->layout->elements * sizeof *rank->rounds);
    struct reducer_settings settings = {
        .job = &fixture->job,
        .layout = fixture->layout,
        .run_schedule = &fixture->course,
        .ops = fixture->ranks > 1 ? &stream_collective_ops : NULL,
        .group = {.rank = r,
                  .size = fixture->ranks,
                  .store = &fixture->store,
                  .timeout = fixture->timeout},
        .weights = rank->arena.weights,
        .gradients = rank->arena.gradients,
        .offsets = rank->arena.offsets,
        .rank0_snapshot_agent = r == 0 ? &fixture->rank0_snapshot_agent : NULL,
        .broadcasts_first_weights = fixture->broadcasts_first_weights,
        .large_buckets = fixture->large_buckets,
        .resident = fixture->resident,
        .wake = wake,
    };
    if (fixture->resident)
        open_device(rank);
    assert_ok(reducer_open(&rank->reducer, &settings, &failure));
    rank->exchange = reducer_exchange(rank->reducer);
}

void reducer_fixture_begin(struct reducer_fixture *fixture) {
    if (!fixture->course.total)
        fixture->course.total = fixture->rounds;
    fake_device_configure(&(struct fake_device_settings){
        .order = fixture->order,
        .seed = 7,
        .fail_allocation = fixture->fail_allocation});
    for (uint32_t r = 0; r < fixture->ranks; r++)
        open_rank(fixture, r);
    for (uint32_t r = 0; r < fixture->ranks; r++)
        assert_int_equal(pthread_create(&fixture->rank[r].thread, NULL, train,
                                        &fixture->rank[r]),
                         0);
}

void reducer_fixture_end(struct reducer_fixture *fixture) {
    for (uint32_t r = 0; r < fixture->ranks; r++)
        pthread_join(fixture->rank[r].thread, NULL);
}

void reducer_fixture_await(sem_t *semaphore) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 60;
    assert_int_equal(sem_timedwait(semaphore, &until), 0);
}

void reducer_fixture_run(struct reducer_fixture *fixture) {
    reducer_fixture_begin(fixture);
    reducer_fixture_end(fixture);
    reducer_fixture_await(&fixture->finished);
    for (uint32_t r = 0; r < fixture->ranks; r++) {
        if (reducer_failed(fixture->rank[r].reducer, &failure))
            fail_msg("rank %u: %s", r, failure.text);
        assert_false(fixture->rank[r].ended);
        assert_int_equal(
            fixture->rank[r].exchange->global_step(fixture->rank[r].exchange),
            fixture->rounds);
    }
    assert_false(fixture->rendezvous.mismatch);
    assert_false(fixture->saved.out_of_order);
}

const float *reducer_fixture_weights(const struct reducer_fixture *fixture,
                                     uint32_t rank) {
    return fixture->rank[rank]
        .arena.weight_of[fixture->layout->num_parameters - 1];
}

static void first_model(const struct reducer_fixture *fixture,
                        struct reducer_model *model) {
    const struct layout *layout = fixture->layout;
    unsigned slots = rule_slots(&fixture->job.optimizer);
    for (uint32_t b = 0; b < layout->num_blocks; b++)
        layout_init_block(layout, b, fixture->job.seed,
                          model->tensors[0] + place_of(fixture, b));
    for (unsigned slot = 0; slot < slots; slot++)
        for (uint64_t i = 0; i < layout->elements; i++)
            model->tensors[1 + slot][i] =
                rule_slot_start(&fixture->job.optimizer, slot);
}

/* In double, of the mean in float32 as all ranks have it. */
static float clipping(const struct reducer_fixture *fixture,
                      const struct rule_update *update) {
    double limit = fixture->job.gradient_clipping, sum = 0;
    if (limit <= 0)
        return 1;
    for (uint64_t i = 0; i < update->elements; i++) {
        float total = 0;
        for (unsigned g = 0; g < update->num_gradients; g++)
            total += ((const float *)update->gradients[g])[i];
        double mean = (double)total * (double)update->scale;
        sum += mean * mean;
    }
    double factor = limit / (sqrt(sum) + 1e-6);
    return factor < 1 ? (float)factor : 1;
}

/* UPDATE, without weights and state, of parameter P of MODEL. */
static void update_parameter(const struct reducer_fixture *fixture, uint32_t p,
                             struct rule_update update,
                             struct reducer_model *model) {
    const void *brought[COLLECTIVE_FIXTURE_RANKS];
    uint64_t offset = model_offset(fixture->layout, p);
    size_t variants;
    for (unsigned g = 0; g < update.num_gradients; g++)
        brought[g] = (const float *)update.gradients[g] + offset;
    update.gradients = brought;
    update.elements = fixture->layout->parameters[p].elements;
    update.step = model->rule_steps[p] += update.num_gradients > 0;
    update.weights = update.weights_out = model->tensors[0] + offset;
    for (unsigned t = 0; t < RULE_MAX_SLOTS; t++)
        update.state[t] = update.state_out[t] = model->tensors[1 + t] + offset;
    rule_apply(*rule_variants(&variants), &fixture->job.optimizer, &update);
}

static void update_alone(const struct reducer_fixture *fixture, uint64_t round,
                         struct reducer_model *model, float *gradients) {
    const void *brought[COLLECTIVE_FIXTURE_RANKS];
    uint64_t elements = fixture->layout->elements;
    struct rule_update update = {
        .rate = schedule_rate(&fixture->job.schedule, step_of(fixture, round)),
        .elements = elements,
        .gradients = brought,
    };
    for (uint32_t r = 0; r < fixture->ranks; r++) {
        float *own = gradients + r * elements;
        if (is_void(fixture, round) ||
            contribution(fixture, r, round) != CONTRIBUTION_FULL)
            continue;
        reducer_fixture_gradient(r, round, own, elements);
        brought[update.num_gradients++] = own;
    }
    update.scale =
        update.num_gradients ? 1.0f / (float)update.num_gradients : 1.0f;
    update.scale *= clipping(fixture, &update);
    for (uint32_t p = 0; p < fixture->layout->num_parameters; p++)
        update_parameter(fixture, p, update, model);
}

void reducer_fixture_train_single(struct reducer_fixture *fixture,
                                  struct reducer_model *model) {
    float *gradients =
        calloc(fixture->ranks * fixture->layout->elements, sizeof *gradients);
    if (!fixture->broadcasts_first_weights)
        first_model(fixture, model);
    for (uint64_t round = fixture->course.start + 1; round <= fixture->rounds;
         round++)
        update_alone(fixture, round, model, gradients);
    free(gradients);
}

void reducer_fixture_expect_weights(const struct reducer_fixture *fixture,
                                    const struct reducer_model *model) {
    const struct layout *layout = fixture->layout;
    for (uint32_t r = 0; r < fixture->ranks; r++)
        for (uint32_t p = 0; p < layout->num_parameters; p++)
            assert_memory_equal(fixture->rank[r].arena.weight_of[p],
                                model->tensors[0] + model_offset(layout, p),
                                layout->parameters[p].elements * sizeof(float));
}

void reducer_fixture_expect_model(const struct reducer_fixture *fixture,
                                  const struct reducer_model *found,
                                  const struct reducer_model *expected) {
    for (unsigned t = 0; t <= rule_slots(&fixture->job.optimizer); t++)
        assert_memory_equal(found->tensors[t], expected->tensors[t],
                            fixture->layout->elements * sizeof(float));
    assert_memory_equal(found->rule_steps, expected->rule_steps,
                        sizeof found->rule_steps);
}

void reducer_fixture_run_and_compare(struct reducer_fixture *fixture) {
    struct reducer_model alone;
    fixture->course.checkpoints = true;
    reducer_model_open(&alone, fixture);
    reducer_fixture_train_single(fixture, &alone);
    reducer_fixture_run(fixture);
    reducer_fixture_expect_weights(fixture, &alone);
    assert_int_equal(fixture->saved.round, fixture->rounds);
    reducer_fixture_expect_model(fixture, &fixture->saved, &alone);
    reducer_model_close(&alone);
}
