/* SPDX-License-Identifier: Apache-2.0 */
/* Runs that tell a server of MLflow's, which loses answers, is away, comes
 * back, and looks at paths and tokens: cluster_mlflow.py; one run with every
 * outlet on: cluster_outlets.py. */
#define STATE struct cluster_run *run

#include "tests/cluster/cluster_fixture.h"
#include "tests/lib/build_folder.h"
#include "tests/lib/skip.h"
#include "tests/lib/test.h"

#include <dlfcn.h>

FIXTURE(cluster_run_setup, cluster_run_teardown);

/* Runs tests/cluster/SCRIPT, which must pass. */
static void expect_script(const struct cluster_run *run, const char *script) {
    char build[PATH_MAX];
    assert_true(build_folder_find(build));
    if (system("python3 -c 'import ssl' 2>/dev/null && "
               "openssl version >/dev/null 2>&1") ||
        !dlopen("libcurl.so.4", RTLD_NOW | RTLD_LOCAL))
        skip_test("no python3, openssl or libcurl4");
    const char *folder = textf("%s/mlflow", run->folder);
    assert_int_equal(system(textf("mkdir '%s' && python3 tests/cluster/%s "
                                  "'%s/capstan' '%s' >&2",
                                  folder, script, build, folder)),
                     0);
}

TEST(an_mlflow_server_gets_each_metric_once_and_holds_no_run_up) {
    expect_script(run, "cluster_mlflow.py");
}

TEST(every_outlet_tells_the_same_numbers_of_a_run) {
    expect_script(run, "cluster_outlets.py");
}
