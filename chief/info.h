/* `capstan info`: version, devices, collectives, libraries. */
#ifndef CAPSTAN_INFO_H
#define CAPSTAN_INFO_H

#include "proto/math/rule.h"

#include <stdbool.h>
#include <stdio.h>

/* A plugin that was looked for. */
struct info_plugin {
    const char *name, *path;
    const char *version; /* of the library behind it; NULL: it does not load */
    const char *reason;  /* why it does not work here; NULL: it does */
};

/* Prints lines for people, or one JSON object:
 * {"version", "devices": [{"name", "available", ...}], "collectives": [...],
 * "libraries": {name: version}}. Devices and collectives are plugins but for
 * the processor; one that does not work has "available": false and a "reason".
 * COLLECTIVES has COUNT. Update rules are told to go by LOOPS. */
void info_print(FILE *to, bool json, const struct rule_loops *loops,
                const struct info_plugin *collectives, size_t count);

#endif
