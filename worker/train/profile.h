/* SPDX-License-Identifier: Apache-2.0 */
/* How long a model's computing takes on this machine, parameter by parameter:
 * what a simulated worker is given. */
#ifndef CAPSTAN_PROFILE_H
#define CAPSTAN_PROFILE_H

#include "proto/base/status.h"
#include "proto/config/job/job.h"

/* Arrays are the caller's, of 2 * (layers - 1) seconds: from a parameter's
 * first read in the forward pass to that of the next, and to its gradient from
 * the one before. The loss counts to the last parameter's forward. */
struct profile {
    double *forward, *backward;
    double parallel_efficiency; /* speed with all cores at it, of one alone: (0,
                                   1] */
};

/* Runs the passes of JOB's model on random samples for about SECONDS, first one
 * trainer alone, then CORES at once, each as `threads` of the job says;
 * medians of the calling thread's processor time. JOB has its batch solved. */
enum status profile_measure(struct profile *profile, const struct job *job,
                            unsigned cores, double seconds,
                            struct failure *why) MUST_CHECK;

#endif
