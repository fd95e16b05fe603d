/* SPDX-License-Identifier: Apache-2.0 */
/* Real processes that find out who is on their machine, by the devices that
 * they see: fake ones (tests/gpu/fake_device.h), as many as the environment
 * says, of the machine that it names. And what counts the devices they take by
 * that: comparisons and simulations. */
#define STATE struct cluster_run *run

#include "tests/cluster/cluster_fixture.h"
#include "tests/cluster/cluster_run.h"
#include "tests/lib/build_folder.h"
#include "tests/lib/test.h"

#include <signal.h>
#include <stdlib.h>

enum { DEADLINE = 2 * CLUSTER_RUN_DEADLINE };

#define JOB "\"steps\": 20, \"device\": \"cuda\""
static const char job[] = "{" JOB "}";
static const char *const leads[] = {"job.json", NULL};
static const char *const apart[] = {"127.0.0.1", "127.0.0.2"};

/* A ps and two workers, each at one of HOSTS. */
static void describe(struct cluster_run *run, const char *const *hosts) {
    cluster_run_describe(run, 0, 1, 2);
    json_t *list = json_object_get(run->cluster, "worker");
    for (size_t i = 0; i < 2; i++) {
        const char *address = json_string_value(json_array_get(list, i));
        json_array_set_new(
            list, i,
            json_string(textf("%s%s", hosts[i], strrchr(address, ':'))));
    }
}

/* Starts worker INDEX, who sees GPUS ("devices=2,machine=1"); the first leads.
 */
static struct cluster_process *start_worker(struct cluster_run *run,
                                            unsigned index, const char *gpus,
                                            const char *const *arguments) {
    bool own = index == 0 || arguments != leads;
    setenv("CAPSTAN_FAKE_DEVICE", gpus, 1);
    struct cluster_process *process =
        cluster_run_task(run, "worker", index, own ? arguments : NULL);
    unsetenv("CAPSTAN_FAKE_DEVICE");
    return process;
}

GROUP(build_folder_use_fake, NULL);

FIXTURE(cluster_run_setup, cluster_run_teardown);

TEST(trainers_on_one_host_use_one_device_each) {
    cluster_run_job(run, job);
    struct cluster_process *local = cluster_run_start(
        run, "local", WORDS("local", "--workers", "2", "job.json"),
        WORDS("CAPSTAN_FAKE_DEVICE=devices=4"));
    cluster_run_expect(local, 0, DEADLINE);
    cluster_fixture_expect_logged(local, "replicas: 2 (2 workers x 1 device)");
    cluster_fixture_expect_logged(local, "fewer trainers than devices here");
}

/* Two workers at ADDRESSES, who see GPUS, end well; the lines that EXPECTED
 * has for each are said. */
static void expect_shared(void **state, const char *const *addresses,
                          const char *const *gpus, const char *replicas,
                          const char *const *expected) {
    struct cluster_run *run = cluster_fixture_reset(state);
    struct cluster_process *workers[2];
    cluster_run_job(run, job);
    describe(run, addresses);
    struct cluster_process *ps = cluster_run_task(run, "ps", 0, NULL);
    for (unsigned i = 0; i < 2; i++)
        workers[i] = start_worker(run, i, gpus[i], leads);
    for (unsigned i = 0; i < 2; i++)
        cluster_run_expect(workers[i], 0, DEADLINE);
    cluster_run_expect(ps, 0, DEADLINE);
    cluster_fixture_expect_logged(workers[0], replicas);
    for (unsigned i = 0; i < 2; i++)
        cluster_fixture_expect_logged(workers[i], expected[i]);
}

TEST(a_host_with_two_names_is_one_host) {
    static const char *const gpus[] = {"devices=4", "devices=4"};
    static const char *const expected[] = {"device cuda 0 of 4",
                                           "device cuda 1 of 4"};
    static const char *const names[][2] = {{"localhost", "127.0.0.1"},
                                           {"127.0.0.2", "127.0.0.3"},
                                           {"127.0.0.1", "127.0.0.1"}};
    for (int i = 0; i < 3; i++)
        expect_shared(state, names[i], gpus,
                      "replicas: 2 (2 workers x 1 device)", expected);
}

