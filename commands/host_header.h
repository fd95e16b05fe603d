/* SPDX-License-Identifier: Apache-2.0 */
/* Whom a browser asks. A page of another site can give its own name the address
 * of this machine (DNS rebinding); then the browser sends that name, and lets
 * the page read what is answered. So only an address, localhost or a name that
 * the user gave is answered with what a run tells. */
#ifndef CAPSTAN_HOST_HEADER_H
#define CAPSTAN_HOST_HEADER_H

#include <stdbool.h>

/* Is HOST, the value of the header Host ("name", "name:port", "[v6]:port"), an
 * IPv4 or IPv6 address, localhost, or OWN, the host of --metrics-port? Any port
 * will do, as a tunnel may have another one. Upper case and one dot at the end
 * make no other name. */
bool host_header_is_own(const char *host, const char *own);

#endif
