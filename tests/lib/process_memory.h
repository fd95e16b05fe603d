/* SPDX-License-Identifier: Apache-2.0 */
/* What a process holds of its own, for tests that bound what it grows by. */
#ifndef CAPSTAN_PROCESS_MEMORY_H
#define CAPSTAN_PROCESS_MEMORY_H

#include <sys/types.h>

/* KB of anonymous memory that process PID has in use; one that has ended fails
 * the test. */
long process_memory_kb(pid_t pid);

#endif