TEST(two_machines_of_one_name_are_two_hosts) {
    static const char *const names[] = {"127.0.0.1", "127.0.0.1"};
    static const char *const gpus[] = {"devices=2,machine=1",
                                       "devices=2,machine=2"};
    static const char *const expected[] = {"device cuda 1 of 2",
                                           "device cuda 1 of 2"};
    expect_shared(state, names, gpus, "replicas: 4 (2 workers x 2 devices)",
                  expected);
}

TEST(a_trainer_with_devices_of_its_own_uses_them_all) {
    static const char *const names[] = {"127.0.0.1", "127.0.0.1"};
    static const char *const gpus[] = {"devices=2,first=0",
                                       "devices=2,first=2"};
    static const char *const overlapping[] = {"devices=2,first=0",
                                              "devices=2,first=1"};
    static const char *const all[] = {"device cuda 1 of 2",
                                      "device cuda 1 of 2"};
    static const char *const one[] = {"device cuda 0 of 2",
                                      "device cuda 1 of 2"};
    expect_shared(state, names, gpus, "replicas: 4 (2 workers x 2 devices)",
                  all);
    expect_shared(state, names, overlapping,
                  "replicas: 2 (2 workers x 1 device)", one);
}

TEST(devices_without_ids_are_matched_by_host_name) {
    static const char *const one[] = {"127.0.0.1", "127.0.0.1"};
    static const char *const two[] = {"127.0.0.2", "127.0.0.3"};
    static const char *const gpus[] = {"devices=2,nameless",
                                       "devices=2,nameless"};
    static const char *const each[] = {"device cuda 0 of 2",
                                       "device cuda 1 of 2"};
    expect_shared(state, one, gpus, "replicas: 2 (2 workers x 1 device)", each);
    expect_shared(state, two, gpus, "replicas: 4 (2 workers x 2 devices)",
                  (const char *const[]){each[1], each[1]});
}

/* It still counts as one of two on the machine. */
TEST(a_run_that_goes_back_without_a_worker_gives_the_other_its_device) {
    struct cluster_fixture fixture;
    cluster_run_job(run, "{\"epochs\": 900, \"device\": \"cuda\", \"chief\": "
                         "\"coordinate\", \"checkpoint\": {\"every_steps\": "
                         "250}, \"timeouts\": {\"peer\": 2}}");
    setenv("CAPSTAN_FAKE_DEVICE", "devices=4", 1);
    cluster_fixture_describe(&fixture, run, 1, 1, 2);
    cluster_fixture_start_all(&fixture);
    unsigned ps = cluster_fixture_find(&fixture, "ps", 0);
    unsigned worker = cluster_fixture_find(&fixture, "worker", 1);
    struct cluster_process *leader = fixture.tasks[0].process;
    cluster_run_await_soon(leader, "chief: checkpoint ");
    cluster_run_signal(fixture.tasks[worker].process, SIGKILL);
    cluster_run_await_soon(leader, "nothing of worker 1's share");
    cluster_run_await_soon(leader, "chief: checkpoint ");
    cluster_run_signal(fixture.tasks[ps].process, SIGKILL);
    cluster_run_await_soon(leader, "the run goes back to its checkpoint");
    cluster_fixture_start(&fixture, ps);
    cluster_run_await_soon(leader, "the run goes on after step ");
    cluster_fixture_start(&fixture, worker);
    unsetenv("CAPSTAN_FAKE_DEVICE");
    cluster_fixture_expect(&fixture, CLUSTER_FIXTURE_TASKS, 0, DEADLINE);
    cluster_fixture_expect_logged(leader, "replicas: 2 (2 workers x 1 device)");
}

/* Who was told its rank is one of several processes, one a device. */
TEST(a_given_local_rank_selects_the_device) {
    static const char *const first[] = {"--local_rank=3", "job.json", NULL};
    static const char *const second[] = {"--local_rank=2", NULL};
    cluster_run_job(run, job);
    describe(run, apart);
    struct cluster_process *ps = cluster_run_task(run, "ps", 0, NULL);
    struct cluster_process *leader = start_worker(run, 0, "devices=4", first);
    struct cluster_process *other = start_worker(run, 1, "devices=4", second);
    cluster_run_expect(leader, 0, DEADLINE);
    cluster_run_expect(other, 0, DEADLINE);
    cluster_run_expect(ps, 0, DEADLINE);
    cluster_fixture_expect_logged(leader, "replicas: 2 (2 workers x 1 device)");
    cluster_fixture_expect_logged(leader, "device cuda 3 of 4");
    cluster_fixture_expect_logged(other, "device cuda 2 of 4");
}

