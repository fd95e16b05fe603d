/* SPDX-License-Identifier: Apache-2.0 */
/* Measures the compute time of a model on this machine per parameter, for a
 * simulated worker. */
#ifndef CAPSTAN_PROFILE_H
#define CAPSTAN_PROFILE_H

#include "core/base/status.h"
#include "proto/job/job.h"

/* Arrays are the caller's, of 2 * (layers - 1) seconds: from a parameter's
 * first read in the forward pass to that of the next, and from the gradient
 * before it to its own. The loss counts to the last parameter's forward. */
struct profile {
    double *forward, *backward;
    double parallel_efficiency; /* speed with all cores busy relative to one
                                   alone: (0, 1] */
};

/* Runs passes of JOB's model on random samples for about SECONDS, first one
 * trainer alone, then CORES at once, each with the job's `threads`; medians of
 * the calling thread's CPU time. JOB's batch is resolved. */
enum status profile_measure(struct profile *profile, const struct job *job,
                            unsigned cores, double seconds,
                            struct failure *why) MUST_CHECK;

#endif
