/* SPDX-License-Identifier: Apache-2.0 */
/* `capstan bench`: how fast vectors move, measured here, played as a part of a
 * described cluster, or simulated. */
#ifndef CAPSTAN_VERB_BENCH_H
#define CAPSTAN_VERB_BENCH_H

#include "proto/base/status.h"
#include "proto/config/cli/options.h"

/* Returns what the process exits with. WHY is left empty when the log has said
 * it. */
enum status verb_bench(const struct options *options,
                       struct failure *why) MUST_CHECK;

#endif
