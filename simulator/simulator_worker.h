/* SPDX-License-Identifier: Apache-2.0 */
/* A trainer of a simulated run: a thread that computes layer by layer, and one
 * that communicates through the resend window of a real worker. */
#ifndef CAPSTAN_SIMULATOR_WORKER_H
#define CAPSTAN_SIMULATOR_WORKER_H

#include "simulator/simulator_cluster.h"

/* Borrows CLUSTER. NULL: no memory. */
struct simulator_worker *simulator_worker_open(
    struct simulator_cluster *cluster, uint32_t rank);

/* Frees *WORKER (may be NULL) and clears it. */
void simulator_worker_close(struct simulator_worker **worker);

/* Begins its first step. */
void simulator_worker_begin(struct simulator_worker *worker);

/* Receives PACKET and takes ownership. */
void simulator_worker_receive(struct simulator_worker *worker,
                              struct packet *packet);

/* Seconds for which its computing thread has been busy. */
double simulator_worker_busy(const struct simulator_worker *worker);

#endif
