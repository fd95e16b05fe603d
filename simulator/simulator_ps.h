/* SPDX-License-Identifier: Apache-2.0 */
/* A ps of a simulated run: the exchange of a real one decides what is updated
 * and who is answered, and one thread takes the time for it. */
#ifndef CAPSTAN_SIMULATOR_PS_H
#define CAPSTAN_SIMULATOR_PS_H

#include "simulator/simulator_cluster.h"

/* Borrows STAGE. NULL: no memory. */
struct simulator_ps *simulator_ps_open(
    struct simulator_cluster *simulator_cluster, uint32_t index);

/* Frees *PS (may be NULL) and clears it. */
void simulator_ps_close(struct simulator_ps **ps);

/* LETTER, taken, has come. */
void simulator_ps_receive(struct simulator_ps *ps, struct packet *packet);

/* Seconds that its thread has been at work. */
double simulator_ps_busy(const struct simulator_ps *ps);

#endif
