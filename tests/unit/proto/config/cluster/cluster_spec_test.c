/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/cluster/cluster_case.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>

#define VERTEX                                                                 \
    "'cluster': {'workerpool0': ['c:1'], 'workerpool1': ['w0:1', 'w1:1'], "    \
    "'workerpool2': ['p:1'], 'workerpool3': ['e:1']}, 'environment': 'cloud'"

static void vertex_pools_are_chief_worker_ps_and_evaluator(void **state) {
    (void)state;
    static const struct cluster_case_text texts[] = {
        {"the chief",
         "{" VERTEX ", 'task': {'type': 'workerpool0', 'index': 0}}",
         "{'source': 'CLUSTER_SPEC', 'role': 'chief', 'is_chief': true, "
         "'num_workers': 2, 'num_ps': 1, 'chief': 'c:1'}"},
        {"a worker",
         "{" VERTEX ", 'task': {'type': 'workerpool1', 'index': 1}}",
         "{'role': 'worker', 'index': 1, 'is_chief': false}"},
        {"a ps, its index in a string",
         "{" VERTEX ", 'task': {'type': 'workerpool2', 'index': '0'}}",
         "{'role': 'ps', 'index': 0}"},
        {"the evaluator",
         "{" VERTEX ", 'task': {'type': 'workerpool3', 'index': 0}}",
         "{'role': 'evaluator'}"},
        {"TF's own names",
         "{'cluster': {'chief': ['c:1'], 'worker': ['w:1']}, "
         "'task': {'type': 'worker', 'index': 0, 'trial': '3'}}",
         "{'role': 'worker', 'chief': 'c:1'}"},
        {"names of both kinds",
         "{'cluster': {'chief': ['c:1'], 'workerpool1': ['w:1']}, "
         "'task': {'type': 'worker', 'index': 0}}",
         "{'role': 'worker', 'chief': 'c:1', 'num_workers': 1}"},
        {"one replica",
         "{'cluster': {'workerpool0': ['c:1']}, "
         "'task': {'type': 'workerpool0', 'index': 0}, 'job': '{}'}",
         "{'role': 'chief', 'num_workers': 0, 'mode': 'cluster'}"},
        {"pool 4",
         "{'cluster': {'workerpool4': ['c:1']}, "
         "'task': {'type': 'workerpool4', 'index': 0}}",
         "bad_job_name"},
        {"one job by two names",
         "{'cluster': {'workerpool1': ['a:1'], 'worker': ['b:1']}, "
         "'task': {'type': 'worker', 'index': 0}}",
         "bad_job_name"},
        {"one chief by two names",
         "{'cluster': {'workerpool0': ['a:1'], 'master': ['b:1']}, "
         "'task': {'type': 'master', 'index': 0}}",
         "master_and_chief"},
        {"two chiefs",
         "{'cluster': {'workerpool0': ['a:1', 'b:1']}, "
         "'task': {'type': 'workerpool0', 'index': 0}}",
         "multiple_chiefs"},
        {"an evaluator too many",
         "{'cluster': {'workerpool3': ['a:1', 'b:1']}, "
         "'task': {'type': 'workerpool3', 'index': 0}}",
         "multiple_evaluators"},
        {"no task", "{" VERTEX "}", "task_missing"},
        {"no index", "{" VERTEX ", 'task': {'type': 'workerpool1'}}",
         "task_index_missing"},
        {"a pool not there",
         "{'cluster': {'workerpool0': ['a:1']}, "
         "'task': {'type': 'workerpool1', 'index': 0}}",
         "task_type_not_in_cluster"},
        {"the cluster a list", "{'cluster': ['a:1']}", "cluster_not_object"},
        {"a task alone", "{'task': {'type': 'workerpool1', 'index': 0}}",
         "{'mode': 'local'}"},
        {"a pool beside the task",
         "{'workerpool1': ['a:1'], 'task': {'type': 'workerpool1'}}",
         "bare_cluster_map"},
        {"not JSON", "{'cluster'", "bad_json"},
        {"a list", "[]", "not_object"},
    };
    cluster_case_check_texts("CLUSTER_SPEC", texts,
                             sizeof texts / sizeof *texts);
}

struct tony {
    const char *description, *spec, *job_name, *task_index, *expect;
};

static void tony_sets_the_own_task_in_variables(void **state) {
    (void)state;
#define MAP "{'worker': ['a:1', 'b:1'], 'ps': ['p:1']}"
    static const struct tony forms[] = {
        {"a worker", MAP, "worker", "1",
         "{'source': 'CLUSTER_SPEC', 'role': 'worker', 'index': 1, "
         "'num_ps': 1, 'num_workers': 2, 'chief': 'a:1'}"},
        {"a ps", MAP, "ps", "0", "{'role': 'ps'}"},
        {"the evaluator", MAP, "evaluator", "0", "{'role': 'evaluator'}"},
        {"neither", MAP, NULL, NULL, "task_missing"},
        {"both blank", MAP, "", " ", "task_missing"},
        {"no name", MAP, NULL, "0", "task_type_missing"},
        {"no index", MAP, "ps", NULL, "task_index_missing"},
        {"a sign", MAP, "ps", "-1", "bad_index"},
        {"a word", MAP, "ps", "zero", "bad_index"},
        {"another job", MAP, "tensorboard", "0", "task_type_not_in_cluster"},
        {"a chief not listed", MAP, "chief", "0", "task_type_not_in_cluster"},
        {"past the end", MAP, "worker", "2", "index_out_of_range"},
        {"a job that is none", "{'driver': ['a:1']}", "driver", "0",
         "bad_job_name"},
        {"one task", "{'worker': ['a:1']}", NULL, NULL,
         "{'role': 'worker', 'warnings': ['task_missing']}"},
        {"an empty map", "{}", "worker", "0", "{'mode': 'local'}"},
        {"an empty map and a ps", "{}", "ps", "0", "local_type"},
        {"an empty map and worker 1", "{'ps': []}", "worker", "1",
         "local_index"},
        {"a key twice", "{'ps': [], 'ps': ['p:1']}", "ps", "0",
         "{'num_ps': 1, 'warnings': ['duplicate_key', 'own_address_only']}"},
        {"JOB_NAME does not speak for Vertex' form", "{'cluster': " MAP "}",
         "ps", "0", "task_missing"},
    };
#undef MAP
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        const struct tony *tony = &forms[i];
        char *spec = cluster_case_requote(tony->spec);
        struct cluster_case form = {
            .description = tony->description,
            .environment = {{"CLUSTER_SPEC", spec},
                            {"JOB_NAME", tony->job_name},
                            {"TASK_INDEX", tony->task_index}},
            .expect = tony->expect};
        cluster_case_check(&form);
        free(spec);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vertex_pools_are_chief_worker_ps_and_evaluator),
        cmocka_unit_test(tony_sets_the_own_task_in_variables),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
