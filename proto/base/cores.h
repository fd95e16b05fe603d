/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CAPSTAN_CORES_H
#define CAPSTAN_CORES_H

#include <stdint.h>

/* Cores that this process may run on, at least 1. If the system does not say,
 * the cores online. */
uint32_t cores_count(void);

#endif
