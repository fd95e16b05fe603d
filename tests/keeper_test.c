#include "worker/reduce/keeper.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "chief/transfer.h"
#include "proto/base/time.h"
#include "proto/store/checkpoint.h"
#include "tests/checkpoint_fixture.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { RUN = 5, RANK0 = 6, CHIEF = 7, TOTAL = 100, MOST = 8 };
#define ASKED ((UINT64_C(1) << 63) + 1)
static const int64_t LIMIT = 20 * TIME_S;

/* What the keeper tells the chief, and what it orders of the reducer. */
static struct {
    Capstan__Control__BodyCase kind[MOST];
    uint64_t id[MOST], number[MOST]; /* highest, or step */
    bool written[MOST], failed[MOST];
    unsigned told;
    uint64_t round, save_round;
    bool saved_now, ready, shares;
} seen;

static uint64_t round_of(void *context) {
    (void)context;
    return seen.round;
}

static void save(void *context, uint64_t round) {
    (void)context;
    seen.save_round = round;
}

static void save_now(void *context) {
    (void)context;
    seen.saved_now = true;
}

static void tell(void *context, Capstan__Control *control) {
    (void)context;
    if (control->body_case == CAPSTAN__CONTROL__BODY_READY) {
        seen.ready = true;
        seen.shares = control->ready->shares_folder;
        return;
    }
    assert_true(seen.told < MOST);
    unsigned i = seen.told++;
    seen.kind[i] = control->body_case;
    if (control->body_case == CAPSTAN__CONTROL__BODY_CUT_MARK) {
        seen.id[i] = control->cut_mark->id;
        seen.number[i] = control->cut_mark->highest;
        return;
    }
    assert_int_equal(control->body_case, CAPSTAN__CONTROL__BODY_CUT_DONE);
    seen.id[i] = control->cut_done->id;
    seen.number[i] = control->cut_done->step;
    seen.written[i] = control->cut_done->written;
    seen.failed[i] = control->cut_done->error[0];
}

struct fixture {
    void *zmq;
    struct log log;
    char folder[PATH_MAX];
    struct manifest manifest;
    struct job job;
    struct plan plan;
    struct buffer *weights;
    uint64_t offsets[3];
    unsigned opened;
    struct keeper *keeper;
    char inside[32]; /* another name each time: closing takes a moment */
    const struct reducer_keeper *calls;
    float *tensors[3];
    uint64_t due; /* round that save_due hands over */
    bool sets;    /* what transfer does, and how that ended */
    enum status moved;
};

/* The model of checkpoint_fixture: two state slots, as Adam has. */
static int enter(void **state) {
    struct fixture *fixture = calloc(1, sizeof *fixture);
    memset(&seen, 0, sizeof seen);
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
    fixture->plan = (struct plan){.layout = layout,
                                  .num_ranks = 2,
                                  .allreduce = true,
                                  .checkpoint_dir = fixture->folder,
                                  .rounds = {.total = TOTAL, .start = 20}};
    for (int t = 0; t < 3; t++)
        fixture->tensors[t] =
            calloc(layout->block_elements, sizeof *fixture->tensors[t]);
    *state = fixture;
    return 0;
}

