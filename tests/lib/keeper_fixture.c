/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/keeper_fixture.h"

#include "tests/lib/checkpoint_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

struct keeper_seen keeper_seen;

static uint64_t round_of(void *context) {
    (void)context;
    return keeper_seen.round;
}

static void save(void *context, uint64_t round) {
    (void)context;
    keeper_seen.save_round = round;
}

static void save_now(void *context) {
    (void)context;
    keeper_seen.saved_now = true;
}

static void tell(void *context, Capstan__Control *control) {
    (void)context;
    if (control->body_case == CAPSTAN__CONTROL__BODY_READY) {
        keeper_seen.ready = true;
        keeper_seen.shares = control->ready->shares_folder;
        return;
    }
    assert_true(keeper_seen.told < KEEPER_TOLD);
    unsigned i = keeper_seen.told++;
    keeper_seen.kind[i] = control->body_case;
    if (control->body_case == CAPSTAN__CONTROL__BODY_CUT_MARK) {
        keeper_seen.id[i] = control->cut_mark->id;
        keeper_seen.number[i] = control->cut_mark->highest;
        return;
    }
    assert_int_equal(control->body_case, CAPSTAN__CONTROL__BODY_CUT_DONE);
    keeper_seen.id[i] = control->cut_done->id;
    keeper_seen.number[i] = control->cut_done->step;
    keeper_seen.written[i] = control->cut_done->written;
    keeper_seen.failed[i] = control->cut_done->error[0];
}

int keeper_fixture_setup(void **state) {
    struct keeper_fixture *fixture = calloc(1, sizeof *fixture);
    memset(&keeper_seen, 0, sizeof keeper_seen);
    log_open(&fixture->log, "worker", 0);
    fixture->zmq = zmq_ctx_new();
    checkpoint_fixture_folder(fixture->folder);
    checkpoint_fixture_manifest(&fixture->manifest, 20, 1);
    struct layout *layout = fixture->manifest.layout;
    uint64_t next = 0;
    for (uint32_t p = 0; p < layout->num_parameters; p++) {
        fixture->offsets[p] = next;
        next += layout->parameters[p].elements;
    }
    fixture->weights = buffer_open(next * sizeof(float), NULL, NULL);
    fixture->job.optimizer.type = OPTIMIZER_ADAM;
    fixture->plan =
        (struct plan){.layout = layout,
                      .num_ranks = 2,
                      .allreduce = true,
                      .checkpoint_dir = fixture->folder,
                      .rounds = {.total = KEEPER_ROUNDS, .start = 20}};
    for (int t = 0; t < 3; t++)
        fixture->tensors[t] =
            calloc(layout->block_elements, sizeof *fixture->tensors[t]);
    *state = fixture;
    return 0;
}

int keeper_fixture_teardown(void **state) {
    struct keeper_fixture *fixture = *state;
    if (fixture->keeper)
        keeper_cancel(fixture->keeper);
    keeper_close(&fixture->keeper);
    manifest_clear(&fixture->manifest);
    buffer_release(&fixture->weights);
    checkpoint_fixture_remove(fixture->folder);
    zmq_ctx_term(fixture->zmq);
    for (int t = 0; t < 3; t++)
        free(fixture->tensors[t]);
    free(fixture);
    return 0;
}

void keeper_fixture_open_unattached(struct keeper_fixture *fixture) {
    snprintf(fixture->inside, sizeof fixture->inside, "keeper-%u",
             fixture->opened++);
    struct failure why;
    struct keeper_settings settings = {
        .zmq = fixture->zmq,
        .log = &fixture->log,
        .tell = tell,
        .run = KEEPER_RUN,
        .incarnation = KEEPER_RANK,
        .job = &fixture->job,
        .plan = &fixture->plan,
        .chief = KEEPER_CHIEF,
        .inside = fixture->inside,
        .weights = fixture->weights,
        .offsets = fixture->offsets,
    };
    assert_int_equal(keeper_open(&fixture->keeper, &settings, &why), STATUS_OK);
    fixture->calls = keeper_calls(fixture->keeper);
}

void keeper_fixture_attach(struct keeper_fixture *fixture) {
    const struct keeper_callbacks callbacks = {NULL, round_of, save, save_now};
    keeper_attach(fixture->keeper, &callbacks);
}

void keeper_fixture_open(struct keeper_fixture *fixture) {
    keeper_fixture_open_unattached(fixture);
    keeper_fixture_attach(fixture);
}

void keeper_fixture_save(struct keeper_fixture *fixture, uint64_t round,
                         uint32_t b) {
    const float *tensors[3] = {fixture->tensors[0], fixture->tensors[1],
                               fixture->tensors[2]};
    struct failure why;
    assert_int_equal(
        fixture->calls->save(fixture->calls->context, round, b, tensors, &why),
        STATUS_OK);
}

void keeper_fixture_hand_over(struct keeper_fixture *fixture, uint64_t round) {
    keeper_seen.round = round;
    for (uint32_t b = 0; b < fixture->plan.layout->num_blocks; b++)
        keeper_fixture_save(fixture, round, b);
}

void keeper_fixture_told(struct keeper_fixture *fixture, unsigned count) {
    int64_t until = time_now() + KEEPER_LIMIT;
    while (keeper_seen.told < count && time_now() < until) {
        zmq_pollitem_t items[KEEPER_POLL_ITEMS];
        keeper_poll_items(fixture->keeper, items);
        zmq_poll(items, KEEPER_POLL_ITEMS, time_poll_ms(time_now(), until));
        keeper_step(fixture->keeper);
    }
    assert_int_equal(keeper_seen.told, count);
}

void keeper_fixture_cut(struct keeper_fixture *fixture, uint64_t id,
                        uint64_t round, bool write) {
    Capstan__Cut cut = CAPSTAN__CUT__INIT;
    Capstan__Control order = CAPSTAN__CONTROL__INIT;
    cut.id = id;
    cut.round = round;
    cut.write = write;
    order.body_case = CAPSTAN__CONTROL__BODY_CUT;
    order.cut = &cut;
    keeper_obey(fixture->keeper, &order);
}

void keeper_fixture_ask(struct keeper_fixture *fixture) {
    Capstan__CutAsk question = CAPSTAN__CUT_ASK__INIT;
    Capstan__Control order = CAPSTAN__CONTROL__INIT;
    question.id = KEEPER_ASKED;
    order.body_case = CAPSTAN__CONTROL__BODY_CUT_ASK;
    order.cut_ask = &question;
    keeper_obey(fixture->keeper, &order);
}
