/* SPDX-License-Identifier: Apache-2.0 */
/* What a run has to tell an MLflow server: which request is next, and what its
 * answer means. Pure: the caller sends the requests, one at a time, and gives
 * the time (nanoseconds of any clock).
 *
 * Points wait in a queue of bounded size; where it is full, the older half of
 * it is thinned to every second point. A request carries at most
 * MLFLOW_METRICS metrics and is repeated as it was until it is answered. If it
 * is not known whether the server has taken it, the histories of its metrics
 * are read first, and what stands there is not sent again. A run and an
 * experiment are looked for before they are made, so a lost answer makes no
 * second one. */
#ifndef CAPSTAN_MLFLOW_RUN_H
#define CAPSTAN_MLFLOW_RUN_H

#include "core/base/status.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

/* Limits of MLflow's log-batch. */
enum { MLFLOW_METRICS = 1000, MLFLOW_PARAMS = 100, MLFLOW_VALUE = 6000 };

struct mlflow_run_settings {
    const char *experiment;    /* its name, */
    const char *experiment_id; /* or its number; NULL: by name */
    const char *run_id;   /* of a run that exists, which its owner ends; NULL:
                             it is found by `lineage`, or made */
    const char *run_name; /* what a found or new run has; NULL: any found one,
                             or `new_name` */
    const char *new_name;
    const char *lineage;  /* the same for all that resume from one run */
    const json_t *tags;   /* an object of strings */
    const json_t *params; /* the same; one beyond MLFLOW_VALUE bytes is cut */
    int64_t start_ms;     /* calendar, as all *_ms */
    const char *const *names; /* [num_names] of metrics */
    uint32_t num_names;       /* at most MLFLOW_METRICS */
    size_t bytes;             /* of points that wait, at most */
    uint64_t
        repeats_to; /* points up to this step may stand there, of an
                 earlier      process: histories are read first, and what has
                 the      same value but for rounding is not sent again */
};

struct mlflow_run;

/* Copies SETTINGS but `names`, which outlives the run. NULL: no memory. */
struct mlflow_run *mlflow_run_open(const struct mlflow_run_settings *settings);

/* Frees *RUN (may be NULL) and clears it. */
void mlflow_run_close(struct mlflow_run **run);

/* Queues a point: a value for each name, NAN: none. */
void mlflow_run_add(struct mlflow_run *run, uint64_t step, int64_t unix_ms,
                    const double *values);

/* No point follows. Once all are sent, the server is told STATUS ("FINISHED",
 * "FAILED", "KILLED"; a literal), unless the run was given by its id. */
void mlflow_run_end(struct mlflow_run *run, int64_t now, const char *status,
                    int64_t unix_ms);

struct mlflow_request {
    const char *method;
    char *path; /* below .../api/2.0/mlflow/, with its query */
    char *body; /* NULL: none */
};

void mlflow_request_clear(struct mlflow_request *request);

/* When the next request is due; TIME_NEVER: none before another call. */
int64_t mlflow_run_due(const struct mlflow_run *run, int64_t now);

/* Fills REQUEST, which the caller clears, with what is due at NOW. False:
 * nothing, or no memory. Each is answered before the next. */
bool mlflow_run_next(struct mlflow_run *run, int64_t now,
                     struct mlflow_request *request);

struct mlflow_answer {
    enum mlflow_outcome {
        MLFLOW_ANSWERED, /* with `code` */
        MLFLOW_NOT_SENT, /* the server has not got the request */
        MLFLOW_LOST,     /* it may have */
    } outcome;
    long code;          /* of HTTP */
    const json_t *body; /* NULL: no JSON */
    const char *text;   /* what went wrong, for people */
};

void mlflow_run_answer(struct mlflow_run *run, int64_t now,
                       const struct mlflow_answer *answer);

struct mlflow_run_facts {
    bool over;        /* all is told, or it was given up */
    bool given_up;    /* for `problem` */
    char run_id[256]; /* "": not known yet */
    char experiment_id[64];
    uint32_t failures; /* requests in a row that failed and are repeated */
    uint64_t thinned;  /* points that made room for others */
    uint64_t waiting;  /* points not told yet */
    uint64_t lost;     /* points that were given up or refused */
    uint64_t refused_params, differing_params;
    char param[256];   /* the first of these */
    char problem[512]; /* of the last request that failed or was refused */
};

const struct mlflow_run_facts *mlflow_run_facts(const struct mlflow_run *run);

#endif
