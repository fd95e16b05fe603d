/* SPDX-License-Identifier: Apache-2.0 */
/* A trainer of a simulated run: a thread that computes, layer by layer, and one
 * that exchanges, with the resend window of a real worker between it and the
 * ps. */
#ifndef CAPSTAN_SIMULATOR_WORKER_H
#define CAPSTAN_SIMULATOR_WORKER_H

#include "simulator/simulator_cluster.h"

/* Borrows STAGE. NULL: no memory. */
struct simulator_worker *simulator_worker_open(
    struct simulator_cluster *simulator_cluster, uint32_t rank);

/* Frees *WORKER (may be NULL) and clears it. */
void simulator_worker_close(struct simulator_worker **worker);

/* Its first step begins. */
void simulator_worker_begin(struct simulator_worker *worker);

/* LETTER, taken, has come. */
void simulator_worker_receive(struct simulator_worker *worker,
                              struct packet *packet);

/* Seconds that its computing thread has been at work. */
double simulator_worker_busy(const struct simulator_worker *worker);

#endif
