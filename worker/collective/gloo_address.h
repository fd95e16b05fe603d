/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses the address at which other ranks reach this one. */
#ifndef CAPSTAN_GLOO_ADDRESS_H
#define CAPSTAN_GLOO_ADDRESS_H

extern "C" {
#include "core/base/status.h"
}
#include "worker/collective/collective.h"

#include <string>

/* A key that two processes share if and only if they reach each other by
 * loopback: same kernel, same network namespace. */
std::string gloo_address_host_key();

/* Collective over all ranks: settings->address if there is one. Else the
 * loopback address if all share one host (and
 * its network namespace), else an address of settings->host that other hosts
 * reach. UNTIL is on time_now's clock. */
enum status gloo_address_choose(const struct collective_settings *settings,
                                int64_t until, std::string *address,
                                struct failure *why);

#endif
