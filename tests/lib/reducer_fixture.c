/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/reducer_fixture.h"

#include "proto/tensor/philox.h"
#include "proto/tensor/schedule.h"
#include "tests/gpu/joined_collective.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

const struct optimizer reducer_fixture_sgd = {.type = OPTIMIZER_SGD};
const struct optimizer reducer_fixture_adam = {
    .type = OPTIMIZER_ADAM, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};

/* Where block B begins in a model. */
static uint64_t place_of(const struct reducer_play *play, uint32_t b) {
    uint64_t place = 0;
    for (uint32_t before = 0; before < b; before++)
        place += play->layout->blocks[before].elements;
    return place;
}

static enum status load(void *context, uint32_t b, float *const *tensors,
                        struct failure *why) {
    struct reducer_play *play = context;
    size_t bytes = play->layout->blocks[b].elements * sizeof(float);
    if (play->loaded.fail_load == b + 1)
        return status_fail(why, STATUS_RETRY, "the disk is gone");
    for (unsigned t = 0; t <= rule_slots(&play->job.optimizer); t++)
        memcpy(tensors[t], play->loaded.tensors[t] + place_of(play, b), bytes);
    return STATUS_OK;
}

static void note(void *context, const struct loss_scaler *scaler) {
    struct reducer_play *play = context;
    play->scaler = *scaler;
}

static enum status save(void *context, uint64_t round, uint32_t b,
                        const float *const *tensors, struct failure *why) {
    struct reducer_play *play = context;
    struct reducer_model *saved = &play->saved;
    size_t bytes = play->layout->blocks[b].elements * sizeof(float);
    if (saved->fail_save == b + 1)
        return status_fail(why, STATUS_RETRY, "the disk is full");
    for (unsigned t = 0; t <= rule_slots(&play->job.optimizer); t++)
        memcpy(saved->tensors[t] + place_of(play, b), tensors[t], bytes);
    saved->out_of_order |= saved->saved != b;
    saved->saved = (b + 1) % play->layout->num_blocks;
    saved->saves += saved->saved == 0;
    saved->round = round;
    if (saved->saved == 0)
        sem_post(&play->handed_over);
    return STATUS_OK;
}

static void pause(void *context, uint64_t round) {
    struct reducer_play *play = context;
    if (play->pause)
        play->pause(play, round);
    if (round == play->rounds)
        sem_post(&play->over);
}

void reducer_model_open(struct reducer_model *model,
                        const struct reducer_play *play) {
    *model = (struct reducer_model){0};
    for (unsigned t = 0; t < REDUCER_FIXTURE_TENSORS; t++)
        model->tensors[t] = calloc(play->layout->elements, sizeof(float));
}

void reducer_model_close(struct reducer_model *model) {
    for (unsigned t = 0; t < REDUCER_FIXTURE_TENSORS; t++)
        free(model->tensors[t]);
    *model = (struct reducer_model){0};
}

void reducer_play_open(struct reducer_play *play, uint32_t ranks,
                       const uint32_t *elements, uint32_t count,
                       const struct optimizer *rule, double rate) {
    struct parameter parameters[16] = {0};
    struct failure why;
    assert_true(count <= 16 && ranks <= COLLECTIVE_FIXTURE_RANKS);
    for (uint32_t p = 0; p < count; p++) {
        snprintf(parameters[p].name, sizeof parameters[p].name, "p%u", p);
        parameters[p].num_dims = 1;
        parameters[p].dims[0] = elements[p];
        parameters[p].init_bound = 0.5f;
    }
    *play = (struct reducer_play){
        .ranks = ranks,
        .rounds = 3,
        .apart = true,
        .timeout = 60,
        .job = {.seed = 5,
                .optimizer = *rule,
                .schedule.lr = rate,
                .zero = {.reduce_bucket = 500000000,
                         .allgather_bucket = 500000000,
                         .overlap = true}},
        .course = {.accumulation = 1, .epoch_batches = 1000},
    };
    if (layout_build(&play->layout, parameters, count, &why))
        fail_msg("%s", why.text);
    reducer_model_open(&play->saved, play);
    reducer_model_open(&play->loaded, play);
    collective_fixture_open(&play->meeting, ranks);
    sem_init(&play->over, 0, 0);
    sem_init(&play->handed_over, 0, 0);
    play->store.context = &play->meeting;
    play->keeper = (struct reducer_keeper){
        .context = play,
        .load = load,
        .note = note,
        .save = save,
        .pause = pause,
    };
}

