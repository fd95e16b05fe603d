/* SPDX-License-Identifier: Apache-2.0 */
/* What the roles of this process tell of themselves, in Prometheus's text
 * format (version 0.0.4). */
#ifndef CAPSTAN_METRICS_TEXT_H
#define CAPSTAN_METRICS_TEXT_H

#include "core/base/health.h"

/* Those of the process itself are told by its first role. */
struct metrics_process {
    double sent, received, memory; /* bytes */
};
struct metrics_process metrics_process_now(void);

/* The page of COUNT (at least 1) roles; the caller's. NULL: no memory. */
char *metrics_text(struct health *const *healths, unsigned count,
                   const struct metrics_process *process);

#endif
