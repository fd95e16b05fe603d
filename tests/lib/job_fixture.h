/* SPDX-License-Identifier: Apache-2.0 */
/* The job file of the tests, a folder for it, and what a log line says. */
#ifndef CAPSTAN_JOB_FIXTURE_H
#define CAPSTAN_JOB_FIXTURE_H

#include "proto/job/job.h"

struct job_fixture {
    char folder[64];
    struct failure why;
    struct job *job;
    char log[16384]; /* what the last load said */
};

/* The example of the documentation, as JSON. */
extern const char job_fixture_example[];
/* The least that is a job. */
extern const char job_fixture_least[];

int job_fixture_setup(void **state);
int job_fixture_teardown(void **state);

/* Writes TEXT to FOLDER/NAME. */
void job_fixture_write(const struct job_fixture *fixture, const char *name,
                       const char *text);

/* Loads job TEXT with overrides, NULL-ended, and DeepSpeed's configuration (or
 * NULL) from files of the folder; the job before is freed. */
enum status job_fixture_load(struct job_fixture *fixture, const char *text,
                             const char *deepspeed,
                             const char *const *overrides);

/* Loads the least job with "KEY=VALUE" set. */
enum status job_fixture_set(struct job_fixture *fixture, const char *setting);

/* LOADED, of the last load, is STATUS_OK, or fails with its words. */
void job_fixture_expect_loaded(const struct job_fixture *fixture,
                               enum status loaded);

/* LOADED fails with FAILURE_JOB_INVALID, there is no job, and its words have
 * PART. */
void job_fixture_expect_refused(const struct job_fixture *fixture,
                                enum status loaded, const char *part);

/* The least job with "KEY=VALUE" set is refused so. */
void job_fixture_expect_set_refused(struct job_fixture *fixture,
                                    const char *setting, const char *part);

#endif
