/* SPDX-License-Identifier: Apache-2.0 */
/* The Python package's own tests, those that need no more than NumPy
 * (python/tests); `make check-python` has those with torch. */
#include "tests/cluster/cluster_run.h"
#include "tests/lib/build_folder.h"
#include "tests/lib/skip.h"
#include "tests/lib/test.h"

/* Of one test of Python: a run of it that hangs ends after 120 (DEADLINE in
 * processes.py). */
enum { SECONDS = 300, LONGEST_NAMES = 800 /* of cmocka's messages: 1000 */ };

/* Prints each test as it ends: one that does not end is the next. */
static void follow(struct cluster_process *python) {
    const char *line;
    while ((line = cluster_run_await_or_end(python, " ... ", SECONDS)))
        print_message("# %s\n", line);
}

/* The lines of unittest that name a failed test, in NAMES. */
static void list_failed(const char *log, char names[LONGEST_NAMES]) {
    size_t length = 0;
    names[0] = 0;
    for (const char *line = log, *end; (end = strchr(line, '\n'));
         line = end + 1) {
        if (strncmp(line, "FAIL: ", 6) && strncmp(line, "ERROR: ", 7))
            continue;
        length += (size_t)snprintf(names + length, LONGEST_NAMES - length,
                                   "\n%.*s", (int)(end - line), line);
        if (length >= LONGEST_NAMES)
            return;
    }
}

TEST_WITH(cluster_run_setup, cluster_run_teardown,
          the_package_trains_numpy_models) {
    char tree[PATH_MAX], build[PATH_MAX], names[LONGEST_NAMES];
    assert_non_null(realpath(".", tree));
    assert_true(build_folder_find(build));
    const char *python = NULL;
    if (!system("python3 -c 'import numpy' 2> /dev/null"))
        python = "python3";
    else if (!system("/usr/bin/python3 -c 'import numpy' 2> /dev/null"))
        python = "/usr/bin/python3"; /* that of the package python3-numpy */
    else
        skip_test("no python3 with numpy");
    const char *tests = textf("%s/python/tests", tree);
    const char *path = textf("PYTHONPATH=%s/python", tree);
    struct cluster_process *process = cluster_run_program(
        *state, "python", "/usr/bin/env",
        WORDS(python, "-m", "unittest", "discover", "-v", "-s", tests, "-p",
              "test_numpy.py"),
        WORDS(path, textf("CAPSTAN_LIBRARY=%s/libcapstan.so", build)));
    follow(process);
    int code = cluster_run_exit(process, CLUSTER_RUN_DEADLINE);
    if (code == 0)
        return;
    list_failed(cluster_run_errors(process), names);
    fputs(cluster_run_errors(process), stdout); /* cmocka would cut it */
    fail_msg("python ended with %d:%s", code, names);
}
