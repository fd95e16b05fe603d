/* SPDX-License-Identifier: Apache-2.0 */
/* Plugins: what needs a special library or machine, as a shared object beside
 * the program, capstan-NAME.so, opened when it is wanted. It exports a table
 * that begins with a head. */
#ifndef CAPSTAN_PLUGIN_H
#define CAPSTAN_PLUGIN_H

#include "proto/base/status.h"

#include <stddef.h>
#include <stdint.h>

struct plugin_head {
    uint32_t abi; /* of the table; read before anything else in it */
    const char *name;
    const char *version; /* of the library behind it */
    /* Can it work here? Else STATUS_FAILED says what is missing. */
    enum status (*check)(struct failure *why);
};

/* Writes where plugin NAME is looked for. */
void plugin_path(const char *name, char *path, size_t size);

/* Opens the plugin at PATH for the rest of the process's life: *TABLE is what
 * it exports as SYMBOL, of version ABI. STATUS_CONFIG says what is missing. */
enum status plugin_load(const void **table, const char *path,
                        const char *symbol, uint32_t abi,
                        struct failure *why) MUST_CHECK;

/* Opens plugin NAME for the rest of the process's life: *TABLE is what it
 * exports as SYMBOL, of version ABI, and its check has passed. STATUS_CONFIG
 * says what is missing. */
enum status plugin_find(const void **table, const char *name,
                        const char *symbol, uint32_t abi,
                        struct failure *why) MUST_CHECK;

#endif
