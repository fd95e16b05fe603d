/* SPDX-License-Identifier: Apache-2.0 */
/* Whom a process takes itself for: settings found in public, with their
 * sources, and settings spoilt at random. */
#include "tests/cluster/cluster_case.h"
#include "tests/lib/test.h"

#include "proto/cluster/cluster.h"

#include <ctype.h>
#include <jansson.h>

#define TF_CONFIG(text)                                                        \
    { "TF_CONFIG", text }
#define ONE_WORKER                                                             \
    "{\"cluster\": {\"worker\": [\"w:1\"]}, \"task\": "                        \
    "{\"type\": \"worker\", \"index\": 0}}"

static struct cluster *resolve(
    struct cluster_case_variable environment[CLUSTER_CASE_VARIABLES]) {
    struct cluster *cluster;
    struct failure why = {0};
    if (cluster_resolve(&cluster, NULL, cluster_case_lookup, environment,
                        &why) != STATUS_OK)
        fail_msg("%s", why.text);
    return cluster;
}

/* What a published case expects, as a form does. */
static char *expectation(const json_t *expect) {
    const char *error = json_string_value(json_object_get(expect, "error"));
    if (error)
        return strdup(error);
    json_t *fields = json_copy((json_t *)expect);
    json_object_del(fields, "accept");
    json_object_del(fields, "warning");
    const json_t *warning = json_object_get(expect, "warning");
    if (warning)
        json_object_set_new(fields, "warnings",
                            json_pack("[s]", json_string_value(warning)));
    char *text = json_dumps(fields, 0);
    json_decref(fields);
    return text;
}

/* A case has one variable, or several in "environment". */
static void check_published(const json_t *one) {
    const json_t *several = json_object_get(one, "environment");
    char *expect = expectation(json_object_get(one, "expect"));
    struct cluster_case form = {
        .description = json_string_value(json_object_get(one, "name")),
        .flags = {.num_ps = json_string_value(json_object_get(one, "num_ps"))},
        .environment = {{json_string_value(json_object_get(one, "variable")),
                         json_string_value(json_object_get(one, "value"))}},
        .expect = expect};
    size_t used = 0;
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)several, name, value) {
        assert_in_range(used, 0, CLUSTER_CASE_VARIABLES - 1);
        form.environment[used++] =
            (struct cluster_case_variable){name, json_string_value(value)};
    }
    assert_non_null(json_string_value(json_object_get(one, "source")));
    cluster_case_check(&form);
    free(expect);
}

static void check_all_published(const char *path) {
    json_error_t error;
    json_t *cases = json_load_file(path, 0, &error);
    json_t *one;
    size_t i;
    if (!cases)
        fail_msg("%s: %s (run from the repository root)", path, error.text);
    assert_int_equal(json_array_size(cases), 40);
    json_array_foreach(cases, i, one) check_published(one);
    json_decref(cases);
}

TEST(every_published_setting_gives_its_expected_result) {
    check_all_published("tests/data/tf_config_cases.json");
}

TEST(every_published_launchers_setting_gives_its_expected_result) {
    check_all_published("tests/data/launcher_cases.json");
}

