/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/report/point.h"

#include "tests/lib/assert_fails.h"
#include "tests/lib/checkpoint_fixture.h"
#include "tests/lib/event_files.h"
#include "tests/lib/metrics_fixture.h"
#include "tests/lib/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[] = "/tmp/point-test-XXXXXX";

static int setup(void **state) {
    struct metrics_fixture *measured;
    strcpy(folder + strlen(folder) - 6, "XXXXXX");
    if (!mkdtemp(folder) || metrics_fixture_setup(state))
        return -1;
    measured = *state;
    measured->job.events_dir = folder;
    return 0;
}

static int teardown(void **state) {
    checkpoint_fixture_remove(folder);
    return metrics_fixture_teardown(state);
}

FIXTURE(setup, teardown);

TEST(a_point_begins_empty_at_this_time) {
    struct metric_point point = metric_point_start(7);
    assert_int_equal(point.step, 7);
    assert_true(point.unix_ms > 1600000000000);
    for (int m = 0; m < METRIC_COUNT; m++)
        assert_true(isnan(point.values[m]));
}

/* A run that goes on from a checkpoint, and one point. */
static void tells(struct run *run, uint64_t start, uint64_t step, double loss) {
    struct metric_point point = metric_point_start(step);
    struct point_outlets outlets = {0};
    point.values[METRIC_TRAIN_LOSS] = loss;
    run->plan.has_restored = start > 0;
    run->plan.schedule.start = start;
    run->job->timeouts.stop = 30; /* for the file that a thread writes */
    assert_false(point_outlets_open(&outlets, run, &failure));
    point_outlets_begin(&outlets, run);
    point_outlets_write(&outlets, &point);
    point_outlets_write_tagged(&outlets, "rows/t", step, 2 * loss);
    point_outlets_flush(&outlets);
    point_outlets_close(&outlets);
}

TEST(tensorboard_has_the_figures_that_there_are) {
    struct metrics_fixture *measured = *state;
    tells(&measured->run, 0, 10, 2.5);
    assert_string_equal(event_files_text(folder, "train/loss"), "10:2.5 ");
    assert_string_equal(event_files_text(folder, "rows/t"), "10:5 ");
    char *tags = event_files_tags(folder);
    assert_string_equal(tags, "train/loss rows/t ");
}

TEST(without_an_outlet_a_point_is_nobodys) {
    struct metrics_fixture *measured = *state;
    measured->job.events_dir = NULL;
    tells(&measured->run, 5, 10, 2.5);
    assert_false(rmdir(folder)); /* it is empty */
    assert_false(mkdir(folder, 0700));
}
