/* SPDX-License-Identifier: Apache-2.0 */
/* What may stand in TF_CONFIG and CLUSTER_SPEC, in tables: a text, and the
 * cluster that comes of it or the class of its refusal. */
#include "tests/cluster/cluster_case.h"
#include "tests/lib/test.h"

#define CHECK(texts)                                                           \
    cluster_case_check_texts("TF_CONFIG", texts, sizeof texts / sizeof *texts)

#define CLUSTER                                                                \
    "'cluster': {'chief': ['c:1'], 'worker': ['w0:2', 'w1:2'], "               \
    "'ps': ['p0:3', 'p1:3']}"
#define TASK ", 'task': {'type': 'worker', 'index': 0}"

TEST(only_a_strict_object_is_read) {
    static const struct cluster_case_text texts[] = {
        {"an array", "[]", "not_object"},
        {"a number", "3", "not_object"},
        {"a string", "'worker'", "not_object"},
        {"a null", "null", "not_object"},
        {"a truth", "true", "not_object"},
        {"a word", "worker", "bad_json"},
        {"two values", "{} {}", "bad_json"},
        {"text after it", "{} x", "bad_json"},
        {"cut short", "{" CLUSTER, "bad_json"},
        {"a comma too many", "{'cluster': {'ps': ['a:1',]}}", "bad_json"},
        {"a comment", "{} // nothing", "bad_json"},
        {"NaN", "{'trial': NaN}", "bad_json"},
        {"a name without quotes", "{cluster: {}}", "bad_json"},
        {"a NUL in a string", "{'environment': 'a\\u0000b'}", "bad_json"},
        {"a NUL in a key", "{'a\\u0000b': 1}", "bad_json"},
        {"not UTF-8", "{'environment': '\xff\xfe'}", "bad_json"},
        {"half a surrogate", "{'environment': '\\ud800'}", "bad_json"},
        {"a line break in a string", "{'environment': 'a\nb'}", "bad_json"},
        {"a byte order mark", "\xef\xbb\xbf{}", "bad_json"},
        {"blanks around", " \n\t{" CLUSTER TASK "} \n", "{'index': 0}"},
        {"escapes", "{'\\u0063luster': {'ps': ['a\\u003a1']}}",
         "{'role': 'ps'}"},
    };
    CHECK(texts);
}

TEST(the_last_of_duplicate_keys_counts) {
    static const struct cluster_case_text texts[] = {
        {"a key of the task",
         "{" CLUSTER ", 'task': {'type': 'ps', 'index': 0, 'index': 1}}",
         "{'role': 'ps', 'index': 1, 'warnings': ['duplicate_key']}"},
        {"the cluster", "{'cluster': [], " CLUSTER TASK "}",
         "{'num_ps': 2, 'warnings': ['duplicate_key']}"},
        {"the job, the last being wrong",
         "{'cluster': {'ps': ['a:1'], 'ps': 3}}", "bad_tasks_type"},
        {"a key of a sparse job",
         "{'cluster': {'worker': {'0': 'a:1', '0': 'b:2'}}}",
         "{'chief': 'b:2', 'num_workers': 1}"},
        {"in what is read over", "{'trial': {'a': 1, 'a': 2}}",
         "{'mode': 'local', 'warnings': ['duplicate_key']}"},
    };
    CHECK(texts);
}

TEST(the_jobs_are_under_cluster) {
    static const struct cluster_case_text texts[] = {
        {"bare", "{'worker': ['a:1'], 'ps': ['b:2']}", "bare_cluster_map"},
        {"bare with a task", "{'chief': ['a:1']" TASK "}", "bare_cluster_map"},
        {"bare and misspelt", "{'ps_hosts': ['a:1']}", "bare_cluster_map"},
        {"a slip of cluster", "{'clutser': {'worker': ['a:1']}" TASK "}",
         "misspelt_key"},
        {"a slip of task",
         "{'cluster': {'worker': ['a:1', 'b:1']},"
         " 'tsk': {'type': 'worker', 'index': 0}}",
         "misspelt_key"},
        {"bare and empty", "{'worker': []}", "bare_cluster_map"},
        {"bare beside an empty cluster", "{'cluster': {}, 'worker': ['a:1']}",
         "bare_cluster_map"},
        {"bare beside empty jobs", "{'cluster': {'ps': []}, 'worker': ['a:1']}",
         "bare_cluster_map"},
        {"beside a cluster it is read over",
         "{" CLUSTER ", 'worker': ['a:1']" TASK "}", "{'num_workers': 2}"},
        {"sparseCluster is the cluster",
         "{'sparseCluster': {'worker': {'0': 'a:1'}, 'ps': ['b:2']}" TASK "}",
         "{'num_ps': 1, 'num_workers': 1, 'mode': 'cluster'}"},
        {"cluster goes before sparseCluster",
         "{'sparseCluster': {'worker': ['x:1']}, " CLUSTER TASK "}",
         "{'num_workers': 2}"},
        {"sparseCluster not an object", "{'sparseCluster': []}",
         "cluster_not_object"},
        {"a null", "{'cluster': null}", "cluster_not_object"},
        {"a string", "{'cluster': 'a:1'}", "cluster_not_object"},
        {"a number", "{'cluster': 0}", "cluster_not_object"},
        {"a truth", "{'cluster': false}", "cluster_not_object"},
    };
    CHECK(texts);
}