TEST(only_the_first_source_that_is_set_counts) {
    static const char vertex[] = "{\"cluster\": {\"workerpool0\": [\"v:1\"]}, "
                                 "\"task\": {\"type\": \"workerpool0\", "
                                 "\"index\": 0}}";
    const struct cluster_case forms[] = {
        {"nothing is set",
         .expect =
             "{'source': 'alone', 'role': 'worker', 'index': 0, 'num_ps': 0, "
             "'num_workers': 1, 'chief': null, 'is_chief': true, "
             "'mode': 'local', 'warnings': []}"},
        {"TF_CONFIG empty", .expect = "{'source': 'alone'}",
         .environment = {TF_CONFIG("")}},
        {"TF_CONFIG blank", .expect = "{'source': 'alone'}",
         .environment = {TF_CONFIG(" \t\n")}},
        {"both blank", .expect = "{'source': 'alone'}",
         .environment = {TF_CONFIG(" "), {"CLUSTER_SPEC", "\n"}}},
        {"TF_CONFIG blank, CLUSTER_SPEC set",
         .expect = "{'source': 'CLUSTER_SPEC', 'chief': 'v:1'}",
         .environment = {TF_CONFIG(" "), {"CLUSTER_SPEC", vertex}}},
        {"both set", .expect = "{'source': 'TF_CONFIG', 'chief': 'w:1'}",
         .environment = {TF_CONFIG(ONE_WORKER), {"CLUSTER_SPEC", vertex}}},
        {"TF_CONFIG without a cluster, CLUSTER_SPEC with one",
         .expect = "{'source': 'TF_CONFIG', 'mode': 'local'}",
         .environment = {TF_CONFIG("{}"), {"CLUSTER_SPEC", vertex}}},
        {"flags and both", .expect = "{'source': 'flags', 'chief': 'f:1'}",
         .environment = {TF_CONFIG(ONE_WORKER), {"CLUSTER_SPEC", vertex}},
         .flags = {.job_name = "worker",
                   .task_index = "0",
                   .worker_hosts = "f:1"}},
        {"flags blank", .expect = "{'source': 'TF_CONFIG'}",
         .environment = {TF_CONFIG(ONE_WORKER)},
         .flags = {.job_name = "",
                   .task_index = " ",
                   .ps_hosts = "",
                   .worker_hosts = "",
                   .chief_hosts = ""}},
        {"TF_CONFIG wrong, CLUSTER_SPEC right", .expect = "bad_json",
         .environment = {TF_CONFIG("{"), {"CLUSTER_SPEC", vertex}}},
        {"flags wrong, TF_CONFIG right", .expect = "bad_port",
         .environment = {TF_CONFIG(ONE_WORKER)}, .flags = {.ps_hosts = "a"}},
        {"CLUSTER_SPEC wrong", .expect = "not_object",
         .environment = {{"CLUSTER_SPEC", "[]"}}},
        {"a launcher's address alone says nothing",
         .expect = "{'source': 'alone'}",
         .environment = {{"MASTER_ADDR", "a"}, {"LOCAL_RANK", "1"}}},
    };
    cluster_case_check_all(forms);
}

TEST(the_printed_json_matches_the_documentation) {
    struct cluster_case_variable environment[CLUSTER_CASE_VARIABLES] = {
        TF_CONFIG("{\"cluster\": {\"chief\": [\"localhost:3224\"], \"ps\": "
                  "[\"a:0\", \"b:1\"], \"worker\": [\"c:1\"]}, \"task\": "
                  "{\"type\": \"worker\", \"index\": 0}}")};
    struct cluster *cluster = resolve(environment);
    char *text = cluster_json(cluster);
    assert_string_equal(
        text, "{\"source\":\"TF_CONFIG\",\"role\":\"worker\",\"index\":0,"
              "\"num_ps\":2,\"num_workers\":1,\"chief\":\"localhost:3224\","
              "\"is_chief\":false,\"mode\":\"cluster\",\"warnings\":"
              "[\"port_zero\"]}");
    free(text);
    cluster_free(&cluster);
    assert_null(cluster);
    cluster_free(&cluster);
    cluster_free(NULL);
}

TEST(a_task_is_found_by_index_not_by_position) {
    struct cluster_case_variable environment[CLUSTER_CASE_VARIABLES] = {
        TF_CONFIG("{\"cluster\": {\"worker\": {\"7\": \"h7:70\", \"2\": "
                  "\"[::1]:20\"}}, \"task\": {\"type\": \"worker\", "
                  "\"index\": 7}}")};
    struct cluster *cluster = resolve(environment);
    const struct cluster_task *self = cluster_own_task(cluster);
    char address[270];
    assert_ptr_equal(self, cluster_find(cluster, CLUSTER_WORKER, 7));
    assert_string_equal(self->host, "h7");
    assert_int_equal(self->port, 70);
    assert_null(cluster_find(cluster, CLUSTER_WORKER, 0));
    assert_null(cluster_find(cluster, CLUSTER_PS, 7));
    assert_null(cluster_chief(cluster));
    assert_false(cluster_is_chief(cluster));
    cluster_address(cluster_find(cluster, CLUSTER_WORKER, 2), address,
                    sizeof address);
    assert_string_equal(address, "[::1]:20");
    cluster_free(&cluster);
}