static int leave(void **state) {
    struct fixture *fixture = *state;
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

static void open_unattached(struct fixture *fixture) {
    snprintf(fixture->inside, sizeof fixture->inside, "keeper-%u",
             fixture->opened++);
    struct failure why;
    struct keeper_settings settings = {
        .zmq = fixture->zmq,
        .log = &fixture->log,
        .tell = tell,
        .run = RUN,
        .incarnation = RANK0,
        .job = &fixture->job,
        .plan = &fixture->plan,
        .chief = CHIEF,
        .inside = fixture->inside,
        .weights = fixture->weights,
        .offsets = fixture->offsets,
    };
    assert_int_equal(keeper_open(&fixture->keeper, &settings, &why), STATUS_OK);
    fixture->calls = keeper_calls(fixture->keeper);
}

static void attach(struct fixture *fixture) {
    const struct keeper_rounds rounds = {NULL, round_of, save, save_now};
    keeper_attach(fixture->keeper, &rounds);
}

static void open_keeper(struct fixture *fixture) {
    open_unattached(fixture);
    attach(fixture);
}

static void save_block(struct fixture *fixture, uint64_t round, uint32_t b) {
    const float *tensors[3] = {fixture->tensors[0], fixture->tensors[1],
                               fixture->tensors[2]};
    struct failure why;
    assert_int_equal(
        fixture->calls->save(fixture->calls->context, round, b, tensors, &why),
        STATUS_OK);
}

/* As the reducer does after a round to be saved. */
static void hand_over(struct fixture *fixture, uint64_t round) {
    seen.round = round;
    for (uint32_t b = 0; b < fixture->plan.layout->num_blocks; b++)
        save_block(fixture, round, b);
}

static void await_told(struct fixture *fixture, unsigned count) {
    int64_t until = time_now() + LIMIT;
    while (seen.told < count && time_now() < until) {
        zmq_pollitem_t items[KEEPER_POLL_ITEMS];
        keeper_poll_items(fixture->keeper, items);
        zmq_poll(items, KEEPER_POLL_ITEMS, time_poll_ms(time_now(), until));
        keeper_step(fixture->keeper);
    }
    assert_int_equal(seen.told, count);
}

static void obey_cut(struct fixture *fixture, uint64_t id, uint64_t round,
                     bool write) {
    Capstan__Cut cut = CAPSTAN__CUT__INIT;
    Capstan__Control order = CAPSTAN__CONTROL__INIT;
    cut.id = id;
    cut.round = round;
    cut.write = write;
    order.body_case = CAPSTAN__CONTROL__BODY_CUT;
    order.cut = &cut;
    keeper_obey(fixture->keeper, &order);
}

static void ask(struct fixture *fixture) {
    Capstan__CutAsk question = CAPSTAN__CUT_ASK__INIT;
    Capstan__Control order = CAPSTAN__CONTROL__INIT;
    question.id = ASKED;
    order.body_case = CAPSTAN__CONTROL__BODY_CUT_ASK;
    order.cut_ask = &question;
    keeper_obey(fixture->keeper, &order);
}

static void it_is_ready_and_says_whether_it_sees_the_folder(void **state) {
    struct fixture *fixture = *state;
    open_keeper(fixture);
    assert_true(seen.ready);
    assert_false(seen.shares);
    keeper_close(&fixture->keeper);
    char path[PATH_MAX];
    checkpoint_mark(fixture->folder, RUN, path, sizeof path);
    fclose(fopen(path, "w"));
    open_keeper(fixture);
    assert_true(seen.shares);
}

static void a_planned_round_is_written_and_told(void **state) {
    struct fixture *fixture = *state;
    open_keeper(fixture);
    hand_over(fixture, 30);
    await_told(fixture, 1);
    assert_int_equal(seen.id[0], 30);
    assert_true(seen.written[0]);
}

/* Round 21 is under way when the chief asks: 22 is the first that can be told
 * to all ranks. */
static void an_asked_round_is_the_next_that_has_not_begun(void **state) {
    struct fixture *fixture = *state;
    open_keeper(fixture);
    ask(fixture);
    assert_int_equal(seen.kind[0], CAPSTAN__CONTROL__BODY_CUT_MARK);
    assert_int_equal(seen.number[0], 21);
    obey_cut(fixture, ASKED, 22, true);
    assert_int_equal(seen.save_round, 22);
    fixture->calls->pause(fixture->calls->context, 21);
    hand_over(fixture, 22);
    seen.round = 25; /* the rounds go on before it is told */
    await_told(fixture, 3);
    assert_int_equal(seen.id[1], ASKED);
    assert_int_equal(seen.number[1], 22);
    assert_false(seen.written[1] || seen.failed[1]); /* held */
    assert_int_equal(seen.id[2], ASKED);
    assert_true(seen.written[2]);
}

static void what_is_under_way_is_the_highest_there_may_be(void **state) {
    struct fixture *fixture = *state;
    open_keeper(fixture);
    fixture->calls->pause(fixture->calls->context, 21);
    ask(fixture);
    assert_int_equal(seen.number[0], 22);
    obey_cut(fixture, ASKED, 23, true);
    fixture->calls->pause(fixture->calls->context, TOTAL);
    ask(fixture); /* no round follows */
    assert_int_equal(seen.number[1], TOTAL);
}

static void a_planned_round_before_the_asked_one_has_its_own_id(void **state) {
    struct fixture *fixture = *state;
    open_keeper(fixture);
    ask(fixture);
    obey_cut(fixture, ASKED, 22, true);
    hand_over(fixture, 21);
    await_told(fixture, 2);
    assert_int_equal(seen.id[1], 21);
    assert_true(seen.written[1]);
}

static void a_round_that_is_only_read_is_not_saved(void **state) {
    struct fixture *fixture = *state;
    open_keeper(fixture);
    ask(fixture);
    obey_cut(fixture, ASKED, 22, false);
    assert_int_equal(seen.save_round, 0);
}

static void without_a_directory_nothing_is_saved(void **state) {
    struct fixture *fixture = *state;
    fixture->plan.checkpoint_dir = NULL;
    open_keeper(fixture);
    assert_true(seen.shares);
    hand_over(fixture, 30);
    zmq_pollitem_t items[KEEPER_POLL_ITEMS];
    keeper_poll_items(fixture->keeper, items);
    assert_int_equal(zmq_poll(items, KEEPER_POLL_ITEMS, 50), 0);
}

static void *enter_round(void *argument) {
    const struct fixture *fixture = argument;
    fixture->calls->pause(fixture->calls->context, 21);
    return NULL;
}

/* WORK on THREAD does not come back in a while. */
static void expect_held_back(struct fixture *fixture, pthread_t *thread,
                             void *(*work)(void *)) {
    struct timespec until;
    assert_int_equal(pthread_create(thread, NULL, work, fixture), 0);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 50 * TIME_MS;
    until.tv_sec += until.tv_nsec / TIME_S;
    until.tv_nsec %= TIME_S;
    assert_int_equal(pthread_timedjoin_np(*thread, NULL, &until), ETIMEDOUT);
}

/* Within the deadline. */
static void expect_through(pthread_t thread) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += LIMIT / TIME_S;
    assert_int_equal(pthread_timedjoin_np(thread, NULL, &until), 0);
}

