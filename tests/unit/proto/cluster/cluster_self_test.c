/* SPDX-License-Identifier: Apache-2.0 */
/* Who a process is by TF_CONFIG's task: how its index is written, what it
 * leaves to be plain, and its place in the lists of the cluster. */
#include "proto/cluster/cluster_self.h"

#include "tests/cluster/cluster_case.h"
#include "tests/lib/test.h"

#define CHECK(texts)                                                           \
    cluster_case_check_texts("TF_CONFIG", texts, sizeof texts / sizeof *texts)

#define CLUSTER                                                                \
    "'cluster': {'chief': ['c:1'], 'worker': ['w0:2', 'w1:2'], "               \
    "'ps': ['p0:3', 'p1:3']}"
#define TASK ", 'task': {'type': 'worker', 'index': 0}"

TEST(the_own_index_is_a_whole_number) {
#define INDEX(index) "{" CLUSTER ", 'task': {'type': 'ps', 'index': " index "}}"
    static const struct cluster_case_text texts[] = {
        {"in a string", INDEX("'1'"), "{'index': 1, 'warnings': []}"},
        {"with noughts in front", INDEX("'01'"), "{'index': 1}"},
        {"a real", INDEX("1.0"), "bad_index"},
        {"with an exponent", INDEX("1e0"), "bad_index"},
        {"below 0", INDEX("-1"), "bad_index"},
        {"minus 0 is 0", INDEX("-0"), "{'index': 0}"},
        {"a sign in a string", INDEX("'+1'"), "bad_index"},
        {"blanks in a string", INDEX("' 1'"), "bad_index"},
        {"a word", INDEX("'one'"), "bad_index"},
        {"hexadecimal", INDEX("'0x1'"), "bad_index"},
        {"an empty string", INDEX("''"), "bad_index"},
        {"a truth", INDEX("true"), "bad_index"},
        {"a list", INDEX("[0]"), "bad_index"},
        {"an object", INDEX("{}"), "bad_index"},
        {"null is missing", INDEX("null"), "task_index_missing"},
        {"too large by one", INDEX("2"), "index_out_of_range"},
        {"beyond 32 bits", INDEX("4294967296"), "index_out_of_range"},
        {"beyond 64 bits", INDEX("99999999999999999999999"),
         "index_out_of_range"},
        {"beyond 64 bits in a string", INDEX("'99999999999999999999999'"),
         "index_out_of_range"},
        {"below 0 beyond 64 bits", INDEX("-99999999999999999999999"),
         "bad_index"},
        {"a real beyond all", INDEX("1e999"), "bad_index"},
        {"a number beyond 64 bits elsewhere",
         "{" CLUSTER TASK ", 'trial': [99999999999999999999, 1e400]}",
         "{'role': 'worker'}"},
    };
    CHECK(texts);
#undef INDEX
}

TEST(the_own_task_is_given_or_unambiguous) {
    static const struct cluster_case_text texts[] = {
        {"no task", "{" CLUSTER "}", "task_missing"},
        {"an empty task", "{" CLUSTER ", 'task': {}}", "task_type_missing"},
        {"no type", "{" CLUSTER ", 'task': {'index': 0}}", "task_type_missing"},
        {"type null", "{" CLUSTER ", 'task': {'type': null, 'index': 0}}",
         "task_type_missing"},
        {"type empty", "{" CLUSTER ", 'task': {'type': '', 'index': 0}}",
         "task_type_missing"},
        {"no index", "{" CLUSTER ", 'task': {'type': 'ps'}}",
         "task_index_missing"},
        {"a task of one cluster, missing", "{'cluster': {'ps': ['a:1']}}",
         "{'role': 'ps', 'index': 0, "
         "'warnings': ['task_missing', 'own_address_only']}"},
        {"its type missing",
         "{'cluster': {'worker': ['a:1']}, 'task': {'index': 0}}",
         "{'role': 'worker', 'warnings': ['task_missing']}"},
        {"its index missing",
         "{'cluster': {'chief': ['a:1']}, 'task': {'type': 'chief'}}",
         "{'role': 'chief', 'warnings': ['task_missing']}"},
        {"missing, sparse", "{'cluster': {'worker': {'3': 'a:1'}}}",
         "{'role': 'worker', 'index': 3, 'is_chief': false, 'chief': null, "
         "'warnings': ['task_missing', 'own_address_only']}"},
        {"its index wrong",
         "{'cluster': {'worker': ['a:1']}, 'task': {'index': 1}}",
         "index_out_of_range"},
        {"its type wrong",
         "{'cluster': {'worker': ['a:1']}, 'task': {'type': 'ps'}}",
         "task_type_not_in_cluster"},
        {"a lone evaluator", "{'cluster': {'evaluator': ['a:1']}}",
         "{'role': 'evaluator', 'num_workers': 0, 'chief': null}"},
        {"a list", "{" CLUSTER ", 'task': ['ps', 0]}", "task_not_object"},
        {"a string", "{" CLUSTER ", 'task': 'ps'}", "task_not_object"},
        {"null", "{" CLUSTER ", 'task': null}", "task_not_object"},
        {"a number", "{" CLUSTER ", 'task': 0}", "task_not_object"},
        {"no object, alone", "{'task': 0}", "task_not_object"},
    };
    CHECK(texts);
}