TEST(a_single_process_is_chief_and_has_no_address) {
    struct cluster_case_variable environment[CLUSTER_CASE_VARIABLES] = {{0}};
    struct cluster *cluster = resolve(environment);
    assert_true(cluster->local);
    assert_true(cluster_is_chief(cluster));
    assert_null(cluster_own_task(cluster));
    assert_null(cluster_chief(cluster));
    assert_null(cluster->model_dir);
    cluster_free(&cluster);
}

TEST(an_error_says_how_to_fix_it) {
    static const char *const rejected[][2] = {
        {"{'cluster': {}}", "json.dumps"},
        {"'{\"cluster\": {}}'", "shell's quotes"},
        {"{\\\"cluster\\\": {}}", "escaped"},
        {"\"{\\\"cluster\\\": {}}\"", "once only"},
        {"{\"cluster\": {\"ps_hosts\": []}}", "Rename it to \"ps\""},
        {"{\"cluster\": {\"workerpool2\": []}}", "Rename it to \"ps\""},
        {"{\"cluster\": {\"wroker\": []}}", "Rename it to \"worker\""},
        {"{\"cluster\": {\"gpu\": []}}", "chief, master, worker, ps"},
        {"{\"ps\": [\"a:1\"]}", "under \"cluster\""},
        {"{\"cluster\": {\"ps\": [\"a:1\", \"http://b\"]}}",
         "ps[1] of cluster in TF_CONFIG is \"http://b\""},
        {"{\"cluster\": {\"ps\": [\"a:70000\"]}}", "1 to 65535"},
        {"{\"cluster\": {\"ps\": [\"a:1\"]}, \"task\": {\"type\": "
         "\"parameter_server\", \"index\": 0}}",
         "\"ps\" meant?"},
        {"{\"cluster\": {\"worker\": [\"a:1\", \"b:1\"]}, \"task\": "
         "{\"type\": \"worker\", \"index\": 2}}",
         "lists 2, counted from 0"},
    };
    for (size_t i = 0; i < sizeof rejected / sizeof *rejected; i++) {
        struct cluster_case_variable environment[CLUSTER_CASE_VARIABLES] = {
            TF_CONFIG(rejected[i][0])};
        struct cluster *cluster;
        struct failure why = {0};
        assert_fails(cluster_resolve(&cluster, NULL, cluster_case_lookup,
                                     environment, &why),
                     &why, FAILURE_CLUSTER_INVALID);
        assert_contains(why.text, rejected[i][1]);
    }
}

/* xorshift64 (Marsaglia 2003). */
static uint64_t random_setting(uint64_t *random) {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    return *random;
}

/* Pieces that the rules turn on, and bytes that no rule knows. */
static const char *const pieces[] = {
    "\"",
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    "null",
    "true",
    "-1",
    "0",
    "1",
    "1.5",
    "1e999",
    "\\u0000",
    "\\",
    "\xff",
    "'",
    "\"ps\"",
    "\"0\"",
    "\"chief\"",
    "\"task\"",
    "\"index\"",
    "\"type\"",
    "\"\"",
    "{}",
    "[]",
    "\"a:0\"",
    "\"[::1]:1\"",
    " ",
    "\"cluster\"",
    "\"model_dir\"",
    "99999999999999999999",
    "\"evaluator\"",
};

/* Puts a piece into TEXT of SIZE bytes, or takes bytes out of it. */
static void mutate(char *text, size_t size, uint64_t *random) {
    size_t length = strlen(text);
    size_t at = random_setting(random) % (length + 1);
    size_t out = random_setting(random) % 2 ? random_setting(random) % 8 : 0;
    const char *in =
        pieces[random_setting(random) % (sizeof pieces / sizeof *pieces)];
    if (random_setting(random) % 4 == 0)
        in = "";
    if (out > length - at)
        out = length - at;
    if (length - out + strlen(in) >= size)
        return;
    memmove(text + at + strlen(in), text + at + out, length - at - out + 1);
    memcpy(text + at, in, strlen(in));
}

static void check_outcome(const struct cluster_case *form) {
    struct cluster *cluster = NULL;
    struct failure why = {0};
    enum status status =
        cluster_resolve(&cluster, &form->flags, cluster_case_lookup,
                        (void *)form->environment, &why);
    if (status == STATUS_OK) {
        char *text = cluster_json(cluster);
        if (!text || !cluster->source)
            fail_msg("nothing to print of %s", form->description);
        free(text);
        cluster_free(&cluster);
        return;
    }
    size_t class = strspn(why.text, "abcdefghijklmnopqrstuvwxyz_");
    if (cluster || status != STATUS_CONFIG ||
        failure_code_status(why.code) != status || class < 4 ||
        strncmp(why.text + class, ": ", 2) != 0 ||
        strlen(why.text) > sizeof why.text - 2)
        fail_msg("%s: %s", form->description, why.text);
}

