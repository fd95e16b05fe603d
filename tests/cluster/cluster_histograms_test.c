/* SPDX-License-Identifier: Apache-2.0 */
/* Histograms of weights and gradients for TensorBoard, read back and compared
 * with exported weights: cluster_histograms.py. */
#define STATE struct cluster_run *run

#include "tests/cluster/cluster_fixture.h"
#include "tests/lib/build_folder.h"
#include "tests/lib/test.h"

FIXTURE(cluster_run_setup, cluster_run_teardown);

TEST(histograms_have_every_value_of_a_step_once) {
    char build[PATH_MAX];
    assert_true(build_folder_find(build));
    const char *folder = textf("%s/histograms", run->folder);
    assert_int_equal(
        system(textf("mkdir '%s' && "
                     "/usr/bin/env python3 tests/cluster/cluster_histograms.py "
                     "'%s/capstan' '%s' >&2",
                     folder, build, folder)),
        0);
}