static void until_it_is_told_the_next_round_waits(void **state) {
    struct fixture *fixture = *state;
    pthread_t thread;
    open_keeper(fixture);
    ask(fixture);
    expect_held_back(fixture, &thread, enter_round);
    obey_cut(fixture, ASKED, 22, true);
    expect_through(thread);
}

static void a_round_that_waits_ends_with_the_run(void **state) {
    struct fixture *fixture = *state;
    pthread_t thread;
    open_keeper(fixture);
    ask(fixture);
    expect_held_back(fixture, &thread, enter_round);
    keeper_cancel(fixture->keeper);
    expect_through(thread);
}

/* The file of round 30 lacks its last blocks when round 31 is due. */
static void what_is_due_while_another_is_written_is_left_out_and_told(
    void **state) {
    struct fixture *fixture = *state;
    open_keeper(fixture);
    save_block(fixture, 30, 0);
    hand_over(fixture, 31);
    await_told(fixture, 1);
    assert_int_equal(seen.id[0], 31);
    assert_true(seen.failed[0]);
}

/* Nothing is being written then: to say so would be a lie. */
static void what_comes_after_the_end_is_not_said_to_be_left_out(void **state) {
    struct fixture *fixture = *state;
    open_keeper(fixture);
    keeper_cancel(fixture->keeper);
    hand_over(fixture, 30);
    keeper_step(fixture->keeper);
    assert_int_equal(seen.told, 0);
}

static void *save_due(void *argument) {
    struct fixture *fixture = argument;
    save_block(fixture, fixture->due, 0);
    return NULL;
}

/* The run's last, and one that was asked for: they wait for the disk. */
static void some_are_never_left_out(void **state) {
    struct fixture *fixture = *state;
    for (int asked = 0; asked < 2; asked++) {
        pthread_t thread;
        open_keeper(fixture);
        save_block(fixture, 30, 0);
        fixture->due = asked ? 31 : TOTAL;
        if (asked)
            obey_cut(fixture, ASKED, 31, true);
        expect_held_back(fixture, &thread, save_due);
        keeper_cancel(fixture->keeper);
        expect_through(thread);
        keeper_close(&fixture->keeper);
    }
}

/* On the chief's side: a parameter of snapshot ASKED is read, or set. */
static void *transfer(void *argument) {
    static uint32_t ps_of_block[64];
    static float floats[1 << 20];
    struct fixture *fixture = argument;
    struct transfer_place place = {.incarnation = RANK0};
    struct transfer_settings settings = {
        .zmq = fixture->zmq,
        .run = RUN,
        .incarnation = CHIEF,
        .layout = fixture->plan.layout,
        .ps_of_block = ps_of_block,
        .ps = &place,
        .num_ps = 1,
        .inside = fixture->inside,
        .step_timeout = 20,
        .cancel = -1,
    };
    struct transfer *chief;
    struct failure why;
    fixture->moved = transfer_open(&chief, &settings, &why);
    if (!fixture->moved)
        fixture->moved = fixture->sets
                             ? transfer_assign(chief, 0, floats, &why)
                             : transfer_read(chief, 0, ASKED, floats, &why);
    transfer_close(&chief);
    return NULL;
}

