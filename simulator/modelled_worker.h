/* SPDX-License-Identifier: Apache-2.0 */
/* A trainer of a simulated run: a thread that computes, layer by layer, and one
 * that exchanges, with the resend window of a real worker between it and the
 * ps. */
#ifndef CAPSTAN_MODELLED_WORKER_H
#define CAPSTAN_MODELLED_WORKER_H

#include "simulator/stage.h"

/* Borrows STAGE. NULL: no memory. */
struct modelled_worker *modelled_worker_open(struct stage *stage,
                                             uint32_t rank);

/* Frees *WORKER (may be NULL) and clears it. */
void modelled_worker_close(struct modelled_worker **worker);

/* Its first step begins. */
void modelled_worker_begin(struct modelled_worker *worker);

/* LETTER, taken, has come. */
void modelled_worker_take(struct modelled_worker *worker,
                          struct letter *letter);

/* Seconds that its computing thread has been at work. */
double modelled_worker_busy(const struct modelled_worker *worker);

#endif
