/* SPDX-License-Identifier: Apache-2.0 */
/* Names to numbers without waiting, and not on ZeroMQ's threads. */
#ifndef CAPSTAN_RESOLVE_H
#define CAPSTAN_RESOLVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct resolve;

enum resolve_state { RESOLVE_WAITING, RESOLVE_FOUND, RESOLVE_FAILED };

/* Starts looking HOST up. NULL: no memory. */
struct resolve *resolve_start(const char *host, uint16_t port);

/* Starts looking up which of COUNT HOSTS (copied) has the numeric address
 * NUMBER, if any. NULL: no memory. */
struct resolve *resolve_match(const char *number, const char *const *hosts,
                              unsigned count);

/* How it stands. Found: TEXT is "1.2.3.4:port" or "[::1]:port", of several
 * hosts the one that has the number; failed: why. */
enum resolve_state resolve_poll(struct resolve *resolve, char *text,
                                size_t size);

/* Takes ADDRESS ("host:port", "[v6]:port") apart: the host, without brackets,
 * into HOST of SIZE bytes. False, and both left alone: it has no host, or one
 * that is too long, or no port from 1 to 65535. */
bool resolve_split(const char *address, char *host, size_t size,
                   uint16_t *port);

/* Ends *RESOLVE (may be NULL), answered or not, and clears it. */
void resolve_end(struct resolve **resolve);

#endif
