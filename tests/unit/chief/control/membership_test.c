/* SPDX-License-Identifier: Apache-2.0 */
#define STATE struct run_fixture *fixture

#include "chief/control/membership.h"

#include "chief/adopt.h"
#include "chief/shutdown.h"
#include "core/base/time.h"
#include "tests/lib/run_fixture.h"
#include "tests/lib/test.h"

enum { WORKERS = 2, WORKER = 77 };

/* Worker 1 holds its slot by the fixture's client. */
static int setup(void **state) {
    static const struct cluster nobody;
    run_fixture_setup(state, WORKERS);
    struct run_fixture *fixture = *state;
    struct run *run = &fixture->run;
    struct roster_slot *slot = &run->roster.slots[1];
    struct roster_claim claim = {WORKER, 1, 2, "h1", "h1:2", 0};
    fixture->peer = link_fixture_connect(fixture->wire);
    run->id = 1; /* as the fixture's post has it */
    run->cluster = &nobody;
    run->link = fixture->wire->server_link;
    roster_claim(slot, &claim, time_now());
    control_server_bind_peer(run->control_server, slot, fixture->peer);
    return 0;
}

FIXTURE(setup, run_fixture_teardown);

/* The next message to the worker, of kind BODY, becomes *CONTROL, the
 * caller's. */
static void receive(struct run_fixture *fixture, Capstan__Control **control) {
    struct link_frame frame;
    link_fixture_receive(fixture->wire->client, &frame);
    assert_ok(message_read_control(control, frame.header.data,
                                   frame.header.size, &failure));
    link_release(&frame);
}

/* By a connection that has come anew, or after seconds without a word. */
TEST(a_member_may_rejoin_in_every_phase) {
    struct run *run = &fixture->run;
    Capstan__Join join = CAPSTAN__JOIN__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    join.role = CLUSTER_WORKER;
    join.index = 1;
    control.run = run->id;
    control.incarnation = WORKER;
    control.body_case = CAPSTAN__CONTROL__BODY_JOIN;
    control.join = &join;
    for (int phase = RUN_JOINING; phase <= RUN_STOPPING; phase++) {
        struct roster_slot *slot = &run->roster.slots[1];
        struct control_message incoming = {
            .slot = slot, .control = &control, .peer = fixture->peer};
        run->phase = (enum run_phase)phase;
        membership_join(run, &incoming, time_now());
        assert_int_equal(slot->state, ROSTER_HELD);
        assert_int_equal(slot->incarnation, WORKER);
    }
    link_fixture_expect_nothing(fixture->wire->client);
}

/* It has been silent for long, whether it began the run or adopted it: two
 * would lead it. */
TEST(a_chief_whose_members_follow_a_later_one_ends) {
    struct run *run = &fixture->run;
    Capstan__Rejoin rejoin = CAPSTAN__REJOIN__INIT;
    Capstan__Join join = CAPSTAN__JOIN__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    join.role = CLUSTER_WORKER;
    join.index = 1;
    join.rejoin = &rejoin;
    control.run = run->id;
    control.incarnation = WORKER;
    control.body_case = CAPSTAN__CONTROL__BODY_JOIN;
    control.join = &join;
    for (int term = 0; term < 2; term++) {
        struct control_message incoming = {.slot = &run->roster.slots[1],
                                           .control = &control,
                                           .peer = fixture->peer};
        run->phase = RUN_TRAINING;
        run->code = FAILURE_NONE;
        run->term = rejoin.term = (uint64_t)term;
        assert_false(adopt_receive(run, &incoming, time_now()));
        assert_int_equal(run->phase, RUN_TRAINING);
        rejoin.term++;
        assert_true(adopt_receive(run, &incoming, time_now()));
        assert_int_equal(run->code, FAILURE_PEER_LOST);
    }
}

/* It has joined while the others trained, and finds out what is wrong when they
 * are done. */
