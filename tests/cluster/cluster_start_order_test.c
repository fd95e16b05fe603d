/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/cluster/cluster_fixture.h"
#include "tests/lib/test.h"

enum { PS = 2, WORKERS = 2 };

/* No deadline here reaches it. */
#define STOP "\"timeouts\": {\"stop\": 600}}"

static const struct {
    const char *says, *job;
    unsigned chiefs, last;
} forms[] = {
    {"the chief coordinates", "{\"chief\": \"coordinate\", " STOP, 1, 90},
    {"no chief is listed", "{" STOP, 0, 90},
    {"the chief trains", "{" STOP, 1, 60},
};

/* What comes before the order to stop, and nothing between: the last
 * checkpoint is written. */
static void end_once(struct cluster_run *run, size_t form, uint64_t *seed) {
    struct cluster_fixture fixture;
    cluster_run_job(run, forms[form].job);
    cluster_fixture_describe(&fixture, run, forms[form].chiefs, PS, WORKERS);
    cluster_fixture_start_staggered(&fixture, 3, seed);
    cluster_run_await_soon(fixture.tasks[0].process,
                           textf("step-%09u: ", forms[form].last));
    cluster_fixture_expect_soon(&fixture, CLUSTER_FIXTURE_TASKS, 0);
    for (unsigned i = 0; i < fixture.count; i++)
        assert_false(
            cluster_fixture_has_logged(fixture.tasks[i].process, "goodbye"));
}

TEST_WITH(cluster_run_setup, cluster_run_teardown,
          every_process_succeeds_in_any_start_order) {
    uint64_t seed = cluster_fixture_seed();
    size_t count = sizeof forms / sizeof *forms;
    unsigned repeats = cluster_fixture_repeats(10);
    for (unsigned i = 0; i < repeats; i++) {
        print_message("# ending %u of %u: %s\n", i + 1, repeats,
                      forms[i % count].says);
        end_once(cluster_fixture_reset(state), i % count, &seed);
    }
}
