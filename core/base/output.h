/* SPDX-License-Identifier: Apache-2.0 */
/* Has what a verb printed arrived? */
#ifndef CAPSTAN_OUTPUT_H
#define CAPSTAN_OUTPUT_H

#include "core/base/status.h"

#include <stdio.h>

/* Fails unless all that was printed to OUT, standard output, is written: a full
 * disk, or a pipe that nobody reads, shows at the latest here. */
enum status output_finish(FILE *out, struct failure *why) MUST_CHECK;

#endif
