/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/report/mlflow_settings.h"

#include "proto/job/mlflow_uri.h"

#include <string.h>
#include <strings.h>

struct lookup {
    cluster_getenv *function;
    void *context;
};

/* An empty variable is one that is not set. */
static const char *variable(const struct lookup *lookup, const char *name) {
    const char *value = lookup->function(lookup->context, name);
    return value && *value ? value : NULL;
}

static bool is_azureml(const char *uri) {
    return !strncasecmp(uri, "azureml://", strlen("azureml://"));
}

/* As MLflow reads it. */
static bool is_true(const char *text) {
    return text && (!strcasecmp(text, "true") || !strcmp(text, "1"));
}

/* The variables beside MLFLOW_TRACKING_URI, which belong to its server. */
static void read_own_variables(struct mlflow_settings *out,
                               const struct lookup *lookup, const char *uri) {
    out->token = variable(lookup, "MLFLOW_TRACKING_TOKEN");
    out->user = variable(lookup, "MLFLOW_TRACKING_USERNAME");
    out->password = variable(lookup, "MLFLOW_TRACKING_PASSWORD");
    out->run_id = variable(lookup, "MLFLOW_RUN_ID");
    if (!out->run_id && is_azureml(uri))
        out->run_id = variable(lookup, "AZUREML_RUN_ID");
    if (!out->run_name)
        out->run_name = variable(lookup, "MLFLOW_RUN_NAME");
    if (!out->experiment)
        out->experiment = variable(lookup, "MLFLOW_EXPERIMENT_NAME");
    if (!out->experiment)
        out->experiment_id = variable(lookup, "MLFLOW_EXPERIMENT_ID");
    out->ca_file = variable(lookup, "MLFLOW_TRACKING_SERVER_CERT_PATH");
    out->insecure = is_true(variable(lookup, "MLFLOW_TRACKING_INSECURE_TLS"));
}

enum status mlflow_settings_read(struct mlflow_settings *out,
                                 const struct job *job, cluster_getenv *getenv,
                                 void *context, const struct log *log,
                                 struct failure *why) {
    const struct lookup lookup = {getenv, context};
    const char *set = variable(&lookup, "MLFLOW_TRACKING_URI");
    const char *uri = job->mlflow.tracking_uri ? job->mlflow.tracking_uri : set;
    char problem[512];
    *out = (struct mlflow_settings){.experiment = job->mlflow.experiment,
                                    .run_name = job->mlflow.run_name};
    out->asked = job->mlflow.tracking_uri || out->experiment || out->run_name;
    if ((!uri && !out->asked) || (uri && !*uri))
        return STATUS_OK;
    if (!uri)
        return status_fail(why, FAILURE_JOB_UNFIT,
                           "mlflow.tracking_uri: missing; give the address of "
                           "an MLflow server, or set MLFLOW_TRACKING_URI");
    if (!set || !strcmp(uri, set))
        read_own_variables(out, &lookup, uri);
    bool valid = mlflow_uri_read(uri, out->url, sizeof out->url, problem,
                                 sizeof problem);
    if (!valid && out->asked)
        return status_fail(why, FAILURE_JOB_UNFIT, "MLFLOW_TRACKING_URI: %s",
                           problem);
    out->on = valid && (out->asked || out->run_id);
    if (!valid)
        log_info(log, "mlflow_not_used",
                 "no metrics go to MLflow: "
                 "MLFLOW_TRACKING_URI: %s",
                 problem);
    else if (!out->on)
        log_info(log, "mlflow_not_used",
                 "no metrics go to %s (MLFLOW_TRACKING_URI): set "
                 "mlflow.experiment in the job, or MLFLOW_RUN_ID",
                 out->url);
    return STATUS_OK;
}
