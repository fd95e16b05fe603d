/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/collective/collective_backend.h"

#include "proto/base/plugin.h"

enum status collective_backend_find(const struct collective_ops **out,
                                    const char *name, struct failure *why) {
    const void *table;
    enum status status =
        plugin_find(&table, name, COLLECTIVE_SYMBOL, COLLECTIVE_ABI, why);
    *out = table;
    if (!status)
        return STATUS_OK;
    struct failure reason = *why;
    return status_fail(
        why, status,
        "strategy.backend %s: %s; docs/collectives.md lists what "
        "it needs; a job with ps needs no backend",
        name, reason.text);
}
