/* SPDX-License-Identifier: Apache-2.0 */
/* Checks resource limits before they are reached: the libraries below abort or
 * hang in a process without descriptors or address space. */
#ifndef CAPSTAN_LIMITS_H
#define CAPSTAN_LIMITS_H

#include "core/base/status.h"

#include <stdint.h>

/* Cores that this process may run on, at least 1, and no more than its control
 * groups give it time of, rounded up. If the system does not say, the cores
 * online. */
uint32_t cores_count(void);

/* The smaller of CORES and those that the control groups of this process, read
 * below ROOT, give it time of, rounded up. */
uint32_t cores_limited(const char *root, uint32_t cores);

/* Descriptors of the process itself, without peers: files, threads' eventfds,
 * look-ups, ports. */
enum { LIMITS_OWN_DESCRIPTORS = 64 };

/* Makes room for MORE descriptors for CONSUMER ("4 ps"; NULL: none) besides the
 * process's own and the files open now; connections that are open, of members
 * or of unknown peers, are not counted. Raises the soft limit, to 65536 where
 * the hard limit allows. STATUS_CONFIG with the number needed if the hard limit
 * is lower. */
enum status limits_descriptors(uint64_t more, const char *consumer,
                               struct failure *why) MUST_CHECK;

/* Before files or threads are opened: while peers that are not admitted hold
 * all descriptors, waits until some have been taken back, at most 2 s. */
void limits_await_descriptors(void);

#endif
