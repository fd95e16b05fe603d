/* SPDX-License-Identifier: Apache-2.0 */
/* Host names to addresses without blocking, and not on ZeroMQ's threads. */
#ifndef CAPSTAN_RESOLVE_H
#define CAPSTAN_RESOLVE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct resolve;

enum resolve_state { RESOLVE_WAITING, RESOLVE_FOUND, RESOLVE_FAILED };

/* Starts a look-up of HOST. NULL: no memory or no thread. */
struct resolve *resolve_start(const char *host, uint16_t port);

/* Starts to look up which of COUNT HOSTS (copied) has the numeric address
 * NUMBER. NULL: no memory or no thread. */
struct resolve *resolve_match(const char *number, const char *const *hosts,
                              unsigned count);

/* The state of the look-up. Found: TEXT is "1.2.3.4:port" or "[::1]:port", or
 * the host that has the number. Failed: TEXT says why. */
enum resolve_state resolve_poll(struct resolve *resolve, char *text,
                                size_t size);

/* Splits ADDRESS ("host:port", "[v6]:port"): writes the host, without brackets,
 * into HOST of SIZE bytes, and PORT. False, with both unchanged: there is no
 * host or it is too long, or the port is not from 1 to 65535. */
bool resolve_split(const char *address, char *host, size_t size,
                   uint16_t *port);

/* Ends *RESOLVE (may be NULL), answered or not, and clears it. */
void resolve_end(struct resolve **resolve);

#endif
