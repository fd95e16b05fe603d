/* SPDX-License-Identifier: Apache-2.0 */
#include "commands/choices.h"

#include "proto/net/messages/member_record.h"

#include <stdlib.h>
#include <string.h>

const char *choices_environment(void *context, const char *name) {
    (void)context;
    return getenv(name);
}

enum status choices_read(struct choices *choices, const struct options *options,
                         struct failure *why) {
    const char *lane = options->lane ? options->lane : getenv("CAPSTAN_LANE");
    choices->record = member_record_inherited();
    choices->lanes = !lane || strcmp(lane, "tcp");
    if (lane && strcmp(lane, "auto") && strcmp(lane, "tcp"))
        return status_fail(why, STATUS_CONFIG,
                           "CAPSTAN_LANE is '%.64s'; allowed are auto and tcp",
                           lane);
    return rule_choose(&choices->loops, getenv("CAPSTAN_CPU"), why);
}
