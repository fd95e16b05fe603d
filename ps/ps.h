/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a ps process: join the chief, receive the plan, restore or initialise
 * the weights, serve, save, leave. */
#ifndef CAPSTAN_PS_H
#define CAPSTAN_PS_H

#include "core/base/status.h"
#include "proto/messages/member.h"

struct ps_settings {
    struct process process;
    struct member member;
    const char *inproc; /* name of the ps's link in this process, or NULL */
};

/* Blocks until the run ends. Returns its status, with WHY unless OK. */
enum status ps_run(const struct ps_settings *settings,
                   struct failure *why) MUST_CHECK;

#endif
