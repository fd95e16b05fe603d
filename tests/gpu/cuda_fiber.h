/* SPDX-License-Identifier: Apache-2.0 */
/* Threads of a block as fibers of one thread: each runs until it waits, then
 * another is resumed. */
#ifndef CAPSTAN_CUDA_FIBER_H
#define CAPSTAN_CUDA_FIBER_H

struct cuda_fiber;

/* A fiber that calls RUN(CONTEXT) each time it is resumed after its last call
 * has returned. Ends the process when there is no memory. */
struct cuda_fiber *cuda_fiber_open(void (*run)(void *context), void *context);

/* Frees *FIBER (may be NULL), wherever it waits, and clears it. */
void cuda_fiber_close(struct cuda_fiber **fiber);

/* Runs FIBER until it pauses; true when its call has returned. */
bool cuda_fiber_resume(struct cuda_fiber *fiber);

/* Called within FIBER: back to who resumed it, until it is resumed again. */
void cuda_fiber_pause(struct cuda_fiber *fiber);

#endif
