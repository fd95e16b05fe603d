/* SPDX-License-Identifier: Apache-2.0 */
#define STATE struct cluster_run *run

#include "tests/cluster/cluster_fixture.h"
#include "tests/lib/test.h"

#include <unistd.h>

enum { CONFIG = 2, ADDRESS = 64 };

/* Of 600 samples in batches of 10 and 3 epochs. */
static void expect_steps(struct cluster_process *leader, int steps) {
    const json_t *end = cluster_run_json(leader);
    assert_int_equal(json_integer_value(json_object_get(end, "steps")), steps);
}

static void run_cluster(struct cluster_run *run, unsigned num_chiefs,
                        const char *job, const char *said, int steps) {
    struct cluster_fixture fixture;
    cluster_run_job(run, job);
    cluster_fixture_describe(&fixture, run, num_chiefs, 1, 2);
    cluster_fixture_start_all(&fixture);
    cluster_fixture_expect_soon(&fixture, CLUSTER_FIXTURE_TASKS, 0);
    cluster_fixture_expect_logged(fixture.tasks[0].process, said);
    expect_steps(fixture.tasks[0].process, steps);
}

FIXTURE(cluster_run_setup, cluster_run_teardown);

TEST(worker_0_is_the_chief_when_none_is_listed) {
    run_cluster(run, 0, NULL, "2 trainers, 1 ps", 90);
}

TEST(worker_0_says_that_it_trains_where_a_chief_is_to_coordinate) {
    run_cluster(run, 0, "{\"chief\": \"coordinate\"}",
                "chief: \"coordinate\" has no effect", 90);
}

TEST(a_listed_chief_trains_too) {
    char line[1024];
    run_cluster(run, 1, NULL, "3 trainers, 1 ps", 60);
    FILE *said = fopen(cluster_run_path(run, "chief-0.err"), "r");
    assert_non_null(said);
    while (fgets(line, sizeof line, said)) /* its trainer's lines, too */
        assert_contains(line, " chief: ");
    fclose(said);
}

TEST(a_coordinating_chief_does_not_train) {
    run_cluster(run, 1, "{\"chief\": \"coordinate\"}", "2 trainers, 1 ps", 90);
}

static const char *address_of(const struct cluster_run *run, const char *type,
                              size_t index) {
    return json_string_value(
        json_array_get(json_object_get(run->cluster, type), index));
}

/* Starts NAME with one VARIABLE, given as a format with quotes single; the
 * addresses of the described cluster take the places of C0, P0, P1, W0, W1. */
static struct cluster_process *start(struct cluster_run *run, const char *name,
                                     const char *variable, bool leads) {
    char text[2048];
    size_t used = 0;
    for (const char *c = variable; *c; c++) {
        const char *type = *c == 'C'   ? "chief"
                           : *c == 'P' ? "ps"
                           : *c == 'W' ? "worker"
                                       : NULL;
        bool place = type && (c[1] == '0' || c[1] == '1');
        const char *with =
            place ? address_of(run, type, (size_t)(c[1] - '0')) : NULL;
        assert_true(used + ADDRESS < sizeof text);
        if (with)
            used += (size_t)snprintf(text + used, ADDRESS, "%s", with);
        else
            text[used++] = *c == '\'' ? '"' : *c;
        c += with != NULL;
    }
    text[used] = 0;
    return cluster_run_start(run, name,
                             WORDS("run", "--json", leads ? "job.json" : NULL),
                             WORDS(text));
}

struct part {
    const char *name, *variable;
};

/* All of PARTS (ended by a NULL name), the first of which leads, end well. */
static void run_roles(struct cluster_run *run, const struct part *parts,
                      const char *said, int steps) {
    struct cluster_process *processes[8];
    size_t count = 0;
    for (; parts[count].name; count++)
        processes[count] =
            start(run, parts[count].name, parts[count].variable, count == 0);
    for (size_t i = 0; i < count; i++)
        cluster_run_expect_soon(processes[i], 0);
    cluster_fixture_expect_logged(processes[0], said);
    expect_steps(processes[0], steps);
}

