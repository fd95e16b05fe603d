/* SPDX-License-Identifier: Apache-2.0 */
/* Plugins: code that needs a special library or device, in a shared object
 * capstan-NAME.so beside the program, opened on demand. It exports a table that
 * begins with a head. */
#ifndef CAPSTAN_PLUGIN_H
#define CAPSTAN_PLUGIN_H

#include "core/base/status.h"

#include <stddef.h>
#include <stdint.h>

struct plugin_head {
    uint32_t abi; /* version of the table; read before anything else in it */
    const char *name;
    const char *version; /* of the library that it uses */
    /* Can it work here? If not, STATUS_FAILED says what is missing. */
    enum status (*check)(struct failure *why);
};

/* Writes the path at which plugin NAME is expected. */
void plugin_path(const char *name, char *path, size_t size);

/* Opens the plugin at PATH for the rest of the process's life. Sets *TABLE to
 * what it exports as SYMBOL, of version ABI. STATUS_CONFIG says what is
 * missing. */
enum status plugin_load(const void **table, const char *path,
                        const char *symbol, uint32_t abi,
                        struct failure *why) MUST_CHECK;

/* Like plugin_load, for plugin NAME at its plugin_path, and runs its check. */
enum status plugin_find(const void **table, const char *name,
                        const char *symbol, uint32_t abi,
                        struct failure *why) MUST_CHECK;

/* A library behind plugin NAME (not copied) does not return to one of this
 * process's threads, which stays as long as the process. Such a process ends by
 * _exit: what exit(3) calls in the library may wait for that thread.
 * Thread-safe. */
void plugin_leave_thread(const char *name);

/* How many threads were left so far; sets *NAME (may be NULL) to the last
 * one's. */
unsigned plugin_threads_left(const char **name);

#endif
