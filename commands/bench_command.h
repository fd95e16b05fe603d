/* SPDX-License-Identifier: Apache-2.0 */
/* `capstan bench`: how fast vectors move, measured here, played as a part of a
 * described cluster, or simulated. */
#ifndef CAPSTAN_BENCH_COMMAND_H
#define CAPSTAN_BENCH_COMMAND_H

#include "proto/base/status.h"
#include "proto/config/cli/options.h"

/* Returns what the process exits with. WHY is left empty when the log has said
 * it. */
enum status bench_command(const struct options *options,
                          struct failure *why) MUST_CHECK;

#endif
