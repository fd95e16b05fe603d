/* SPDX-License-Identifier: Apache-2.0 */
#include "commands/verbs.h"
#include "core/base/secret_file.h"

enum status keygen_command(const struct options *options, struct failure *why) {
    return secret_file_create(options->job, why);
}
