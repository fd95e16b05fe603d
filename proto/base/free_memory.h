/* What a process may still take for copies. */
#ifndef CAPSTAN_FREE_MEMORY_H
#define CAPSTAN_FREE_MEMORY_H

#include <stdint.h>

/* Bytes: half of what the machine, or this process's control group, has free.
 */
uint64_t free_memory_half(void);

#endif