TEST(a_job_has_one_of_five_names) {
    static const struct cluster_case_text texts[] = {
        {"plural", "{'cluster': {'workers': ['a:1']}}", "bad_job_name"},
        {"a capital", "{'cluster': {'Worker': ['a:1']}}", "bad_job_name"},
        {"blank", "{'cluster': {' ps': ['a:1']}}", "bad_job_name"},
        {"empty", "{'cluster': {'': ['a:1']}}", "bad_job_name"},
        {"of Vertex", "{'cluster': {'workerpool0': ['a:1']}}", "bad_job_name"},
        {"empty job of another name", "{'cluster': {'gpu': []}}",
         "bad_job_name"},
        {"before its tasks", "{'cluster': {'worker': 3, 'x': 3}}",
         "bad_job_name"},
        {"master is the chief",
         "{'cluster': {'master': ['a:1'], 'worker': ['b:2']}, "
         "'task': {'type': 'chief', 'index': 0}}",
         "{'role': 'chief', 'is_chief': true, 'chief': 'a:1'}"},
        {"chief is the master",
         "{'cluster': {'chief': ['a:1'], 'worker': ['b:2']}, "
         "'task': {'type': 'master', 'index': 0}}",
         "{'role': 'chief', 'is_chief': true}"},
        {"both", "{'cluster': {'master': ['a:1'], 'chief': ['b:1']}" TASK "}",
         "master_and_chief"},
        {"both, one empty",
         "{'cluster': {'master': ['a:1'], 'chief': [], 'ps': ['p:1']}, "
         "'task': {'type': 'master', 'index': 0}}",
         "{'chief': 'a:1'}"},
        {"both, the empty one last",
         "{'cluster': {'chief': ['a:1'], 'ps': ['p:1'], 'master': null}, "
         "'task': {'type': 'ps', 'index': 0}}",
         "{'chief': 'a:1', 'warnings': ['null_job']}"},
    };
    CHECK(texts);
}

TEST(tasks_are_a_list_an_object_or_null) {
    static const struct cluster_case_text texts[] = {
        {"a string", "{'cluster': {'ps': 'a:1'}}", "bad_tasks_type"},
        {"a number", "{'cluster': {'ps': 1}}", "bad_tasks_type"},
        {"a real", "{'cluster': {'ps': 1.5}}", "bad_tasks_type"},
        {"a truth", "{'cluster': {'ps': true}}", "bad_tasks_type"},
        {"null is empty",
         "{'cluster': {'worker': ['a:1', 'b:1'], 'ps': null}" TASK "}",
         "{'num_ps': 0, 'num_workers': 2, 'warnings': ['null_job']}"},
        {"a number as address", "{'cluster': {'ps': [2222]}}",
         "bad_address_type"},
        {"null as address", "{'cluster': {'ps': ['a:1', null]}}",
         "bad_address_type"},
        {"a list as address", "{'cluster': {'ps': [['a:1']]}}",
         "bad_address_type"},
        {"an object as address", "{'cluster': {'ps': [{'host': 'a:1'}]}}",
         "bad_address_type"},
        {"a truth as address", "{'cluster': {'ps': [false]}}",
         "bad_address_type"},
        {"a number in an object", "{'cluster': {'ps': {'0': 1}}}",
         "bad_address_type"},
        {"a word as key", "{'cluster': {'ps': {'hosts': 'a:1'}}}",
         "bad_tasks_type"},
        {"a sign in a key", "{'cluster': {'ps': {'-1': 'a:1'}}}",
         "bad_tasks_type"},
        {"a real as key", "{'cluster': {'ps': {'1.0': 'a:1'}}}",
         "bad_tasks_type"},
        {"an empty key", "{'cluster': {'ps': {'': 'a:1'}}}", "bad_tasks_type"},
        {"a huge key", "{'cluster': {'ps': {'99999999999': 'a:1'}}}",
         "bad_tasks_type"},
        {"one index twice", "{'cluster': {'ps': {'1': 'a:1', '01': 'b:1'}}}",
         "bad_tasks_type"},
        {"an object out of order",
         "{'cluster': {'worker': {'10': 'k:1', '2': 'c:1', '0': 'a:1', "
         "'1': 'b:1'}}, 'task': {'type': 'worker', 'index': 10}}",
         "{'chief': 'a:1', 'num_workers': 4, 'index': 10, "
         "'warnings': ['own_address_only']}"},
    };
    CHECK(texts);
}

