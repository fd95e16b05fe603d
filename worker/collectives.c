#include "worker/collectives.h"

#include "proto/base/plugin.h"

enum status collectives_find(const struct collective_ops **out,
                             const char *name, struct failure *why) {
    const void *table;
    enum status status =
        plugin_find(&table, name, COLLECTIVE_SYMBOL, COLLECTIVE_ABI, why);
    *out = table;
    return status ? status_context(why, "strategy.backend %s", name) : status;
}
