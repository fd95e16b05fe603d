/* SPDX-License-Identifier: Apache-2.0 */
/* Who has a port of this host, as /proc tells. */
#ifndef CAPSTAN_PORT_HOLDER_H
#define CAPSTAN_PORT_HOLDER_H

#include <stddef.h>
#include <stdint.h>

/* " (pid 123, python)" of a process that has TCP PORT here, or "" if it is
 * not known, such as another user's. */
void port_holder_text(uint16_t port, char *text, size_t size);

#endif