void reducer_play_open_usual(struct reducer_play *play, uint32_t ranks) {
    static const uint32_t shapes[] = {1025, 7, 255, 1, 40000, 1025};
    reducer_play_open(play, ranks, shapes, sizeof shapes / sizeof *shapes,
                      &reducer_fixture_adam, 0.01);
}

static void close_device(struct reducer_rank *rank) {
    const struct ops *ops = rank->place.ops;
    if (!rank->device)
        return;
    reducer_cancel(rank->reducer);
    reducer_end(rank->reducer);
    for (uint32_t p = 0; p < rank->play->layout->num_parameters; p++)
        ops->event_close(rank->device, &rank->complete[p]);
    ops->release(rank->device, rank->place.weights);
    ops->close(&rank->device);
    free(rank->complete);
}

void reducer_play_close(struct reducer_play *play) {
    for (uint32_t r = 0; r < play->ranks; r++) {
        close_device(&play->rank[r]);
        reducer_close(&play->rank[r].reducer);
        free(play->rank[r].rounds);
        arena_close(&play->rank[r].arena);
    }
    collective_fixture_close(&play->meeting);
    sem_destroy(&play->over);
    sem_destroy(&play->handed_over);
    reducer_model_close(&play->saved);
    reducer_model_close(&play->loaded);
    layout_free(&play->layout);
}

void reducer_play_gradient(uint32_t rank, uint64_t round, float *floats,
                           uint64_t elements) {
    philox_uniform(99, rank * 1000 + round, 0, 1, floats, elements);
}

static enum contribution contribution(const struct reducer_play *play,
                                      uint32_t rank, uint64_t round) {
    if (play->voids && play->voids(rank, round))
        return CONTRIBUTION_VOID;
    return play->empty && play->empty(rank, round) ? CONTRIBUTION_EMPTY
                                                   : CONTRIBUTION_WHOLE;
}

static bool is_void(const struct reducer_play *play, uint64_t round) {
    for (uint32_t r = 0; r < play->ranks; r++)
        if (contribution(play, r, round) == CONTRIBUTION_VOID)
            return true;
    return false;
}

/* Rounds up to ROUND that were applied. */
static uint64_t step_of(const struct reducer_play *play, uint64_t round) {
    uint64_t step = 0;
    for (uint64_t i = play->course.start + 1; i <= round; i++)
        step += !is_void(play, i);
    return play->course.start + step;
}

static bool wait_all(struct reducer_rank *rank) {
    for (uint32_t p = 0; p < rank->play->layout->num_parameters; p++)
        if (!reducer_wait(rank->reducer, p))
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
    const struct reducer_play *play = rank->play;
    return rank->rounds +
           (round - play->course.start - 1) * play->layout->elements;
}

/* Parameter P's gradient of ROUND is computed on the device: it comes there,
 * and when, is recorded if it is SAID. */
static void compute(struct reducer_rank *rank, uint32_t p, uint64_t round,
                    bool said) {
    const struct layout *layout = rank->play->layout;
    const struct reducer_place *place = &rank->place;
    const float *floats = gradients_of(rank, round) + model_offset(layout, p);
    size_t bytes = layout->parameters[p].elements * sizeof *floats;
    if (!rank->play->resident) {
        memcpy(rank->arena.gradient_of[p], floats, bytes);
        return;
    }
    place->ops->upload(place->device, OPS_COMPUTE,
                       place->gradients + rank->arena.offsets[p], floats,
                       bytes);
    if (said)
        place->ops->record(place->device, OPS_COMPUTE, rank->complete[p]);
}

/* Parameters are announced one by one, but for every third, which waits for the
 * next one. */
static bool announce_all(struct reducer_rank *rank, uint64_t round) {
    uint32_t count = rank->play->layout->num_parameters, unsaid = 0;
    for (uint32_t p = count; p-- > 0;) {
        atomic_store(&rank->left, p);
        compute(rank, p, round, true);
        unsaid++;
        if (p % 3 == 1)
            continue;
        reducer_announce(rank->reducer, p, unsaid, round, CONTRIBUTION_WHOLE);
        unsaid = 0;
        if (rank->play->in_steps && p == count / 2 &&
            !reducer_wait(rank->reducer, count - 1))
            return false;
    }
    return true;
}

