/* SPDX-License-Identifier: Apache-2.0 */
/* Which MLflow server gets a run's metrics, as which run, and how it is asked:
 * by the job and by the variables of MLflow and of Azure ML. The job's keys
 * count before variables of the same meaning. */
#ifndef CAPSTAN_MLFLOW_SETTINGS_H
#define CAPSTAN_MLFLOW_SETTINGS_H

#include "core/base/log.h"
#include "core/base/status.h"
#include "proto/cluster/cluster.h"
#include "proto/job/job.h"

#include <stdbool.h>

struct mlflow_settings {
    bool on;
    bool asked; /* by the job, and not by variables alone */
    char url[2048];
    /* Views of the job and of the environment; NULL: not given. */
    const char *experiment; /* a name, */
    const char *experiment_id;
    const char *run_id, *run_name;
    const char *user, *password, *token, *ca_file;
    bool insecure;
};

/* Reads JOB and the variables, which outlive OUT. Without a key of the job it
 * is on if the variables name a server and a run, as those of Azure ML do; if
 * they name a server alone, or one that is none, LOG has a line. STATUS_CONFIG:
 * the job asks for MLflow, and no server is known. */
enum status mlflow_settings_read(struct mlflow_settings *out,
                                 const struct job *job, cluster_getenv *lookup,
                                 void *context, const struct log *log,
                                 struct failure *why) MUST_CHECK;

#endif
