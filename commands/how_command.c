/* SPDX-License-Identifier: Apache-2.0 */
/* `capstan how`: how a script of a framework becomes one of Capstan, as
 * `diff -u` of two examples of the Python package (how.sh). */
#include "commands/how_text.h"
#include "commands/verbs.h"

#include <stdio.h>
#include <string.h>

enum { NUM_HOWS = sizeof hows / sizeof *hows };

enum status how_command(const struct options *options, struct failure *why) {
    for (size_t i = 0; i < NUM_HOWS; i++) {
        if (!options->job)
            puts(hows[i].name);
        else if (!strcmp(hows[i].name, options->job)) {
            fputs(hows[i].diff, stdout);
            return STATUS_OK;
        }
    }
    if (options->job)
        return status_fail(why, FAILURE_USAGE,
                           "no framework '%s'; `capstan how` lists them",
                           options->job);
    return STATUS_OK;
}
