/* SPDX-License-Identifier: Apache-2.0 */
/* Tells a service manager how this process fares: the protocol of sd_notify(3),
 * a datagram to the socket of $NOTIFY_SOCKET. READY=1 once all roles have
 * joined, STATUS= the state of the first, WATCHDOG=1 while the roles' loops
 * run, STOPPING=1 at the end. */
#ifndef CAPSTAN_SERVICE_NOTIFY_H
#define CAPSTAN_SERVICE_NOTIFY_H

#include "core/base/health.h"
#include "core/base/status.h"

#include <stdbool.h>
#include <stdint.h>

struct service_notify;

/* *OUT is NULL without $NOTIFY_SOCKET. Takes that variable and those of the
 * watchdog out of the environment, as programs that this one starts are not the
 * service. STATUS_CONFIG names the variable that is wrong. */
enum status service_notify_open(struct service_notify **out,
                                struct failure *why) MUST_CHECK;

/* Sends what is due at NOW of HEALTHS[COUNT], the roles that have not ended;
 * the first has the status. STOPPING: a signal ends the process. NOTIFY may be
 * NULL. Returns the milliseconds until the next call; -1: none is needed. */
int service_notify_step(struct service_notify *notify,
                        struct health *const *healths, unsigned count,
                        bool stopping, int64_t now);

/* Tells of the end, and of a start before it if SUCCEEDED: a service that ends
 * before it was ready has failed. Clears *NOTIFY (may be NULL). */
void service_notify_close(struct service_notify **notify, bool succeeded);

#endif
