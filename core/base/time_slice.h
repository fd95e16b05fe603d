/* SPDX-License-Identifier: Apache-2.0 */
/* How long a thread runs before another one that waits for its processor. A
 * thread that is woken to pass on a message, and asks for short slices, runs at
 * once in place of one that computes; else its message waits until that one's
 * slice is over. Linux 6.12 and later; others do not read it. */
#ifndef CAPSTAN_TIME_SLICE_H
#define CAPSTAN_TIME_SLICE_H

#include <stdint.h>

/* Sets slices of NS nanoseconds, 100,000 at least, for the calling thread and
 * those that it starts from now on; 0: the kernel's own. Needs no rights; does
 * nothing for a thread of another scheduling policy, or where it is not
 * allowed. */
void time_slice_set(int64_t ns);

#endif
