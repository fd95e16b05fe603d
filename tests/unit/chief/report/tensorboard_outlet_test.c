/* SPDX-License-Identifier: Apache-2.0 */
#define STATE struct metrics_fixture *measured

#include "chief/report/tensorboard_outlet.h"

#include "tests/lib/checkpoint_fixture.h"
#include "tests/lib/event_files.h"
#include "tests/lib/metrics_fixture.h"
#include "tests/lib/test.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char folder[] = "/tmp/tensorboard-outlet-test-XXXXXX";

static int setup(void **state) {
    struct metrics_fixture *measured;
    strcpy(folder + strlen(folder) - 6, "XXXXXX");
    if (!mkdtemp(folder) || metrics_fixture_setup(state))
        return -1;
    measured = *state;
    measured->job.events_dir = folder;
    measured->job.timeouts.stop = 60;
    return 0;
}

static int teardown(void **state) {
    checkpoint_fixture_remove(folder);
    return metrics_fixture_teardown(state);
}

FIXTURE(setup, teardown);

static struct point_outlet opened(struct metrics_fixture *measured) {
    struct point_outlet outlet = {0};
    assert_false(tensorboard_outlet_open(&outlet, &measured->run, &failure));
    return outlet;
}

static void write_point(struct point_outlet *outlet, enum metric metric,
                        uint64_t step, double value) {
    struct metric_point point = metric_point_start(step);
    point.values[metric] = value;
    outlet->write(outlet->self, &point);
    outlet->flush(outlet->self);
}

/* The only descriptor of a file below the folder. */
static int find_descriptor(void) {
    char path[PATH_MAX] = "";
    DIR *dir = opendir("/proc/self/fd");
    int found = -1;
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir));) {
        ssize_t size = readlink(textf("/proc/self/fd/%s", entry->d_name), path,
                                sizeof path - 1);
        if (size > 0 && !strncmp(path, folder, strlen(folder)))
            found = atoi(entry->d_name);
    }
    closedir(dir);
    assert_true(found >= 0);
    return found;
}

/* Makes place for the next file of this second and process, behind it. */
static void rename_file(int i) {
    assert_false(system(textf("cd %s && mv events.*.%d "
                              "events.out.tfevents.000000000%d",
                              folder, (int)getpid(), i)));
}

TEST(what_is_written_is_there_at_the_end) {
    struct point_outlet outlet = opened(measured);
    outlet.begin(outlet.self, &measured->run);
    for (uint64_t step = 10; step <= 30; step += 10)
        write_point(&outlet, METRIC_TRAIN_LOSS, step, (double)step / 4);
    outlet.close(outlet.self);
    assert_string_equal(event_files_text(folder, "train/loss"),
                        "10:2.5 20:5 30:7.5 ");
}

/* A pipe that nobody reads, in place of the file. */
TEST(a_disk_that_hangs_holds_no_point_up) {
    enum { POINTS = 10000 }; /* more bytes than the pipe takes */
    int ends[2];
    measured->job.timeouts.stop = 0.1;
    struct point_outlet outlet = opened(measured);
    outlet.begin(outlet.self, &measured->run);
    assert_false(pipe2(ends, O_CLOEXEC));
    assert_true(dup3(ends[1], find_descriptor(), O_CLOEXEC) >= 0);
    close(ends[1]);
    for (uint64_t step = 1; step <= POINTS; step++)
        write_point(&outlet, METRIC_TRAIN_LOSS, step, 2.5);
    outlet.close(outlet.self);
    close(ends[0]); /* its thread ends by EPIPE: SIGPIPE is blocked there */
}

/* It was over when it resumed, and evaluates its last step again: of that step
 * the rest stays, once, however often. */
TEST(a_run_that_was_over_has_one_last_evaluation) {
    measured->run.plan.test_samples = 1;
    for (int i = 0; i < 3; i++) {
        struct point_outlet outlet = opened(measured);
        outlet.begin(outlet.self, &measured->run);
        for (uint64_t step = 10; step <= 20 && !i; step += 10)
            write_point(&outlet, METRIC_TRAIN_LOSS, step, (double)step / 4);
        if (!i)
            write_point(&outlet, METRIC_TEST_LOSS, 10, 9);
        write_point(&outlet, METRIC_TEST_LOSS, 20, 1 + i);
        outlet.close(outlet.self);
        measured->run.plan.has_restored = true;
        measured->run.metrics.points.start = 20;
        measured->run.plan.schedule.total = 20;
        rename_file(i);
        assert_string_equal(event_files_text(folder, "train/loss"),
                            "10:2.5 20:5 ");
        assert_string_equal(event_files_text(folder, "test/loss"),
                            textf("10:9 20:%d ", 1 + i));
    }
}