TEST(a_failing_joiner_ends_alone_in_every_phase) {
    static const enum run_phase phases[] = {RUN_TRAINING, RUN_FINISHING};
    struct run *run = &fixture->run;
    Capstan__Failed failed = CAPSTAN__FAILED__INIT;
    failed.code = FAILURE_DATA_UNREADABLE;
    failed.text = "no data";
    for (int i = 0; i < 2; i++) {
        Capstan__Control *control;
        run->phase = phases[i];
        run->trainers[1] = (struct run_trainer){.declared = true};
        shutdown_receive_failed(run, &run->roster.slots[1], &failed);
        shutdown_receive_failed(run, &run->roster.slots[1],
                                &failed); /* as it leaves */
        assert_int_equal(run->phase, phases[i]);
        assert_false(run->trainers[1].declared);
        receive(fixture, &control);
        assert_int_equal(control->body_case, CAPSTAN__CONTROL__BODY_STOP);
        assert_int_equal(control->stop->code, FAILURE_DATA_UNREADABLE);
        message_free_control(&control);
    }
    link_fixture_expect_nothing(fixture->wire->client);
}

/* A signal is for its own process; a configuration that was valid when training
 * began is no longer the run's fault. */
TEST(a_failing_trainer_ends_the_run_with_the_code_of_the_cause) {
    static const struct {
        enum failure_code reported, ended;
    } cases[] = {
        {FAILURE_LOSS_NOT_FINITE, FAILURE_LOSS_NOT_FINITE},
        {FAILURE_PEER_SILENT, FAILURE_PEER_SILENT},
        {FAILURE_TERMINATED, FAILURE_RUN_INTERRUPTED},
        {FAILURE_DATA_UNREADABLE, FAILURE_MEMBER_MISCONFIGURED},
    };
    struct run *run = &((struct run_fixture *)fixture)->run;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Capstan__Failed failed = CAPSTAN__FAILED__INIT;
        failed.code = cases[i].reported;
        failed.text = "as reported";
        run->phase = RUN_TRAINING;
        run->trainers[1].from = 1;
        shutdown_receive_failed(run, &run->roster.slots[1], &failed);
        assert_int_equal(run->phase, RUN_STOPPING);
        assert_int_equal(run->code, cases[i].ended);
    }
}

/* The kernel kills it while it writes the checkpoint of a run that ends for its
 * want of memory: another try may find more. */
TEST(a_death_for_want_of_memory_is_worth_a_retry) {
    static const struct {
        enum failure_code interrupted, ended;
    } cases[] = {
        {FAILURE_TOO_LITTLE_MEMORY, FAILURE_PEER_LOST},
        {FAILURE_TERMINATED, FAILURE_TERMINATED},
    };
    struct run *run = &fixture->run;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        run->phase = RUN_TRAINING;
        run->allreduce = true;
        run->shutdown.interrupted = cases[i].interrupted;
        membership_remove(run, &run->roster.slots[1], false);
        assert_int_equal(run->phase, RUN_STOPPING);
        assert_int_equal(run->code, cases[i].ended);
    }
}

/* Without a signal a large checkpoint may take timeouts.step. */
TEST(a_signal_limits_a_save_for_want_of_memory) {
    struct run *run = &fixture->run;
    fixture->job.checkpoint.dir = "unused";
    fixture->job.timeouts.step = 1800;
    fixture->job.timeouts.grace = 30;
    run->phase = RUN_TRAINING;
    shutdown_interrupt(run, FAILURE_TOO_LITTLE_MEMORY, "ps 0: short of memory");
    int64_t now = time_now();
    assert_true(run->shutdown.grace_deadline > now + 1000 * TIME_S);
    shutdown_interrupt(run, FAILURE_TERMINATED, "ended by a signal");
    assert_int_equal(run->phase, RUN_TRAINING);
    assert_true(run->shutdown.grace_deadline < now + 60 * TIME_S);
    shutdown_interrupt(run, FAILURE_TERMINATED, "ended by a signal");
    assert_int_equal(run->phase, RUN_STOPPING);
}