static void check_mutant(const char *text) {
    const struct cluster_case forms[] = {
        {.description = text, .environment = {{"TF_CONFIG", text}}},
        {.description = text,
         .environment = {{"CLUSTER_SPEC", text},
                         {"JOB_NAME", "ps"},
                         {"TASK_INDEX", "0"}}},
        {.description = text,
         .flags = {.job_name = "ps", .task_index = "0", .ps_hosts = text}},
        {.description = text,
         .environment = {{"PADDLE_TRAINER_ENDPOINTS", text},
                         {"PADDLE_PSERVERS_IP_PORT_LIST", text},
                         {"PADDLE_TRAINER_ID", "0"}}},
        {.description = text,
         .environment = {{"PADDLE_PSERVERS_IP_PORT_LIST", text},
                         {"PADDLE_TRAINERS_NUM", "2"},
                         {"TRAINING_ROLE", "PSERVER"},
                         {"PADDLE_CURRENT_ENDPOINT", text},
                         {"MASTER_ADDR", "h"}}},
        {.description = text,
         .environment = {{"SM_RESOURCE_CONFIG", text},
                         {"SM_CURRENT_HOST", "h0"}}},
        {.description = text,
         .environment = {{"SM_HOSTS", text}, {"SM_CURRENT_HOST", "a:1"}}},
        {.description = text,
         .environment = {{"LSB_HOSTS", text},
                         {"JSM_NAMESPACE_RANK", "0"},
                         {"JSM_NAMESPACE_SIZE", "2"}}},
        {.description = text,
         .environment = {{"LSB_MCPU_HOSTS", text},
                         {"JSM_NAMESPACE_RANK", "0"},
                         {"JSM_NAMESPACE_SIZE", "2"}}},
        {.description = text,
         .environment = {{"DMLC_ROLE", "worker"},
                         {"DMLC_PS_ROOT_URI", text},
                         {"DMLC_PS_ROOT_PORT", "1"},
                         {"DMLC_NUM_WORKER", "2"},
                         {"DMLC_NUM_SERVER", "1"},
                         {"DMLC_WORKER_ID", text}}},
    };
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        check_outcome(&forms[i]);
}

TEST(a_mutated_setting_is_accepted_or_refused_with_its_class) {
    static const char *const seeds[] = {
        "{\"cluster\": {\"chief\": [\"c:1\"], \"ps\": [\"p:2\", \"q:0\"], "
        "\"worker\": {\"0\": \"w:3\", \"2\": \"[fe80::1%eth0]:4\"}}, "
        "\"task\": {\"type\": \"worker\", \"index\": 2}, \"model_dir\": "
        "\"/m\"}",
        "{\"worker\": [\"a:1\", \"b:1\"], \"ps\": null, \"evaluator\": "
        "[\"e:1\"], \"master\": {\"0\": \"m:1\"}}",
        "{\"cluster\": {\"workerpool0\": [\"a:1\"], \"workerpool2\": "
        "[\"b:1\"]}, \"task\": {\"type\": \"workerpool2\", \"index\": \"0\"}}",
        "h0:1,h1:2,[2001:db8::1]:3",
        "[\"a:1\", \"b:0\", \"h0\"]",
        "{\"hosts\": [\"h0\", \"a:0\"], \"current_host\": \"h0\"}",
        "batch 1 10.10.10.0 42 10.10.10.1 42",
    };
    uint64_t random = UINT64_C(0x1d872b41a97cf3e5);
    print_message("seed %#jx\n", (uintmax_t)random);
    for (int i = 0; i < 20000; i++) {
        char text[512];
        snprintf(text, sizeof text, "%s",
                 seeds[i % (sizeof seeds / sizeof *seeds)]);
        for (uint64_t n = 1 + random_setting(&random) % 4; n > 0; n--)
            mutate(text, sizeof text, &random);
        check_mutant(text);
    }
}
