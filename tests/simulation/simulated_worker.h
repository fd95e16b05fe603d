/* SPDX-License-Identifier: Apache-2.0 */
/* A simulated worker: the real window, symbols for weights and gradients, and
 * what worker/exchange/client/client.c and worker/train/trainer.c do around it.
 */
#ifndef CAPSTAN_SIMULATED_WORKER_H
#define CAPSTAN_SIMULATED_WORKER_H

#include "tests/simulation/simulated.h"

/* A new incarnation of the worker of RANK; and its end, whichever. */
void simulated_worker_open(struct simulated *s, uint32_t rank, bool keeps);
void simulated_worker_close(struct simulated *s, uint32_t rank);

/* MESSAGE of a ps or of the chief has come. */
void simulated_worker_receive(struct simulated *s, uint32_t rank,
                              const struct simulated_message *message);

/* What is due now: a step of training, requests, beats. */
void simulated_worker_step(struct simulated *s, uint32_t rank);

/* Its connection to PS is there anew. */
void simulated_worker_reconnected(struct simulated *s, uint32_t rank,
                                  uint32_t ps);

#endif
