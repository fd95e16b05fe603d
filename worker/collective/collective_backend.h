/* SPDX-License-Identifier: Apache-2.0 */
/* Finds the available collective backends. */
#ifndef CAPSTAN_COLLECTIVE_BACKEND_H
#define CAPSTAN_COLLECTIVE_BACKEND_H

#include "proto/base/status.h"
#include "worker/collective/collective.h"

/* Sets *OUT to the table of backend NAME ("gloo", "nccl"). STATUS_CONFIG: not
 * available; WHY has the reason. */
enum status collective_backend_find(const struct collective_ops **out,
                                    const char *name,
                                    struct failure *why) MUST_CHECK;

#endif
