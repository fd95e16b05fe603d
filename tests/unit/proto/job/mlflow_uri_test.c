/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/job/mlflow_uri.h"

#include "tests/lib/test.h"

#include <string.h>

static bool read_uri(const char *text, char url[128], char problem[512]) {
    url[0] = problem[0] = 0;
    return mlflow_uri_read(text, url, 128, problem, 512);
}

TEST(a_server_over_http_is_taken_as_it_is) {
    static const struct {
        const char *text, *url;
    } cases[] = {
        {"http://127.0.0.1:5000", "http://127.0.0.1:5000"},
        {"https://mlflow.example/", "https://mlflow.example"},
        {"HTTPS://mlflow.example/a/b//", "https://mlflow.example/a/b"},
        {"http://[::1]:5000/", "http://[::1]:5000"},
        {"https://h/a@b", "https://h/a@b"},
    };
    char url[128], problem[512];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_true(read_uri(cases[i].text, url, problem));
        assert_string_equal(url, cases[i].url);
    }
}

TEST(azure_ml_is_asked_over_https) {
    char url[128], problem[512];
    assert_true(read_uri("azureml://westeurope.api.azureml.ms/mlflow/v1.0/"
                         "subscriptions/s/resourceGroups/g",
                         url, problem));
    assert_string_equal(url, "https://westeurope.api.azureml.ms/mlflow/v1.0/"
                             "subscriptions/s/resourceGroups/g");
}

TEST(what_is_no_server_is_refused_by_name_with_what_to_do) {
    static const struct {
        const char *text, *says, *advice;
    } cases[] = {
        {"", "a folder", "mlflow server"},
        {"mlruns", "\"mlruns\", a folder", "mlflow server"},
        {"file:///tmp/mlruns", "a folder", "--backend-store-uri"},
        {"sqlite:///mlflow.db", "a database (sqlite:)", "mlflow server"},
        {"mysql+pymysql://u:secret@h/d", "a database (mysql+pymysql:)",
         "mlflow server"},
        {"postgresql://u:secret@h/d", "a database", "mlflow server"},
        {"databricks", "\"databricks\"", "MLFLOW_TRACKING_TOKEN"},
        {"databricks://profile", "databricks", "https://"},
        {"s3://bucket", "the scheme \"s3\"", "allowed"},
        {"http://", "without a host", "http://HOST:PORT"},
        {"https://u:secret@host", "a name or password",
         "MLFLOW_TRACKING_USERNAME"},
        {"http://host?a=b", "? or #", "http://HOST:PORT/PATH"},
        {"http://host/a b", "space", "http://HOST:PORT/PATH"},
    };
    char url[128], problem[512];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_false(read_uri(cases[i].text, url, problem));
        assert_non_null(strstr(problem, cases[i].says));
        assert_non_null(strstr(problem, cases[i].advice));
        assert_null(strstr(problem, "secret"));
    }
}

TEST(an_address_that_does_not_fit_is_refused) {
    char long_text[300] = "http://", url[128], problem[512];
    memset(long_text + strlen(long_text), 'a', 200);
    assert_false(read_uri(long_text, url, problem));
    assert_non_null(strstr(problem, "allowed: up to 112"));
}
