/* SPDX-License-Identifier: Apache-2.0 */
/* A process beside this one, on this machine, that answers the plain socket
 * and the bare libzmq which a lane is compared with. It ends with this one. */
#ifndef CAPSTAN_REFERENCE_H
#define CAPSTAN_REFERENCE_H

#include "proto/base/status.h"

#include <stdint.h>
#include <sys/types.h>

struct reference {
    pid_t pid;
    uint16_t plain_port, zmq_port;
};

/* Starts it. Call it from a process of one thread: it forks. */
enum status reference_start(struct reference *reference,
                            struct failure *why) MUST_CHECK;

/* Ends it; may be called twice. */
void reference_stop(struct reference *reference);

#endif
