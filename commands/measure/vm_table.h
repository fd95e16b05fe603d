/* SPDX-License-Identifier: Apache-2.0 */
/* Machine types of two clouds and their network, for `capstan compare --vm`.
 * Figures are the vendors' (pages in vm_table.c and docs/compare.md), not
 * measured. */
#ifndef CAPSTAN_VM_TABLE_H
#define CAPSTAN_VM_TABLE_H

#include <stdint.h>
#include <stdio.h>

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

/* Prints one line per machine. */
void vm_table_print(FILE *out);

/* For an error text: the name nearest to NAME; and all names, separated by
 * commas, with their series in parentheses. */
const char *vm_table_nearest(const char *name);
const char *vm_table_names(void);

#endif
