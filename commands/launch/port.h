/* SPDX-License-Identifier: Apache-2.0 */
/* Reserves free TCP ports for the processes of a local cluster. */
#ifndef CAPSTAN_PORT_H
#define CAPSTAN_PORT_H

#include "core/base/status.h"

#include <stdint.h>

/* Finds a port that is free on every interface and reserves it until the caller
 * closes *PORT_SOCKET. Only a socket with SO_REUSEADDR, which libzmq sets, can
 * bind a reserved port; the system gives it neither to a socket that asks for
 * any port nor to an outgoing connection. So no other program takes it while
 * its process starts or restarts. STATUS_RETRY: no port is available. */
enum status port_reserve(uint16_t *port, int *port_socket,
                         struct failure *why) MUST_CHECK;

#endif