TEST(there_is_one_evaluator_and_one_chief) {
#define EVALUATOR(index) ", 'task': {'type': 'evaluator', 'index': " index "}}"
    static const struct cluster_case_text texts[] = {
        {"not listed", "{" CLUSTER EVALUATOR("0"),
         "{'role': 'evaluator', 'is_chief': false, 'num_workers': 2}"},
        {"index 1", "{" CLUSTER EVALUATOR("1"), "evaluator_index"},
        {"a huge index", "{" CLUSTER EVALUATOR("99999999999"),
         "evaluator_index"},
        {"listed",
         "{'cluster': {'worker': ['a:1'], 'evaluator': ['e:1']}" EVALUATOR("0"),
         "{'num_workers': 1, 'num_ps': 0, 'chief': 'a:1'}"},
        {"listed with index 1", "{'cluster': {'evaluator': {'1': 'e:1'}}}",
         "evaluator_index"},
        {"two",
         "{'cluster': {'worker': ['a:1'], 'evaluator': "
         "{'0': 'e:1', '1': 'f:1'}}" TASK "}",
         "multiple_evaluators"},
        {"two chiefs", "{'cluster': {'chief': ['a:1', 'b:1']}" TASK "}",
         "multiple_chiefs"},
        {"two chiefs by key",
         "{'cluster': {'master': {'0': 'a:1', '1': 'b:1'}}" TASK "}",
         "multiple_chiefs"},
        {"chief 1 alone", "{'cluster': {'chief': {'1': 'a:1'}}}",
         "index_out_of_range"},
        {"worker 1 is not the chief",
         "{'cluster': {'worker': ['a:1', 'b:1'], 'chief': []}, "
         "'task': {'type': 'worker', 'index': 1}}",
         "{'chief': 'a:1', 'is_chief': false}"},
        {"worker 0 is the chief",
         "{'cluster': {'worker': ['a:1', 'b:1'], 'chief': []}" TASK "}",
         "{'chief': 'a:1', 'is_chief': true}"},
        {"worker 0 is not when there is one", "{" CLUSTER TASK "}",
         "{'chief': 'c:1', 'is_chief': false}"},
    };
    CHECK(texts);
#undef EVALUATOR
}

TEST(a_process_without_a_cluster_is_alone) {
    static const struct cluster_case_text texts[] = {
        {"jobs all empty", "{'cluster': {'worker': [], 'ps': null}}",
         "{'mode': 'local', 'num_workers': 1, 'num_ps': 0, "
         "'source': 'TF_CONFIG', 'warnings': ['null_job']}"},
        {"an empty task", "{'task': {}}", "{'mode': 'local'}"},
        {"index 0 in a string", "{'task': {'index': '0'}}",
         "{'mode': 'local'}"},
        {"worker 1", "{'task': {'type': 'worker', 'index': 1}}", "local_index"},
        {"index 1 in a string", "{'task': {'index': '1'}}", "local_index"},
        {"a bad index", "{'task': {'type': 'worker', 'index': 0.0}}",
         "bad_index"},
        {"a ps", "{'task': {'type': 'ps', 'index': 0}}", "local_type"},
        {"a master", "{'task': {'type': 'master', 'index': 0}}", "local_type"},
        {"an evaluator", "{'task': {'type': 'evaluator', 'index': 0}}",
         "local_type"},
        {"a number as type", "{'task': {'type': 3}}", "local_type"},
        {"what is read over is read over",
         "{'environment': 'google', 'job': {'ps': 1}, 'service': {}, "
         "'rpc_layer': 'grpc', 'session_master': 3, 'trial': '7', "
         "'cloud': {}, 'unknown': []}",
         "{'mode': 'local', 'warnings': []}"},
    };
    CHECK(texts);
}

TEST(model_dir_is_a_folder) {
    static const struct cluster_case_text texts[] = {
        {"empty", "{'model_dir': ''}", "model_dir_empty"},
        {"a number", "{'model_dir': 3}", "model_dir_empty"},
        {"empty in a cluster", "{" CLUSTER TASK ", 'model_dir': ''}",
         "model_dir_empty"},
        {"null is not given", "{'model_dir': null}", "{'mode': 'local'}"},
    };
    CHECK(texts);
    struct cluster_case_variable environment[CLUSTER_CASE_VARIABLES] = {
        {"TF_CONFIG", "{\"model_dir\": \"/tmp/x y\"}"}};
    struct cluster *cluster;
    assert_int_equal(
        cluster_resolve(&cluster, NULL, cluster_case_lookup, environment, NULL),
        STATUS_OK);
    assert_string_equal(cluster->model_dir, "/tmp/x y");
    cluster_free(&cluster);
}

