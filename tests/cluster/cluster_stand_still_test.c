/* SPDX-License-Identifier: Apache-2.0 */
/* One process of a run stands still for less than timeouts.peer, which nobody
 * minds, and for longer, after which the run goes back or on: each role, by ps,
 * by all-reduce and by callers. */
#include "tests/cluster/cluster_fixture.h"
#include "tests/lib/test.h"

#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

enum { RETRY = 138, LONG = 4 * CLUSTER_RUN_DEADLINE };

FIXTURE(cluster_run_setup_in_memory, cluster_run_teardown);

/* How a run trains: by ps (0: all-reduce), and by a caller's model. */
struct still_form {
    unsigned num_ps, num_workers;
    const char *caller; /* of tests/library/caller.c, or NULL */
    const char *job;
    unsigned every; /* steps between checkpoints */
};

#define BY_CALLERS                                                             \
    "\"model\": {\"type\": \"external\"}, \"data\": null, \"steps\": 2000, "   \
    "\"optimizer\": {\"type\": \"SGD\", \"params\": {\"lr\": 0.1}}, "

/* Seconds of each, as all-reduce goes on without its chief. */
static const struct still_form forms[] = {
    {2, 2, NULL, "\"steps\": 4000, ", 100},
    {0, 3, NULL, "\"steps\": 40000, ", 1000},
    {2, 2, "rewinds", BY_CALLERS, 100}};

static void start_task(struct cluster_fixture *fixture,
                       const struct still_form *form, unsigned place) {
    struct cluster_fixture_task *task = &fixture->tasks[place];
    char caller[PATH_MAX];
    cluster_fixture_caller(caller);
    if (form->caller && !strcmp(task->type, "worker"))
        task->process = cluster_run_task_program(
            fixture->run, "worker", task->index, caller, WORDS(form->caller));
    else
        cluster_fixture_start(fixture, place);
}

static void start_form(struct cluster_fixture *fixture,
                       const struct still_form *form, const char *dir,
                       int peer) {
    cluster_run_job(fixture->run,
                    textf("{%s\"chief\": \"coordinate\", \"timeouts\": "
                          "{\"peer\": %d}, \"checkpoint\": {\"every_steps\": "
                          "%u, \"keep\": 1000, \"dir\": \"%s\"}}",
                          form->job, peer, form->every, dir));
    for (unsigned t = 0; t < fixture->count; t++)
        start_task(fixture, form, t);
}

static void run_undisturbed(struct cluster_fixture *fixture,
                            struct cluster_run *run,
                            const struct still_form *form) {
    cluster_fixture_describe(fixture, run, 1, form->num_ps, form->num_workers);
    start_form(fixture, form, "a", 10);
    cluster_fixture_expect(fixture, CLUSTER_FIXTURE_TASKS, 0, LONG);
}

static const char *const roles[] = {"chief", "ps", "worker"};
enum { ROLES = 3 };

/* The place of a process of ROLE; false: FORM has none. */
static bool find_role(const struct cluster_fixture *fixture,
                      const struct still_form *form, unsigned role,
                      unsigned *place) {
    bool exists = role != 1 || form->num_ps;
    if (exists)
        *place = cluster_fixture_find(fixture, roles[role], role ? 1 : 0);
    return exists;
}

/* Each role in turn for less than timeouts.peer. */
static void expect_short_stops_are_harmless(void **state,
                                            const struct still_form *form) {
    struct cluster_fixture fixture;
    run_undisturbed(&fixture, *state, form);
    start_form(&fixture, form, "b", 10);
    struct cluster_process *chief = fixture.tasks[0].process;
    for (unsigned role = 0, place; role < ROLES; role++) {
        if (!find_role(&fixture, form, role, &place))
            continue;
        cluster_run_await_soon(chief, "chief: checkpoint ");
        cluster_run_signal(fixture.tasks[place].process, SIGSTOP);
        cluster_fixture_sleep(3); /* how long it stands still */
        cluster_run_signal(fixture.tasks[place].process, SIGCONT);
    }
    cluster_fixture_expect(&fixture, CLUSTER_FIXTURE_TASKS, 0, LONG);
    assert_int_equal(
        json_integer_value(json_object_get(cluster_run_json(chief), "rewinds")),
        0);
    assert_false(cluster_fixture_has_logged(chief, "is gone"));
    cluster_fixture_expect_same_checkpoints(*state, "a", "b");
}

TEST(each_role_of_a_run_by_ps_may_stand_still_for_3_s) {
    expect_short_stops_are_harmless(state, &forms[0]);
}

TEST(each_role_of_all_reduce_may_stand_still_for_3_s) {
    expect_short_stops_are_harmless(state, &forms[1]);
}

TEST(each_role_of_a_run_of_callers_may_stand_still_for_3_s) {
    expect_short_stops_are_harmless(state, &forms[2]);
}

/* Until all that miss the process at PLACE have said so. */
static void await_missed(const struct cluster_fixture *fixture, unsigned place,
                         bool goes_back) {
    for (unsigned t = 1; !place && t < fixture->count; t++)
        cluster_run_await_soon(fixture->tasks[t].process,
                               "waits up to 300 s (timeouts.chief)");
    if (place)
        cluster_run_await_soon(fixture->tasks[0].process,
                               goes_back ? "the run goes back to " : "is gone");
}

/* The process at PLACE for longer than timeouts.peer: a member is told that it
 * is dead, and is started again. A run by ps goes on without the samples of a
 * worker. */
static void expect_long_stop_is_survived(struct cluster_fixture *fixture,
                                         const struct still_form *form,
                                         unsigned place) {
    const char *type = fixture->tasks[place].type;
    bool goes_back = strcmp(type, "worker") != 0 || !form->num_ps;
    print_message("# %s\n", type);
    assert_int_equal(system(textf("rm -rf '%s/b'", fixture->run->folder)), 0);
    start_form(fixture, form, "b", 3);
    struct cluster_process *still = fixture->tasks[place].process;
    cluster_run_await_soon(fixture->tasks[0].process, "chief: checkpoint ");
    cluster_run_signal(still, SIGSTOP);
    await_missed(fixture, place, goes_back);
    cluster_run_signal(still, SIGCONT);
    if (place) {
        cluster_run_expect(still, RETRY, LONG);
        start_task(fixture, form, place);
    }
    cluster_fixture_expect(fixture, CLUSTER_FIXTURE_TASKS, 0, LONG);
    if (goes_back)
        cluster_fixture_expect_same_checkpoints(fixture->run, "a", "b");
}

static void expect_long_stops_are_survived(void **state,
                                           const struct still_form *form) {
    struct cluster_fixture fixture;
    run_undisturbed(&fixture, *state, form);
    for (unsigned role = 0, place; role < ROLES; role++)
        if (find_role(&fixture, form, role, &place))
            expect_long_stop_is_survived(&fixture, form, place);
}

TEST(each_role_of_a_run_by_ps_may_stand_still_for_longer) {
    expect_long_stops_are_survived(state, &forms[0]);
}

TEST(each_role_of_all_reduce_may_stand_still_for_longer) {
    expect_long_stops_are_survived(state, &forms[1]);
}

TEST(each_role_of_a_run_of_callers_may_stand_still_for_longer) {
    expect_long_stops_are_survived(state, &forms[2]);
}
