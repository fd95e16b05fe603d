/* SPDX-License-Identifier: Apache-2.0 */
/* At which of this host's addresses the other ranks reach this one. */
#ifndef CAPSTAN_GLOO_ADDRESS_H
#define CAPSTAN_GLOO_ADDRESS_H

extern "C" {
#include "proto/base/status.h"
}
#include "worker/collective/collective.h"

#include <string>

/* What two processes share that reach each other by loopback, and only they:
 * one kernel, one network namespace. */
std::string gloo_address_host_key();

/* All ranks together: the loopback address when they share one host (and its
 * network namespace), else that of settings->host, never one that only this
 * host reaches. UNTIL is on time_now's clock. */
enum status gloo_address_choose(const struct collective_settings *settings,
                                int64_t until, std::string *address,
                                struct failure *why);

#endif
