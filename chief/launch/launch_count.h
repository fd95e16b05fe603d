/* SPDX-License-Identifier: Apache-2.0 */
/* How many processes `capstan launch` starts where it is told to start one for
 * each thing that this machine has. */
#ifndef CAPSTAN_LAUNCH_COUNT_H
#define CAPSTAN_LAUNCH_COUNT_H

#include "proto/base/log.h"
#include "proto/config/cli/launch_options.h"

/* Fills WORLD's number of processes where it has only what each is for, and
 * says which it is. STATUS_CONFIG: no GPU, where it is for those. */
enum status launch_count_fill(struct launch_world *world, const struct log *log,
                              struct failure *why) MUST_CHECK;

#endif
