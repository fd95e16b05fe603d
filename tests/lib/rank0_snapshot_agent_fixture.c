/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/rank0_snapshot_agent_fixture.h"

#include "tests/lib/checkpoint_fixture.h"
#include "tests/lib/test.h"

struct rank0_agent_seen rank0_agent_seen;

static uint64_t round_of(void *context) {
    (void)context;
    return rank0_agent_seen.round;
}

static void save(void *context, uint64_t round) {
    (void)context;
    rank0_agent_seen.save_round = round;
}

static void save_now(void *context) {
    (void)context;
    rank0_agent_seen.saved_now = true;
}

static void send_message(void *context, Capstan__Control *control) {
    (void)context;
    if (control->body_case == CAPSTAN__CONTROL__BODY_READY) {
        rank0_agent_seen.ready = true;
        rank0_agent_seen.shares = control->ready->shares_folder;
        return;
    }
    assert_true(rank0_agent_seen.num_sent < RANK0_AGENT_MAX_MESSAGES);
    unsigned i = rank0_agent_seen.num_sent++;
    rank0_agent_seen.kind[i] = control->body_case;
    if (control->body_case == CAPSTAN__CONTROL__BODY_SNAPSHOT_PREPARED) {
        rank0_agent_seen.id[i] = control->snapshot_prepared->id;
        rank0_agent_seen.number[i] = control->snapshot_prepared->highest;
        return;
    }
    const Capstan__SnapshotReport *report = control->snapshot_report;
    assert_int_equal(control->body_case,
                     CAPSTAN__CONTROL__BODY_SNAPSHOT_REPORT);
    rank0_agent_seen.id[i] = report->id;
    rank0_agent_seen.number[i] = report->step;
    rank0_agent_seen.written[i] =
        report->outcome == CAPSTAN__SNAPSHOT_REPORT__OUTCOME__WRITTEN;
    rank0_agent_seen.failed[i] =
        report->outcome == CAPSTAN__SNAPSHOT_REPORT__OUTCOME__NOT_WRITTEN;
}

int rank0_snapshot_agent_fixture_setup(void **state) {
    struct rank0_snapshot_agent_fixture *fixture = calloc(1, sizeof *fixture);
    memset(&rank0_agent_seen, 0, sizeof rank0_agent_seen);
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
    fixture->plan = (struct plan){
        .layout = layout,
        .num_ranks = 2,
        .allreduce = true,
        .checkpoint_dir = fixture->folder,
        .run_schedule = {.total = RANK0_AGENT_ROUNDS, .start = 20}};
    for (int t = 0; t < 3; t++)
        fixture->tensors[t] =
            calloc(layout->block_elements, sizeof *fixture->tensors[t]);
    *state = fixture;
    return 0;
}

int rank0_snapshot_agent_fixture_teardown(void **state) {
    struct rank0_snapshot_agent_fixture *fixture = *state;
    if (fixture->rank0_snapshot_agent)
        rank0_snapshot_agent_cancel(fixture->rank0_snapshot_agent);
    rank0_snapshot_agent_close(&fixture->rank0_snapshot_agent);
    manifest_clear(&fixture->manifest);
    buffer_release(&fixture->weights);
    checkpoint_fixture_remove(fixture->folder);
    zmq_ctx_term(fixture->zmq);
    for (int t = 0; t < 3; t++)
        free(fixture->tensors[t]);
    free(fixture);
    return 0;
}

void rank0_snapshot_agent_fixture_open_unattached(
    struct rank0_snapshot_agent_fixture *fixture) {
    snprintf(fixture->inproc, sizeof fixture->inproc, "keeper-%u",
             fixture->opened++);
    fixture->process = (struct process){.zmq = fixture->zmq,
                                        .log = &fixture->log,
                                        .run = RANK0_AGENT_RUN,
                                        .incarnation = RANK0_AGENT_RANK};
    struct rank0_snapshot_agent_settings settings = {
        .process = &fixture->process,
        .send_message = send_message,
        .job = &fixture->job,
        .plan = &fixture->plan,
        .chief = RANK0_AGENT_CHIEF,
        .inproc = fixture->inproc,
        .weights = fixture->weights,
        .offsets = fixture->offsets,
    };
    assert_ok(rank0_snapshot_agent_open(&fixture->rank0_snapshot_agent,
                                        &settings, &failure));
    fixture->calls =
        rank0_snapshot_agent_storage(fixture->rank0_snapshot_agent);
}

