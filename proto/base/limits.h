/* SPDX-License-Identifier: Apache-2.0 */
/* What the system lets this process have, checked before it is needed: the
 * libraries beneath end a process that has no descriptor or address space left,
 * or stand still. */
#ifndef CAPSTAN_LIMITS_H
#define CAPSTAN_LIMITS_H

#include "proto/base/status.h"

#include <stdint.h>

/* Descriptors beside those of peers: files, threads' wake-ups, look-ups. */
enum { LIMITS_OWN_DESCRIPTORS = 64 };

/* MORE descriptors for WHAT ("4 ps", NULL: itself) beside those open now:
 * raises the soft limit, to 65536 where the hard one lets it. STATUS_CONFIG
 * when the hard limit is lower than what is needed, with the number. */
enum status limits_descriptors(uint64_t more, const char *consumer,
                               struct failure *why) MUST_CHECK;

/* STATUS_CONFIG when the address space left (ulimit -v) does not do for threads
 * and libraries; weights and data are counted with the plan. */
enum status limits_address_space(struct failure *why) MUST_CHECK;

#endif