TEST(a_single_process_trains_without_ps) {
    cluster_run_job(run, NULL);
    cluster_run_describe(run, 0, 0, 1);
    run_roles(run, (const struct part[]){{"alone", "TF_CONFIG="}, {0}},
              "one trainer and no ps", 180);
    cluster_run_job(run, "{\"checkpoint\": {\"dir\": \"other\"}}");
    run_roles(run,
              (const struct part[]){
                  {"worker-0", "TF_CONFIG={'cluster': {'worker': ['W0']},"
                               " 'task': {'type': 'worker', 'index': 0}}"},
                  {0}},
              "one trainer and no ps", 180);
    cluster_fixture_expect_same_checkpoints(run, "checkpoint", "other");
}

TEST(a_ps_that_lists_only_itself_is_discovered_and_joins) {
    static const struct part parts[] = {
        {"chief-0", "TF_CONFIG={'cluster': {'chief': ['C0'], 'ps': ['P0', "
                    "'P1'], 'worker': ['W0']},"
                    " 'task': {'type': 'chief', 'index': 0}}"},
        {"ps-0", "TF_CONFIG={'cluster': {'ps': ['P0']},"
                 " 'task': {'type': 'ps', 'index': 0}}"},
        {"ps-1", "TF_CONFIG={'cluster': {'ps': ['P1']},"
                 " 'task': {'type': 'ps', 'index': 1}}"},
        {"worker-0", "TF_CONFIG={'cluster': {'chief': ['C0'], 'ps': ['P0', "
                     "'P1'], 'worker': ['W0']},"
                     " 'task': {'type': 'worker', 'index': 0}}"},
        {0}};
    cluster_run_job(run, NULL);
    cluster_run_describe(run, 1, 2, 1);
    run_roles(run, parts, "2 trainers, 2 ps", 90);
}

TEST(a_worker_without_a_chief_address_asks_a_ps) {
    static const struct part parts[] = {
        {"worker-0", "TF_CONFIG={'cluster': {'ps': ['P0'], 'worker': ['W0', "
                     "'W1']},"
                     " 'task': {'type': 'worker', 'index': 0}}"},
        {"ps-0", "TF_CONFIG={'cluster': {'ps': ['P0']},"
                 " 'task': {'type': 'ps', 'index': 0}}"},
        {"worker-1", "TF_CONFIG={'cluster': {'ps': ['P0'], 'worker': {'1': "
                     "'W1'}},"
                     " 'task': {'type': 'worker', 'index': 1}}"},
        {0}};
    cluster_run_job(run, NULL);
    cluster_run_describe(run, 0, 1, 2);
    run_roles(run, parts, "2 trainers, 1 ps", 90);
}

TEST(a_cluster_spec_replaces_a_tf_config) {
#define POOLS                                                                  \
    "CLUSTER_SPEC={'cluster': {'workerpool0': ['C0'], 'workerpool1': ['W0'],"  \
    " 'workerpool2': ['P0']}, 'task': "
    static const struct part parts[] = {
        {"chief-0", POOLS "{'type': 'workerpool0', 'index': 0}}"},
        {"worker-0", POOLS "{'type': 'workerpool1', 'index': 0}}"},
        {"ps-0", POOLS "{'type': 'workerpool2', 'index': 0}}"},
        {0}};
#undef POOLS
    cluster_run_job(run, NULL);
    cluster_run_describe(run, 1, 1, 1);
    run_roles(run, parts, "2 trainers, 1 ps", 90);
}