void rank0_snapshot_agent_fixture_attach(
    struct rank0_snapshot_agent_fixture *fixture) {
    const struct rank0_snapshot_agent_callbacks callbacks = {
        NULL, round_of, save, save_now, NULL};
    rank0_snapshot_agent_attach(fixture->rank0_snapshot_agent, &callbacks);
}

void rank0_snapshot_agent_fixture_open(
    struct rank0_snapshot_agent_fixture *fixture) {
    rank0_snapshot_agent_fixture_open_unattached(fixture);
    rank0_snapshot_agent_fixture_attach(fixture);
}

void rank0_snapshot_agent_fixture_save(
    struct rank0_snapshot_agent_fixture *fixture, uint64_t round, uint32_t b) {
    const float *tensors[3] = {fixture->tensors[0], fixture->tensors[1],
                               fixture->tensors[2]};
    assert_ok(fixture->calls->save(fixture->calls->context, round, b, tensors,
                                   round, &failure));
}

void rank0_snapshot_agent_fixture_hand_over(
    struct rank0_snapshot_agent_fixture *fixture, uint64_t round) {
    rank0_agent_seen.round = round;
    for (uint32_t b = 0; b < fixture->plan.layout->num_blocks; b++)
        rank0_snapshot_agent_fixture_save(fixture, round, b);
}

void rank0_snapshot_agent_fixture_await_messages(
    struct rank0_snapshot_agent_fixture *fixture, unsigned count) {
    int64_t until = time_now() + RANK0_AGENT_DEADLINE;
    while (rank0_agent_seen.num_sent < count && time_now() < until) {
        zmq_pollitem_t items[RANK0_SNAPSHOT_AGENT_POLL_ITEMS];
        rank0_snapshot_agent_poll_items(fixture->rank0_snapshot_agent, items);
        zmq_poll(items, RANK0_SNAPSHOT_AGENT_POLL_ITEMS,
                 time_poll_ms(time_now(), until));
        rank0_snapshot_agent_step(fixture->rank0_snapshot_agent);
    }
    assert_int_equal(rank0_agent_seen.num_sent, count);
}

void rank0_snapshot_agent_fixture_handle(
    struct rank0_snapshot_agent_fixture *fixture,
    const Capstan__Control *command) {
    assert_ok(rank0_snapshot_agent_handle(fixture->rank0_snapshot_agent,
                                          command, &failure));
}

void rank0_snapshot_agent_fixture_cut(
    struct rank0_snapshot_agent_fixture *fixture, uint64_t id, uint64_t round,
    bool write) {
    Capstan__Snapshot snapshot = CAPSTAN__SNAPSHOT__INIT;
    Capstan__Control order = CAPSTAN__CONTROL__INIT;
    snapshot.id = id;
    snapshot.round = round;
    snapshot.write = write;
    snapshot.step = rank0_agent_seen.round; /* as the agent reported it */
    order.body_case = CAPSTAN__CONTROL__BODY_SNAPSHOT;
    order.snapshot = &snapshot;
    rank0_snapshot_agent_fixture_handle(fixture, &order);
}

void rank0_snapshot_agent_fixture_ask(
    struct rank0_snapshot_agent_fixture *fixture) {
    Capstan__SnapshotPrepare question = CAPSTAN__SNAPSHOT_PREPARE__INIT;
    Capstan__Control order = CAPSTAN__CONTROL__INIT;
    question.id = RANK0_AGENT_REQUESTED;
    order.body_case = CAPSTAN__CONTROL__BODY_SNAPSHOT_PREPARE;
    order.snapshot_prepare = &question;
    rank0_snapshot_agent_fixture_handle(fixture, &order);
}
