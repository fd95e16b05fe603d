/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/cluster/role_name.h"

#include "tests/lib/test.h"

TEST(vertex_names_count_where_they_are_allowed) {
    enum cluster_role role = CLUSTER_ROLES;
    assert_false(role_name_find(ROLE_NAMES_TF, "workerpool2", &role));
    assert_true(role_name_find(ROLE_NAMES_VERTEX, "workerpool2", &role));
    assert_int_equal(role, CLUSTER_PS);
    assert_true(role_name_find(ROLE_NAMES_TF, "master", &role));
    assert_int_equal(role, CLUSTER_CHIEF);
    assert_false(role_name_find(ROLE_NAMES_VERTEX, "", &role));
}

TEST(the_nearest_name_is_suggested) {
    static const char *const meant[][2] = {
        {"ps_hosts", "ps"},
        {"worker_hosts", "worker"},
        {"chief_hosts", "chief"},
        {"PS", "ps"},
        {"pserver", "ps"},
        {"parameter_server", "ps"},
        {"ParameterServer", "ps"},
        {"workers", "worker"},
        {"Worker", "worker"},
        {"wroker", "worker"},
        {"worke", "worker"},
        {"woker", "worker"},
        {"masters", "master"},
        {"Launcher", "chief"},
        {"coordinator", "chief"},
        {"cheif", "chief"},
        {"workerpool0", "chief"},
        {"workerpool1", "worker"},
        {"workerpool3", "evaluator"},
        {"eval", "evaluator"},
        {"evalutor", "evaluator"},
        {"trainer", "worker"},
    };
    for (size_t i = 0; i < sizeof meant / sizeof *meant; i++) {
        const char *found = role_name_nearest(meant[i][0]);
        if (!found || strcmp(found, meant[i][1]) != 0)
            fail_msg("%s is taken for %s, not %s", meant[i][0],
                     found ? found : "nothing", meant[i][1]);
    }
}

TEST(a_name_near_none_is_reported_as_unknown) {
    static const char *const names[] = {
        "",    "a",       "p",     "gpu",   "cluster",   "task", "environment",
        "job", "service", "cloud", "trial", "other_type"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (role_name_nearest(names[i]))
            fail_msg("%s is taken for %s", names[i],
                     role_name_nearest(names[i]));
}