static bool train_round(struct reducer_rank *rank, uint64_t round) {
    const struct layout *layout = rank->play->layout;
    float *gradients = gradients_of(rank, round);
    enum contribution what = contribution(rank->play, rank->rank, round);
    if (what != CONTRIBUTION_WHOLE) {
        for (uint64_t i = 0; i < layout->elements; i++)
            gradients[i] = NAN;
        for (uint32_t p = 0; p < layout->num_parameters; p++)
            compute(rank, p, round, false);
        reducer_announce(rank->reducer, 0, layout->num_parameters, round, what);
        return true;
    }
    reducer_play_gradient(rank->rank, round, gradients, layout->elements);
    return announce_all(rank, round);
}

/* What OPS_COMPUTE has of the weights is the arena's. */
static void bring_weights(struct reducer_rank *rank) {
    const struct layout *layout = rank->play->layout;
    const struct reducer_place *place = &rank->place;
    for (uint32_t p = 0; p < layout->num_parameters; p++)
        place->ops->download(place->device, OPS_COMPUTE,
                             rank->arena.weight_of[p],
                             place->weights + rank->arena.offsets[p],
                             layout->parameters[p].elements * sizeof(float));
    place->ops->synchronize(place->device, NULL);
}

static void *train(void *argument) {
    struct reducer_rank *rank = argument;
    struct reducer_play *play = rank->play;
    bool here = true;
    if (play->resident &&
        reducer_begin(rank->reducer, &rank->place, &rank->why)) {
        rank->ended = true;
        return NULL;
    }
    here = wait_all(rank);
    for (uint64_t round = play->course.start + 1; here && round <= play->rounds;
         round++)
        here = train_round(rank, round) && wait_all(rank);
    if (here && play->resident)
        bring_weights(rank);
    rank->ended = !here;
    return NULL;
}

static void wake(void *rank) {
    (void)rank; /* the test serves it */
}

static void open_device(struct reducer_rank *rank) {
    const struct reducer_play *play = rank->play;
    const struct ops *ops = fake_device_ops();
    const struct layout *layout = play->layout;
    uint64_t floats = buffer_bytes(rank->arena.weights) / sizeof(float);
    struct ops_settings settings = {.threads = 1, .timeout = play->timeout};
    struct failure why;
    if (ops->open(&rank->device, &settings, &why))
        fail_msg("%s", why.text);
    float *memory = ops->allocate(rank->device, 2 * floats * sizeof *memory);
    rank->complete = calloc(layout->num_parameters, sizeof *rank->complete);
    for (uint32_t p = 0; p < layout->num_parameters; p++)
        rank->complete[p] = ops->event_open(rank->device);
    ops->fill(rank->device, OPS_EXCHANGE, memory, 2 * floats, 0);
    ops->synchronize(rank->device, NULL);
    rank->place = (struct reducer_place){ops, rank->device, memory,
                                         memory + floats, rank->complete};
}

static void open_rank(struct reducer_play *play, uint32_t r) {
    struct reducer_rank *rank = &play->rank[r];
    struct failure why;
    *rank = (struct reducer_rank){.play = play, .rank = r};
    if (arena_open(&rank->arena, play->layout, play->apart, &why))
        fail_msg("%s", why.text);
    rank->rounds = calloc(play->rounds - play->course.start,
                          play->layout->elements * sizeof *rank->rounds);
    struct reducer_settings settings = {
        .job = &play->job,
        .layout = play->layout,
        .rounds = &play->course,
        .ops = play->ranks > 1 ? joined_collective_ops() : NULL,
        .group = {.rank = r,
                  .size = play->ranks,
                  .store = &play->store,
                  .timeout = play->timeout},
        .weights = rank->arena.weights,
        .gradients = rank->arena.gradients,
        .offsets = rank->arena.offsets,
        .keeper = r == 0 ? &play->keeper : NULL,
        .loads = play->loads,
        .wide = play->wide,
        .resident = play->resident,
        .wake = wake,
    };
    if (play->resident)
        open_device(rank);
    if (reducer_open(&rank->reducer, &settings, &why))
        fail_msg("%s", why.text);
}

void reducer_play_begin(struct reducer_play *play) {
    if (!play->course.total)
        play->course.total = play->rounds;
    joined_collective_over(&collective_fixture_ops);
    fake_device_arrange(&(struct fake_device_plan){
        .order = play->order, .seed = 7, .refuse = play->refuse});
    for (uint32_t r = 0; r < play->ranks; r++)
        open_rank(play, r);
    for (uint32_t r = 0; r < play->ranks; r++)
        assert_int_equal(
            pthread_create(&play->rank[r].thread, NULL, train, &play->rank[r]),
            0);
}

void reducer_play_end(struct reducer_play *play) {
    for (uint32_t r = 0; r < play->ranks; r++)
        pthread_join(play->rank[r].thread, NULL);
}

