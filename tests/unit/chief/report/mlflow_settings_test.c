/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/report/mlflow_settings.h"

#include "tests/lib/assert_fails.h"
#include "tests/lib/test.h"

#include <string.h>

/* Names and values in turn, then NULL. */
static const char *find_variable(void *context, const char *name) {
    const char *const *pairs = context;
    for (; *pairs; pairs += 2)
        if (!strcmp(*pairs, name))
            return pairs[1];
    return NULL;
}

static enum status read_settings(struct mlflow_settings *settings,
                                 const struct job_mlflow *keys,
                                 const char *const *variables) {
    const struct job job = {.mlflow = *keys};
    return mlflow_settings_read(settings, &job, find_variable,
                                (void *)variables, NULL, &failure);
}

#define VARIABLES(...) ((const char *const[]){__VA_ARGS__, NULL})
static const char *const no_variables[] = {NULL};
static const struct job_mlflow no_keys;

TEST(without_key_and_variables_mlflow_is_off) {
    struct mlflow_settings settings;
    assert_ok(read_settings(&settings, &no_keys, no_variables));
    assert_false(settings.on);
}

TEST(an_empty_uri_in_the_job_is_off_whatever_the_variables_say) {
    struct mlflow_settings settings;
    const struct job_mlflow keys = {.tracking_uri = "", .experiment = "e"};
    assert_ok(read_settings(
        &settings, &keys,
        VARIABLES("MLFLOW_TRACKING_URI", "http://a", "MLFLOW_RUN_ID", "r")));
    assert_false(settings.on);
}

TEST(the_jobs_keys_count_before_the_variables) {
    struct mlflow_settings settings;
    const struct job_mlflow keys = {.experiment = "ours", .run_name = "first"};
    assert_ok(read_settings(
        &settings, &keys,
        VARIABLES("MLFLOW_TRACKING_URI", "http://a:5000/",
                  "MLFLOW_EXPERIMENT_NAME", "theirs", "MLFLOW_EXPERIMENT_ID",
                  "3", "MLFLOW_RUN_NAME", "second", "MLFLOW_TRACKING_USERNAME",
                  "u", "MLFLOW_TRACKING_PASSWORD", "p")));
    assert_true(settings.on && settings.asked);
    assert_string_equal(settings.url, "http://a:5000");
    assert_string_equal(settings.experiment, "ours");
    assert_null(settings.experiment_id);
    assert_string_equal(settings.run_name, "first");
    assert_string_equal(settings.user, "u");
    assert_string_equal(settings.password, "p");
}

/* Nor does it get the token of that server. */
TEST(variables_of_another_server_than_the_jobs_do_not_count) {
    struct mlflow_settings settings;
    const struct job_mlflow keys = {.tracking_uri = "http://b"};
    const char *const *variables =
        VARIABLES("MLFLOW_TRACKING_URI", "http://a", "MLFLOW_RUN_ID", "r",
                  "MLFLOW_TRACKING_TOKEN", "t", "MLFLOW_EXPERIMENT_ID", "3");
    assert_ok(read_settings(&settings, &keys, variables));
    assert_string_equal(settings.url, "http://b");
    assert_true(!settings.run_id && !settings.token && !settings.experiment_id);
    assert_ok(read_settings(&settings, &keys, variables + 2));
    assert_string_equal(settings.run_id, "r");
    assert_string_equal(settings.token, "t");
}

TEST(azure_mls_variables_alone_are_enough) {
    struct mlflow_settings settings;
    const char *const *variables =
        VARIABLES("AZUREML_RUN_ID", "az", "MLFLOW_TRACKING_TOKEN", "t",
                  "MLFLOW_TRACKING_URI",
                  "azureml://eu.api.azureml.ms/mlflow/v1.0/subscriptions/s");
    assert_ok(read_settings(&settings, &no_keys, variables));
    assert_true(settings.on && !settings.asked);
    assert_string_equal(settings.url, "https://eu.api.azureml.ms/mlflow/v1.0/"
                                      "subscriptions/s");
    assert_string_equal(settings.run_id, "az");
    assert_string_equal(settings.token, "t");
}

TEST(an_own_run_id_counts_before_azure_mls_which_is_only_for_azure_ml) {
    struct mlflow_settings settings;
    assert_ok(read_settings(&settings, &no_keys,
                            VARIABLES("AZUREML_RUN_ID", "az", "MLFLOW_RUN_ID",
                                      "own", "MLFLOW_TRACKING_URI",
                                      "azureml://eu.api.azureml.ms/m")));
    assert_string_equal(settings.run_id, "own");
    assert_ok(read_settings(
        &settings, &no_keys,
        VARIABLES("AZUREML_RUN_ID", "az", "MLFLOW_TRACKING_URI", "http://a")));
    assert_true(!settings.run_id && !settings.on);
}

TEST(a_server_in_the_environment_alone_gets_nothing) {
    struct mlflow_settings settings;
    assert_ok(read_settings(
        &settings, &no_keys,
        VARIABLES("MLFLOW_TRACKING_URI", "http://a", "MLFLOW_RUN_ID", "")));
    assert_false(settings.on);
}

TEST(a_variable_that_names_no_server_ends_only_a_run_that_asks_for_mlflow) {
    struct mlflow_settings settings;
    const struct job_mlflow keys = {.experiment = "ours"};
    const char *const *variables = VARIABLES(
        "MLFLOW_TRACKING_URI", "file:///mlruns", "MLFLOW_RUN_ID", "r");
    assert_ok(read_settings(&settings, &no_keys, variables));
    assert_false(settings.on);
    assert_error(read_settings(&settings, &keys, variables), FAILURE_JOB_UNFIT);
    assert_non_null(strstr(failure.text, "MLFLOW_TRACKING_URI: found"));
    assert_error(read_settings(&settings, &keys, no_variables),
                 FAILURE_JOB_UNFIT);
    assert_non_null(strstr(failure.text, "mlflow.tracking_uri: missing"));
}

TEST(the_servers_certificate_is_checked_unless_a_variable_says_no) {
    static const struct {
        const char *value;
        bool insecure;
    } cases[] = {{"true", true}, {"1", true},  {"True", true},
                 {"", false},    {"0", false}, {"false", false}};
    struct mlflow_settings settings;
    const struct job_mlflow keys = {.tracking_uri = "https://a"};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_ok(read_settings(
            &settings, &keys,
            VARIABLES("MLFLOW_TRACKING_INSECURE_TLS", cases[i].value,
                      "MLFLOW_TRACKING_SERVER_CERT_PATH", "/ca.pem")));
        assert_int_equal(settings.insecure, cases[i].insecure);
        assert_string_equal(settings.ca_file, "/ca.pem");
    }
}