static enum status move(struct fixture *fixture, bool sets) {
    pthread_t thread;
    fixture->sets = sets;
    assert_int_equal(pthread_create(&thread, NULL, transfer, fixture), 0);
    while (pthread_tryjoin_np(thread, NULL)) {
        zmq_pollitem_t items[KEEPER_POLL_ITEMS];
        keeper_poll_items(fixture->keeper, items);
        zmq_poll(items, KEEPER_POLL_ITEMS, 20);
        keeper_step(fixture->keeper);
    }
    return fixture->moved;
}

static void weights_are_read_from_the_cut_to_its_end(void **state) {
    struct fixture *fixture = *state;
    Capstan__CutEnd end = CAPSTAN__CUT_END__INIT;
    Capstan__Control order = CAPSTAN__CONTROL__INIT;
    open_keeper(fixture);
    assert_int_equal(move(fixture, false), STATUS_FAILED);
    obey_cut(fixture, ASKED, 0, false);
    assert_int_equal(move(fixture, false), STATUS_OK);
    end.id = ASKED;
    order.body_case = CAPSTAN__CONTROL__BODY_CUT_END;
    order.cut_end = &end;
    keeper_obey(fixture->keeper, &order);
    assert_int_equal(move(fixture, false), STATUS_FAILED);
}

static void weights_are_set_and_nothing_is_cut_before_the_rounds(void **state) {
    struct fixture *fixture = *state;
    open_unattached(fixture);
    ask(fixture);
    obey_cut(fixture, ASKED, 0, true);
    assert_int_equal(seen.told, 0);
    assert_int_equal(move(fixture, true), STATUS_OK);
    attach(fixture);
    assert_int_equal(move(fixture, true), STATUS_FAILED);
}

static void keep_newer(struct fixture *fixture) {
    uint64_t newer = 40;
    Capstan__Keep keep = CAPSTAN__KEEP__INIT;
    Capstan__Control order = CAPSTAN__CONTROL__INIT;
    keep.steps = &newer;
    keep.n_steps = 1;
    order.body_case = CAPSTAN__CONTROL__BODY_KEEP;
    order.keep = &keep;
    keeper_obey(fixture->keeper, &order);
}

/* In its own folder; in the one that the chief sees that is the chief's. */
static void what_the_chief_does_not_keep_is_removed(void **state) {
    struct fixture *fixture = *state;
    char folder[PATH_MAX], path[PATH_MAX];
    checkpoint_fixture_write(fixture->folder, 20, 1);
    checkpoint_folder(fixture->folder, 20, folder, sizeof folder);
    checkpoint_mark(fixture->folder, RUN, path, sizeof path);
    fclose(fopen(path, "w"));
    open_keeper(fixture);
    keep_newer(fixture);
    assert_int_equal(access(folder, F_OK), 0);
    keeper_close(&fixture->keeper);
    unlink(path);
    open_keeper(fixture);
    keep_newer(fixture);
    assert_int_equal(access(folder, F_OK), -1);
}

/* The chief says so by the planned round's id. */
static void an_asked_round_that_stands_in_the_plan_only_goes_on(void **state) {
    struct fixture *fixture = *state;
    open_keeper(fixture);
    ask(fixture);
    obey_cut(fixture, 22, 22, false);
    fixture->calls->pause(fixture->calls->context, 21);
    assert_int_equal(seen.save_round, 0);
    hand_over(fixture, 22);
    await_told(fixture, 2);
    assert_int_equal(seen.id[1], 22);
    assert_true(seen.written[1]);
}

static void with_nobody_training_all_ranks_hand_over_at_once(void **state) {
    struct fixture *fixture = *state;
    open_keeper(fixture);
    seen.round = TOTAL;
    obey_cut(fixture, ASKED, 0, false);
    assert_int_equal(seen.told, 1);
    assert_int_equal(seen.number[0], TOTAL);
    assert_false(seen.saved_now);
    obey_cut(fixture, ASKED, 0, true);
    assert_true(seen.saved_now);
    hand_over(fixture, TOTAL);
    await_told(fixture, 2);
    assert_int_equal(seen.id[1], ASKED);
    assert_true(seen.written[1]);
}

static void what_cannot_be_written_is_told_to_the_chief(void **state) {
    struct fixture *fixture = *state;
    char blocked[PATH_MAX + 32];
    open_keeper(fixture);
    snprintf(blocked, sizeof blocked, "%s/step-000000030", fixture->folder);
    fclose(fopen(blocked, "w"));
    hand_over(fixture, 30);
    await_told(fixture, 1);
    assert_int_equal(seen.id[0], 30);
    assert_true(seen.failed[0]);
}

