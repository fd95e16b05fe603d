/* SPDX-License-Identifier: Apache-2.0 */
/* Somebody between two processes of this machine, who passes the bytes of each
 * connection on and keeps what both sides have sent. */
#ifndef CAPSTAN_RECORDING_PROXY_H
#define CAPSTAN_RECORDING_PROXY_H

#include <stddef.h>
#include <stdint.h>

enum {
    RECORDING_PROXY_CONNECTIONS = 32,
    RECORDING_PROXY_BYTES = 1 << 14 /* that are kept of each */
};

enum recording_side { RECORDING_CLIENT, RECORDING_SERVER, RECORDING_SIDES };

struct recording {
    unsigned char bytes[RECORDING_PROXY_BYTES];
    size_t size;
};

struct recording_proxy;

/* Starts it on a free port of this machine, *PORT; it connects to the port TO.
 * Failures fail the test. */
struct recording_proxy *recording_proxy_open(uint16_t to, uint16_t *port);

/* Copies what SIDE of its first connections has sent so far: how many there
 * are, at most RECORDING_PROXY_CONNECTIONS. */
unsigned recording_proxy_copy(struct recording_proxy *proxy,
                              enum recording_side side,
                              struct recording *recordings);

/* Ends it and its connections. */
void recording_proxy_close(struct recording_proxy **proxy);

#endif
