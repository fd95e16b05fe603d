/* SPDX-License-Identifier: Apache-2.0 */
/* Free TCP ports for the processes of a local cluster. */
#ifndef CAPSTAN_PORT_H
#define CAPSTAN_PORT_H

#include "proto/base/status.h"

#include <stdint.h>

/* Finds a port that is free on every interface and holds it until the caller
 * closes *HOLDER. A held port can be bound only by a socket that has asked
 * for SO_REUSEADDR, as libzmq's do, and is never given to one that asks for
 * any port, nor to an outgoing connection. So nothing else takes it while the
 * process it is for starts, or starts again. STATUS_RETRY: none to be had. */
enum status port_reserve(uint16_t *port, int *port_socket,
                         struct failure *why) MUST_CHECK;

#endif
