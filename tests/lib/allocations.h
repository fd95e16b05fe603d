/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that our own code asks for, the tests' included; that of libraries is
 * not seen. The linker puts this before malloc and its kin (--wrap). */
#ifndef CAPSTAN_ALLOCATIONS_H
#define CAPSTAN_ALLOCATIONS_H

/* How often since the start, by all threads. */
unsigned long allocations_made(void);

#endif