void reducer_play_await(sem_t *semaphore) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 60;
    assert_int_equal(sem_timedwait(semaphore, &until), 0);
}

void reducer_play_run(struct reducer_play *play) {
    struct failure why;
    reducer_play_begin(play);
    reducer_play_end(play);
    reducer_play_await(&play->over);
    for (uint32_t r = 0; r < play->ranks; r++) {
        if (reducer_failed(play->rank[r].reducer, &why))
            fail_msg("rank %u: %s", r, why.text);
        assert_false(play->rank[r].ended);
        assert_int_equal(reducer_round(play->rank[r].reducer), play->rounds);
    }
    assert_false(play->meeting.differ);
    assert_false(play->saved.out_of_order);
}

const float *reducer_play_weights(const struct reducer_play *play,
                                  uint32_t rank) {
    return play->rank[rank].arena.weight_of[play->layout->num_parameters - 1];
}

static void first_model(const struct reducer_play *play,
                        struct reducer_model *model) {
    const struct layout *layout = play->layout;
    unsigned slots = rule_slots(&play->job.optimizer);
    for (uint32_t b = 0; b < layout->num_blocks; b++)
        layout_init_block(layout, b, play->job.seed,
                          model->tensors[0] + place_of(play, b));
    for (unsigned slot = 0; slot < slots; slot++)
        for (uint64_t i = 0; i < layout->elements; i++)
            model->tensors[1 + slot][i] =
                rule_slot_start(&play->job.optimizer, slot);
}

/* In double, of the mean in float32 as all ranks have it. */
static float clipping(const struct reducer_play *play,
                      const struct rule_update *update) {
    double limit = play->job.gradient_clipping, sum = 0;
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

static void update_alone(const struct reducer_play *play, uint64_t round,
                         struct reducer_model *model, float *gradients) {
    const void *brought[COLLECTIVE_FIXTURE_RANKS];
    uint64_t elements = play->layout->elements;
    size_t variants;
    struct rule_update update = {
        .step = step_of(play, round),
        .rate = schedule_rate(&play->job.schedule, step_of(play, round)),
        .elements = elements,
        .gradients = brought,
        .weights = model->tensors[0],
        .weights_out = model->tensors[0],
    };
    for (uint32_t r = 0; r < play->ranks; r++) {
        float *own = gradients + r * elements;
        if (is_void(play, round) ||
            contribution(play, r, round) != CONTRIBUTION_WHOLE)
            continue;
        reducer_play_gradient(r, round, own, elements);
        brought[update.num_gradients++] = own;
    }
    update.scale =
        update.num_gradients ? 1.0f / (float)update.num_gradients : 1.0f;
    update.scale *= clipping(play, &update);
    for (unsigned t = 0; t < RULE_MAX_SLOTS; t++)
        update.state[t] = update.state_out[t] = model->tensors[1 + t];
    rule_apply(*rule_variants(&variants), &play->job.optimizer, &update);
}

void reducer_play_alone(struct reducer_play *play,
                        struct reducer_model *model) {
    float *gradients =
        calloc(play->ranks * play->layout->elements, sizeof *gradients);
    if (!play->loads)
        first_model(play, model);
    for (uint64_t round = play->course.start + 1; round <= play->rounds;
         round++)
        update_alone(play, round, model, gradients);
    free(gradients);
}

void reducer_play_expect_weights(const struct reducer_play *play,
                                 const struct reducer_model *model) {
    const struct layout *layout = play->layout;
    for (uint32_t r = 0; r < play->ranks; r++)
        for (uint32_t p = 0; p < layout->num_parameters; p++)
            assert_memory_equal(play->rank[r].arena.weight_of[p],
                                model->tensors[0] + model_offset(layout, p),
                                layout->parameters[p].elements * sizeof(float));
}

void reducer_play_expect_model(const struct reducer_play *play,
                               const struct reducer_model *found,
                               const struct reducer_model *expected) {
    for (unsigned t = 0; t <= rule_slots(&play->job.optimizer); t++)
        assert_memory_equal(found->tensors[t], expected->tensors[t],
                            play->layout->elements * sizeof(float));
}

void reducer_play_run_and_compare(struct reducer_play *play) {
    struct reducer_model alone;
    play->course.checkpoints = true;
    reducer_model_open(&alone, play);
    reducer_play_alone(play, &alone);
    reducer_play_run(play);
    reducer_play_expect_weights(play, &alone);
    assert_int_equal(play->saved.round, play->rounds);
    reducer_play_expect_model(play, &play->saved, &alone);
    reducer_model_close(&alone);
}
