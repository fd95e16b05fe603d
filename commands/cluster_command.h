/* SPDX-License-Identifier: Apache-2.0 */
/* `capstan cluster`: what this process reads of the cluster description, where
 * it comes from, and whether the others can be reached. */
#ifndef CAPSTAN_CLUSTER_COMMAND_H
#define CAPSTAN_CLUSTER_COMMAND_H

#include "commands/cli/options.h"
#include "core/base/status.h"

/* Prints the cluster as one JSON object; with --explain or --check as a text,
 * or with --json as more keys of the object. FAILURE_LINK_UNUSABLE: --check
 * found an address that does not answer. */
enum status cluster_command(const struct options *options,
                            struct failure *why) MUST_CHECK;

#endif
