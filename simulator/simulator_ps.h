/* SPDX-License-Identifier: Apache-2.0 */
/* A ps of a simulated run: the update core of a real ps decides which blocks
 * are updated and which trainers are answered; one thread spends the time for
 * it. */
#ifndef CAPSTAN_SIMULATOR_PS_H
#define CAPSTAN_SIMULATOR_PS_H

#include "simulator/simulator_cluster.h"

/* Borrows CLUSTER. NULL: no memory. */
struct simulator_ps *simulator_ps_open(struct simulator_cluster *cluster,
                                       uint32_t index);

/* Frees *PS (may be NULL) and clears it. */
void simulator_ps_close(struct simulator_ps **ps);

/* Receives PACKET and takes ownership. */
void simulator_ps_receive(struct simulator_ps *ps, struct packet *packet);

/* Seconds for which its thread has been busy. */
double simulator_ps_busy(const struct simulator_ps *ps);

#endif