TEST(the_own_task_is_listed) {
#define OWN_TASK(task) "{" CLUSTER ", 'task': {" task "}}"
    static const struct cluster_case_text texts[] = {
        {"a type that is no job", OWN_TASK("'type': 'gpu', 'index': 0"),
         "task_type_not_in_cluster"},
        {"a type in the plural", OWN_TASK("'type': 'workers', 'index': 0"),
         "task_type_not_in_cluster"},
        {"a number as type", OWN_TASK("'type': 3, 'index': 0"),
         "task_type_not_in_cluster"},
        {"a list as type", OWN_TASK("'type': ['ps'], 'index': 0"),
         "task_type_not_in_cluster"},
        {"a truth as type", OWN_TASK("'type': true, 'index': 0"),
         "task_type_not_in_cluster"},
        {"a job not there",
         "{'cluster': {'worker': ['a:1', 'b:1']}, "
         "'task': {'type': 'ps', 'index': 0}}",
         "task_type_not_in_cluster"},
        {"an empty job",
         "{'cluster': {'worker': [], 'ps': ['a:1', 'b:1']}" TASK "}",
         "index_out_of_range"},
        {"an empty chief",
         "{'cluster': {'chief': [], 'ps': ['a:1']}, "
         "'task': {'type': 'chief', 'index': 0}}",
         "task_type_not_in_cluster"},
        {"an index past the end", OWN_TASK("'type': 'worker', 'index': 2"),
         "index_out_of_range"},
        {"chief 1", OWN_TASK("'type': 'chief', 'index': 1"),
         "index_out_of_range"},
        {"a key not there",
         "{'cluster': {'worker': {'1': 'a:1', '3': 'b:1'}}, "
         "'task': {'type': 'worker', 'index': 2}}",
         "index_out_of_range"},
        {"a ps of its own address",
         "{'cluster': {'ps': ['p5:1'], 'worker': {}}, "
         "'task': {'type': 'ps', 'index': 5}}",
         "{'role': 'ps', 'index': 5, 'num_ps': 1, "
         "'warnings': ['own_address_only']}"},
        {"a ps past the end of a list with others",
         "{'cluster': {'ps': ['p0:1'], 'worker': ['w0:1']}, "
         "'task': {'type': 'ps', 'index': 1}}",
         "index_out_of_range"},
        {"a sparse ps",
         "{'cluster': {'ps': {'2': 'p2:1'}, 'worker': ['w0:1']}, "
         "'task': {'type': 'ps', 'index': 2}}",
         "{'num_ps': 1, 'warnings': ['own_address_only']}"},
        {"an object without gaps is a list",
         "{'cluster': {'worker': {'1': 'b:1', '0': 'a:1'}}, "
         "'task': {'type': 'worker', 'index': 1}}",
         "{'num_workers': 2, 'chief': 'a:1', 'warnings': []}"},
        {"the one worker of an object may have others",
         "{'cluster': {'worker': {'0': 'a:1'}, 'ps': ['p:1']}" TASK "}",
         "{'is_chief': true, 'warnings': ['own_address_only']}"},
    };
    CHECK(texts);
#undef OWN_TASK
}
