/* SPDX-License-Identifier: Apache-2.0 */
/* The collective backends that are here. */
#ifndef CAPSTAN_COLLECTIVE_BACKEND_H
#define CAPSTAN_COLLECTIVE_BACKEND_H

#include "proto/base/status.h"
#include "worker/collective/collective.h"

/* *OUT is the table of backend NAME ("gloo", "nccl"). STATUS_CONFIG says why
 * there is none. */
enum status collective_backend_find(const struct collective_ops **out,
                                    const char *name,
                                    struct failure *why) MUST_CHECK;

#endif
