/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/paused_file.h"

#include "tests/cluster/cluster_fixture.h"
#include "tests/lib/build_folder.h"
#include "tests/lib/test.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

/* Processes inherit the test's environment. */
static void load(const struct cluster_run *run) {
    char built[PATH_MAX];
    const char *folder = cluster_run_path(run, "held");
    assert_true(!mkdir(folder, 0777) || errno == EEXIST);
    assert_true(build_folder_find(built));
    const char *library = textf("%s/fake/paused_disk.so", built);
    assert_int_equal(access(library, R_OK), 0);
    setenv("LD_PRELOAD", library, 1);
    setenv("CAPSTAN_HELD_DISK", folder, 1);
    setenv("ASAN_OPTIONS", "verify_asan_link_order=0", 1); /* it is first */
}

void paused_file_open(struct paused_file *held, const struct cluster_run *run,
                      const char *folder, const char *file) {
    load(run);
    held->path = cluster_run_path(run, textf("held/%s.%s", folder, file));
    held->signal_fd = -1;
    assert_int_equal(mkfifo(held->path, 0666), 0);
}

/* A pipe that nobody reads cannot be opened for writing. */
void paused_file_await(struct paused_file *held) {
    static const double LOOK = 0.01;
    for (double left = CLUSTER_RUN_DEADLINE; left > 0; left -= LOOK) {
        held->signal_fd = open(held->path, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
        if (held->signal_fd >= 0)
            return;
        assert_int_equal(errno, ENXIO);
        cluster_fixture_sleep(LOOK);
    }
    fail_msg("nobody syncs %s", held->path);
}

void paused_file_resume(struct paused_file *held, bool taken) {
    assert_int_equal(unlink(held->path), 0);
    if (!taken)
        assert_int_equal(write(held->signal_fd, "n", 1), 1);
    close(held->signal_fd);
    held->signal_fd = -1;
}
