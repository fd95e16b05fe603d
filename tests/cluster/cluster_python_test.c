/* SPDX-License-Identifier: Apache-2.0 */
/* The Python package's own tests, those that need no more than NumPy
 * (python/tests); `make check-python` has those with torch. */
#include "tests/cluster/cluster_run.h"
#include "tests/lib/build_folder.h"
#include "tests/lib/skip.h"
#include "tests/lib/test.h"

enum { SECONDS = 600 };

TEST_WITH(cluster_run_setup, cluster_run_teardown,
          the_package_trains_numpy_models) {
    char tree[PATH_MAX], build[PATH_MAX];
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
        WORDS(python, "-m", "unittest", "discover", "-s", tests, "-p",
              "test_numpy.py"),
        WORDS(path, textf("CAPSTAN_LIBRARY=%s/libcapstan.so", build)));
    cluster_run_expect(process, 0, SECONDS);
}
