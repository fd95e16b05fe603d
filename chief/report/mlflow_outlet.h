/* SPDX-License-Identifier: Apache-2.0 */
/* The points of a run as metrics of an MLflow server, which is talked to on a
 * thread of its own: the chief waits for it at the end of the run only.
 * mlflow_run.h decides what is told. */
#ifndef CAPSTAN_MLFLOW_OUTLET_H
#define CAPSTAN_MLFLOW_OUTLET_H

#include "chief/report/point.h"

/* As run->mlflow says. PLUGIN_MISSING: the job asks for it, and this host has
 * no libcurl. */
enum status mlflow_outlet_open(struct point_outlet *outlet,
                               const struct run *run,
                               struct failure *why) MUST_CHECK;

#endif
