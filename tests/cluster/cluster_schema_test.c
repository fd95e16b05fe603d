/* SPDX-License-Identifier: Apache-2.0 */
/* `capstan schema` against the program that checks jobs, by another
 * implementation of JSON Schema: python3-jsonschema. cluster_schema.py has the
 * jobs, their mutations, and the rules that a schema cannot say. */
#include "tests/cluster/cluster_fixture.h"
#include "tests/lib/build_folder.h"
#include "tests/lib/seed.h"
#include "tests/lib/skip.h"
#include "tests/lib/test.h"

enum { REFUSED = 2, MUTATIONS = 200 };

/* Runs cluster_schema.py with ARGUMENTS. */
static void judge(const struct cluster_run *run, const char *arguments) {
    static const char *const pythons[] = {"/usr/bin/python3", "python3"};
    char command[3 * PATH_MAX], build[PATH_MAX];
    assert_true(build_folder_find(build));
    for (size_t i = 0; i < sizeof pythons / sizeof *pythons; i++) {
        snprintf(command, sizeof command,
                 "%s -c 'import jsonschema' 2>/dev/null", pythons[i]);
        if (system(command))
            continue;
        snprintf(command, sizeof command,
                 "%s tests/cluster/cluster_schema.py '%s/capstan' '%s' %s >&2",
                 pythons[i], build, run->folder, arguments);
        assert_int_equal(system(command), 0);
        return;
    }
    skip_test("no python3 with jsonschema (python3-jsonschema)");
}

FIXTURE(cluster_run_setup, cluster_run_teardown);

TEST(every_example_job_fits_the_schema) {
    judge(*state, "examples");
}

TEST(schema_and_program_judge_200_mutations_alike) {
    struct philox_sequence random;
    seed_open(&random);
    judge(*state, textf("%u %d", philox_next(&random), MUTATIONS));
}

/* Checks the fixture's job with the keys of MORE; SAID is its output. */
static void check_size(struct cluster_run *run, const char *more,
                       const char *said) {
    cluster_run_job(run, more);
    struct cluster_process *process =
        cluster_fixture_tool(run, 0, WORDS("schema", "job.json"));
    const char *found = cluster_run_output(process);
    if (strncmp(found, said, strlen(said)))
        fail_msg("%s is not: %s", found, said);
}

/* 3 epochs of the fixture's 600 samples. */
TEST(a_job_is_checked_without_running_it) {
    struct cluster_run *run = *state;
    check_size(run, NULL, "ok, 180 steps of 10 with one replica\n");
    check_size(run,
               "{\"train_batch_size\": 32, "
               "\"train_micro_batch_size_per_gpu\": null}",
               "ok, 57 steps of 32\n");
    check_size(run,
               "{\"train_batch_size\": 32, \"data\": {\"drop_last\": true}, "
               "\"train_micro_batch_size_per_gpu\": null}",
               "ok, 54 steps of 32\n");
    check_size(run, "{\"gradient_accumulation_steps\": 3}",
               "ok, 60 steps of 30 with one replica\n");
    check_size(run, "{\"steps\": 7}", "ok, 7 steps of 10 a replica\n");
    check_size(run, "{\"steps_per_epoch\": 4}",
               "ok, 12 steps of 10 with one replica\n");
    check_size(run, "{\"data\": {\"train\": [\"no\", \"such\"]}}",
               "ok, 3 epochs, steps of 10 with one replica; how many steps is "
               "not known: data.train: ");
    cluster_run_job(run, "{\"optimizer\": {\"type\": \"SGT\"}, \"epoch\": 1}");
    struct cluster_process *process =
        cluster_fixture_tool(run, REFUSED, WORDS("schema", "job.json"));
    assert_string_equal(cluster_run_output(process), "");
    assert_contains(cluster_run_errors(process),
                    "optimizer.type: found \"SGT\"");
    assert_contains(cluster_run_errors(process),
                    "epoch: unknown key; nearest: epochs");
}
