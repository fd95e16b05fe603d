/* SPDX-License-Identifier: Apache-2.0 */
/* `capstan schema` against the program that checks jobs, by another
 * implementation of JSON Schema: python3-jsonschema. cluster_schema.py has the
 * jobs, their mutations, and the rules that a schema cannot say. */
#include "tests/cluster/cluster_fixture.h"
#include "tests/lib/build_folder.h"
#include "tests/lib/seed.h"
#include "tests/lib/skip.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

static void every_example_job_fits_the_schema(void **state) {
    judge(*state, "examples");
}

static void schema_and_program_judge_200_mutations_alike(void **state) {
    struct philox_sequence random;
    char arguments[64];
    seed_open(&random);
    snprintf(arguments, sizeof arguments, "%u %d", philox_next(&random),
             MUTATIONS);
    judge(*state, arguments);
}

static void a_job_is_checked_without_running_it(void **state) {
    struct cluster_run *run = *state;
    cluster_run_job(run, NULL);
    struct cluster_process *process = cluster_fixture_tool(
        run, 0, (const char *[]){"schema", "job.json", NULL});
    assert_string_equal(cluster_run_output(process), "");
    cluster_run_job(run, "{\"optimizer\": {\"type\": \"SGT\"}, \"epoch\": 1}");
    process = cluster_fixture_tool(
        run, REFUSED, (const char *[]){"schema", "job.json", NULL});
    assert_non_null(
        strstr(cluster_run_errors(process), "optimizer.type: found \"SGT\""));
    assert_non_null(strstr(cluster_run_errors(process),
                           "epoch: unknown key; nearest: epochs"));
}

#define TEST(f)                                                                \
    cmocka_unit_test_setup_teardown(f, cluster_run_setup, cluster_run_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(every_example_job_fits_the_schema),
        TEST(schema_and_program_judge_200_mutations_alike),
        TEST(a_job_is_checked_without_running_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