/* Weights, first and second moments; the files are of two ps. */
static void a_checkpoint_of_any_number_of_ps_is_read(void **state) {
    struct fixture *fixture = *state;
    struct manifest manifest;
    struct failure why;
    char folder[PATH_MAX];
    checkpoint_fixture_write(fixture->folder, 20, 2);
    checkpoint_folder(fixture->folder, 20, folder, sizeof folder);
    assert_int_equal(manifest_read(&manifest, folder, &why), STATUS_OK);
    fixture->plan.restore_folder = folder;
    fixture->plan.restore_manifest = manifest_text(&manifest);
    open_keeper(fixture);
    for (uint32_t b = 0; b < fixture->plan.layout->num_blocks; b++) {
        const struct block *block = &fixture->plan.layout->blocks[b];
        assert_int_equal(fixture->calls->load(fixture->calls->context, b,
                                              fixture->tensors, &why),
                         STATUS_OK);
        for (uint16_t t = 0; t < 3; t++)
            for (uint32_t i = 0; i < block->elements; i++)
                assert_true(fixture->tensors[t][i] ==
                            checkpoint_fixture_value(20, block->parameter, t,
                                                     block->offset + i));
    }
    keeper_close(&fixture->keeper);
    free(fixture->plan.restore_manifest);
    manifest_clear(&manifest);
}

static void weights_that_the_chief_has_set_are_begun_with(void **state) {
    struct fixture *fixture = *state;
    struct failure why;
    float *weights = (float *)buffer_data(fixture->weights);
    const struct block *first = &fixture->plan.layout->blocks[0];
    open_keeper(fixture);
    weights[fixture->offsets[first->parameter] + first->offset] = 0.5f;
    fixture->tensors[1][0] = 3;
    assert_int_equal(fixture->calls->load(fixture->calls->context, 0,
                                          fixture->tensors, &why),
                     STATUS_OK);
    assert_true(fixture->tensors[0][0] == 0.5f);
    assert_true(fixture->tensors[1][0] == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(
            it_is_ready_and_says_whether_it_sees_the_folder, enter, leave),
        cmocka_unit_test_setup_teardown(a_planned_round_is_written_and_told,
                                        enter, leave),
        cmocka_unit_test_setup_teardown(
            an_asked_round_is_the_next_that_has_not_begun, enter, leave),
        cmocka_unit_test_setup_teardown(until_it_is_told_the_next_round_waits,
                                        enter, leave),
        cmocka_unit_test_setup_teardown(a_round_that_waits_ends_with_the_run,
                                        enter, leave),
        cmocka_unit_test_setup_teardown(
            what_is_under_way_is_the_highest_there_may_be, enter, leave),
        cmocka_unit_test_setup_teardown(
            a_planned_round_before_the_asked_one_has_its_own_id, enter, leave),
        cmocka_unit_test_setup_teardown(a_round_that_is_only_read_is_not_saved,
                                        enter, leave),
        cmocka_unit_test_setup_teardown(without_a_directory_nothing_is_saved,
                                        enter, leave),
        cmocka_unit_test_setup_teardown(
            what_comes_after_the_end_is_not_said_to_be_left_out, enter, leave),
        cmocka_unit_test_setup_teardown(some_are_never_left_out, enter, leave),
        cmocka_unit_test_setup_teardown(
            weights_are_read_from_the_cut_to_its_end, enter, leave),
        cmocka_unit_test_setup_teardown(
            weights_are_set_and_nothing_is_cut_before_the_rounds, enter, leave),
        cmocka_unit_test_setup_teardown(
            what_is_due_while_another_is_written_is_left_out_and_told, enter,
            leave),
        cmocka_unit_test_setup_teardown(what_the_chief_does_not_keep_is_removed,
                                        enter, leave),
        cmocka_unit_test_setup_teardown(
            an_asked_round_that_stands_in_the_plan_only_goes_on, enter, leave),
        cmocka_unit_test_setup_teardown(
            with_nobody_training_all_ranks_hand_over_at_once, enter, leave),
        cmocka_unit_test_setup_teardown(
            what_cannot_be_written_is_told_to_the_chief, enter, leave),
        cmocka_unit_test_setup_teardown(
            a_checkpoint_of_any_number_of_ps_is_read, enter, leave),
        cmocka_unit_test_setup_teardown(
            weights_that_the_chief_has_set_are_begun_with, enter, leave),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
