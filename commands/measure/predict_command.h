/* SPDX-License-Identifier: Apache-2.0 */
/* `capstan compare --predict`: applies the cost model to the flags and prints
 * the result. */
#ifndef CAPSTAN_PREDICT_COMMAND_H
#define CAPSTAN_PREDICT_COMMAND_H

#include "commands/cli/options.h"
#include "commands/measure/cost_model.h"
#include "core/base/status.h"

#include <stdint.h>
#include <stdio.h>

/* Fills GIVEN from FLAGS. Flags have precedence over the figures of --vm.
 * STATUS_CONFIG: --vm names no known machine, or the bandwidth is unknown. */
enum status predict_command_case(struct cost_model_case *given,
                                 const struct options *flags,
                                 struct failure *why) MUST_CHECK;

/* Writes the prediction for FLAGS to OUT: a table, or one JSON object
 * (docs/compare.md). */
enum status predict_command_print(FILE *out, const struct options *flags,
                                  bool json, struct failure *why) MUST_CHECK;

/* Machine types of two clouds and their network, for `capstan compare --vm`.
 * Figures are the vendors' (pages in the table and docs/compare.md), not
 * measured. */
struct vm {
    const char *name;
    const char *series; /* Azure's, of which this is the whole machine; NULL:
                           its sizes differ */
    const char *device;
    uint32_t devices;   /* 1 of a machine without any: a worker */
    double link_gbits;  /* in each direction, between hosts; 0: not published */
    double inner_gbits; /* per device inside the host; 0: one device */
};

/* Finds a machine by its name, with or without "Standard_", or by its series,
 * ignoring case; NULL: not in the table. */
const struct vm *vm_table_find(const char *name);

/* For an error text: the name nearest to NAME; and all names, separated by
 * commas, with their series in parentheses. */
const char *vm_table_nearest(const char *name);
const char *vm_table_names(void);

#endif
