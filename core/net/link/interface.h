/* SPDX-License-Identifier: Apache-2.0 */
/* The network interface that a user chose for all traffic of a process. */
#ifndef CAPSTAN_INTERFACE_H
#define CAPSTAN_INTERFACE_H

#include "core/base/status.h"

#include <net/if.h>

#define INTERFACE_VARIABLE "CAPSTAN_INTERFACE"

struct interface {
    char name[IF_NAMESIZE];
    char address[64]; /* numeric; of IPv6 without brackets, with a zone if it is
                         link-local */
};

/* Finds the interface called TEXT and its first address, IPv4 before IPv6, or
 * the first local address in TEXT, a CIDR such as 10.1.0.0/16. An address alone
 * is a CIDR of itself. STATUS_CONFIG, naming what there is, if there is none;
 * SOURCE is the flag or variable that has TEXT. */
enum status interface_find(struct interface *found, const char *text,
                           const char *source, enum failure_code code,
                           struct failure *why) MUST_CHECK;

#endif
