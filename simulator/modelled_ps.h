/* SPDX-License-Identifier: Apache-2.0 */
/* A ps of a simulated run: the exchange of a real one decides what is updated
 * and who is answered, and one thread takes the time for it. */
#ifndef CAPSTAN_MODELLED_PS_H
#define CAPSTAN_MODELLED_PS_H

#include "simulator/stage.h"

/* Borrows STAGE. NULL: no memory. */
struct modelled_ps *modelled_ps_open(struct stage *stage, uint32_t index);

/* Frees *PS (may be NULL) and clears it. */
void modelled_ps_close(struct modelled_ps **ps);

/* LETTER, taken, has come. */
void modelled_ps_take(struct modelled_ps *ps, struct letter *letter);

/* Seconds that its thread has been at work. */
double modelled_ps_busy(const struct modelled_ps *ps);

#endif