TEST(ports_of_ps_and_workers_may_be_zero) {
#define ZERO                                                                   \
    "TF_CONFIG={'cluster': {'chief': ['C0'], 'ps': ['127.0.0.1:0',"            \
    " '127.0.0.1:0'], 'worker': ['127.0.0.1:0']}, 'task': "
    static const struct part parts[] = {
        {"chief-0", ZERO "{'type': 'chief', 'index': 0}}"},
        {"worker-0", ZERO "{'type': 'worker', 'index': 0}}"},
        {"ps-0", ZERO "{'type': 'ps', 'index': 0}}"},
        {"ps-1", ZERO "{'type': 'ps', 'index': 1}}"},
        {0}};
#undef ZERO
    cluster_run_job(run, NULL);
    cluster_run_describe(run, 1, 0, 0);
    run_roles(run, parts, "2 trainers, 2 ps", 90);
}

static struct cluster_process *start_by_flags(struct cluster_run *run,
                                              const char *name,
                                              const char *type,
                                              const char *index, bool leads) {
    char ps[128], workers[128], job[64];
    const char *arguments[] = {
        "run", ps, workers, "--task_index", index, job, "--json", NULL, NULL};
    snprintf(ps, sizeof ps, "--ps_hosts=%s", address_of(run, "ps", 0));
    snprintf(workers, sizeof workers, "--worker_hosts=%s,%s",
             address_of(run, "worker", 0), address_of(run, "worker", 1));
    snprintf(job, sizeof job, "--job_name=%s", type);
    if (leads)
        arguments[7] = "job.json";
    return cluster_run_start(run, name, arguments, NULL);
}

TEST(flags_replace_a_tf_config) {
    struct cluster_process *processes[3];
    cluster_run_job(run, NULL);
    cluster_run_describe(run, 0, 1, 2);
    processes[0] = start_by_flags(run, "worker-0", "worker", "0", true);
    processes[1] = start_by_flags(run, "worker-1", "worker", "1", false);
    processes[2] = start_by_flags(run, "ps-0", "ps", "0", false);
    for (size_t i = 0; i < 3; i++)
        cluster_run_expect_soon(processes[i], 0);
    expect_steps(processes[0], 90);
}

/* The leader ends at once, and says TEXT. */
static void expect_refused(struct cluster_run *run, unsigned num_chiefs,
                           unsigned num_ps, unsigned num_workers,
                           const char *job, const char *text) {
    struct cluster_fixture fixture;
    cluster_run_job(run, job);
    cluster_fixture_describe(&fixture, run, num_chiefs, num_ps, num_workers);
    struct cluster_process *leader = cluster_fixture_start(&fixture, 0);
    cluster_run_expect_soon(leader, CONFIG);
    cluster_fixture_expect_logged(leader, text);
    assert_string_equal(cluster_run_output(leader), "");
}

TEST(a_cluster_without_trainers_is_refused) {
    expect_refused(run, 1, 1, 0, "{\"chief\": \"coordinate\"}",
                   "no trainer at all");
}

TEST(the_strategy_ps_needs_a_ps) {
    expect_refused(run, 0, 0, 2, "{\"strategy\": {\"type\": \"ps\"}}",
                   "lists no ps");
}

/* Under names of which only a process on this host knows that they are one. */
TEST(a_chief_and_a_ps_at_one_port_of_a_host_are_refused) {
    char host[256] = "", variables[2][1024];
    cluster_run_job(run, NULL);
    cluster_run_describe(run, 1, 1, 1);
    const char *port = strrchr(address_of(run, "chief", 0), ':');
    assert_int_equal(gethostname(host, sizeof host - 1), 0);
    for (int i = 0; i < 2; i++)
        snprintf(variables[i], sizeof variables[i],
                 "TF_CONFIG={'cluster': {'chief': ['localhost%s'], 'ps': "
                 "['%s%s'], 'worker': ['W0']}, 'task': {'type': '%s', 'index': "
                 "0}}",
                 port, host, port, i ? "ps" : "chief");
    struct cluster_process *chief = start(run, "chief-0", variables[0], true);
    cluster_run_expect_soon(chief, 2);
    struct cluster_process *ps = start(run, "ps-0", variables[1], false);
    cluster_run_expect_soon(ps, 2);
    cluster_fixture_expect_logged(chief, "address_twice");
    cluster_fixture_expect_logged(ps, "address_twice");
}