static const json_t *reported_by(struct cluster_run *run, const char *gpus,
                                 const char *const *arguments) {
    setenv("CAPSTAN_FAKE_DEVICE", gpus, 1);
    struct cluster_process *process = cluster_fixture_tool(run, 0, arguments);
    unsetenv("CAPSTAN_FAKE_DEVICE");
    return cluster_run_json(process);
}

static void expect_number(const json_t *object, const char *key,
                          json_int_t number) {
    assert_int_equal(json_integer_value(json_object_get(object, key)), number);
}

/* One worker takes all devices of this machine, and two take one each. */
TEST(a_comparison_has_the_replicas_of_a_run) {
    static const char *const workers[] = {"--workers=1", "--workers=2"};
    static const json_int_t replicas[] = {4, 2}, samples[] = {10, 20};
    cluster_run_job(run, "{" JOB ", \"train_micro_batch_size_per_gpu\": null,"
                         " \"train_batch_size\": 40}");
    for (int i = 0; i < 2; i++) {
        size_t c;
        const json_t *one;
        const json_t *result = reported_by(
            run, "devices=4",
            (const char *const[]){"compare", "--json", workers[i], "--steps=5",
                                  "--repeats=1", "job.json", NULL});
        expect_number(result, "samples_per_step", samples[i]);
        json_array_foreach(json_object_get(result, "cases"), c, one)
            expect_number(one, "replicas", replicas[i]);
        assert_int_equal(c, 3);
    }
}

/* Nobody knows before the first run how many there are. */
TEST(a_comparison_across_hosts_has_the_replicas_of_a_run) {
    static const char *const leads_all[] = {
        "--set",  "train_micro_batch_size_per_gpu=null",
        "--set",  "train_batch_size=40",
        "--set",  "compare={\"steps\": 3, \"repeats\": 1}",
        "--json", "job.json",
        NULL};
    size_t c;
    const json_t *one;
    cluster_run_job(run, job);
    describe(run, apart);
    struct cluster_process *ps = cluster_run_task(run, "ps", 0, NULL);
    struct cluster_process *leader =
        start_worker(run, 0, "devices=3,machine=1", leads_all);
    struct cluster_process *other =
        start_worker(run, 1, "devices=1,machine=2", NULL);
    cluster_run_expect(leader, 0, DEADLINE);
    cluster_run_expect(other, 0, DEADLINE);
    cluster_run_expect(ps, 0, DEADLINE);
    const json_t *result = cluster_run_json(leader);
    expect_number(result, "samples_per_step", 10);
    json_array_foreach(json_object_get(result, "cases"), c, one) {
        bool uneven = !strcmp(json_string_value(json_object_get(one, "mode")),
                              "ps-async");
        if (!uneven)
            expect_number(one, "replicas", 4);
        assert_true(json_is_null(json_object_get(one, "error")) != uneven);
    }
    assert_int_equal(c, 3);
}

TEST(a_simulation_has_the_replicas_of_a_run) {
    static const char *const simulated[] = {
        "bench", "--simulate", "--json", "--workers=2", "job.json", NULL};
    static const char *const together[] = {
        "bench",   "--simulate", "--json",   "--workers=2",
        "--place", "one",        "job.json", NULL};
    cluster_run_job(run, "{" JOB ", \"gradient_accumulation_steps\": 2,"
                         " \"train_micro_batch_size_per_gpu\": null,"
                         " \"train_batch_size\": 96}");
    const json_t *result = reported_by(run, "devices=3", simulated);
    expect_number(result, "replicas", 6);
    expect_number(result, "micro_batch", 8);
    expect_number(result, "accumulation", 2);
    result = reported_by(run, "devices=3", together);
    expect_number(result, "replicas", 2);
    expect_number(result, "micro_batch", 24);
    setenv("CAPSTAN_FAKE_DEVICE", "devices=5", 1);
    struct cluster_process *process = cluster_fixture_tool(run, 2, simulated);
    unsetenv("CAPSTAN_FAKE_DEVICE");
    cluster_fixture_expect_logged(process,
                                  "x 10 replicas (2 trainers x 5 devices)");
}