TEST(tasks_are_counted_and_addresses_compared) {
    static const struct cluster_case_text texts[] = {
        {"chief and workers",
         "{'cluster': {'chief': ['c:1'], 'worker': ['a:1', 'b:1']}" TASK "}",
         "{'num_ps': 0, 'num_workers': 2, 'chief': 'c:1'}"},
        {"addresses twice, port 0",
         "{'cluster': {'worker': ['a:0', 'a:0'], 'ps': [':2']}" TASK "}",
         "{'chief': 'a:0', 'warnings': ['port_zero']}"},
        {"an address twice in two jobs",
         "{'cluster': {'chief': ['c:3'], 'worker': ['C:3']}" TASK "}",
         "{'warnings': ['address_twice']}"},
        {"two workers at one address, which nobody connects to",
         "{'cluster': {'ps': ['b:2'], 'worker': ['d:1', 'a:1', 'a:1']}" TASK
         "}",
         "{'warnings': ['address_twice']}"},
        {"two ps at one address",
         "{'cluster': {'ps': ['b:2', 'a:1', 'a:2', 'A:1'],"
         " 'worker': ['d:1']}" TASK "}",
         "address_twice"},
        {"a chief and a ps at one address",
         "{'cluster': {'ps': ['b:2'], 'chief': ['b:2'], 'worker': ['d:1']}" TASK
         "}",
         "address_twice"},
        {"the same by two names",
         "{'cluster': {'ps': ['127.0.0.1:2'], 'chief': ['localhost:2'],"
         " 'worker': ['d:1']}" TASK "}",
         "address_twice"},
        {"a worker that leads and a ps at one address",
         "{'cluster': {'ps': ['b:2'], 'worker': ['b:2', 'd:1']}" TASK "}",
         "address_twice"},
        {"an evaluator listens nowhere",
         "{'cluster': {'evaluator': ['c:3'], 'worker': ['c:3', 'd:3']}" TASK
         "}",
         "{'warnings': []}"},
        {"an empty host", "{'cluster': {'worker': [':2']}" TASK "}",
         "{'chief': 'localhost:2'}"},
        {"warnings in their order",
         "{'cluster': {'ps': null, 'worker': {'0': 'a:0', '0': 'b:0'}}}",
         "{'warnings': ['duplicate_key', 'null_job', 'task_missing', "
         "'own_address_only', 'port_zero']}"},
    };
    CHECK(texts);
}

TEST(unbounded_nesting_is_refused) {
    enum { DEPTH = 100000 };
    char *value = malloc(DEPTH + 32);
    assert_non_null(value);
    size_t used = (size_t)sprintf(value, "{\"cluster\": ");
    memset(value + used, '[', DEPTH);
    value[used + DEPTH] = '\0';
    struct cluster_case form = {.description = "a deep list",
                                .environment = {{"TF_CONFIG", value}},
                                .expect = "bad_json"};
    cluster_case_check(&form);
    free(value);
}

TEST(thousands_of_tasks_are_read) {
    enum { WORKERS = 50000 };
    char *value = malloc(WORKERS * 24 + 128);
    assert_non_null(value);
    char *end = value + sprintf(value, "{\"cluster\": {\"ps\": [\"p:1\"], "
                                       "\"worker\": [\"w0:1\"");
    for (int i = 1; i < WORKERS; i++)
        end += sprintf(end, ", \"w%d:%d\"", i, 1 + i % 65535);
    sprintf(end, "]}, \"task\": {\"type\": \"worker\", \"index\": 49999}}");
    struct cluster_case form = {.description = "50000 workers",
                                .environment = {{"TF_CONFIG", value}},
                                .expect = "{'num_workers': 50000, "
                                          "'index': 49999, 'chief': 'w0:1'}"};
    cluster_case_check(&form);
    free(value);
}

#define VERTEX                                                                 \
    "'cluster': {'workerpool0': ['c:1'], 'workerpool1': ['w0:1', 'w1:1'], "    \
    "'workerpool2': ['p:1'], 'workerpool3': ['e:1']}, 'environment': 'cloud'"

TEST(vertex_pools_are_chief_worker_ps_and_evaluator) {
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

TEST(tony_sets_the_own_task_in_variables) {
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
