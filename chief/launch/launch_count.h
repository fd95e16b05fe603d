/* SPDX-License-Identifier: Apache-2.0 */
/* How many processes `capstan launch` starts if it is to start one for each GPU
 * or core of this machine. */
#ifndef CAPSTAN_LAUNCH_COUNT_H
#define CAPSTAN_LAUNCH_COUNT_H

#include "proto/base/log.h"
#include "proto/config/cli/launch_options.h"

/* Fills in and logs WORLD's number of processes if it says only what each
 * process is for. STATUS_CONFIG: one for each GPU is requested, and there is
 * none. */
enum status launch_count_fill(struct launch_world *world, const struct log *log,
                              struct failure *why) MUST_CHECK;

#endif
