/* SPDX-License-Identifier: Apache-2.0 */
/* Machines of two clouds, as far as their network matters: for `capstan compare
 * --vm`. Figures are the vendors' (pages in vm_table.c and docs/compare.md),
 * not measured. */
#ifndef CAPSTAN_VM_TABLE_H
#define CAPSTAN_VM_TABLE_H

#include <stdint.h>
#include <stdio.h>

struct vm {
    const char *name, *device;
    uint32_t devices;
    double link_gbits; /* each way, between hosts; 0: the vendor does not say */
    double inner_gbits; /* each way a device, inside; 0: one device */
};

/* By its name in any case; NULL: not in the table. */
const struct vm *vm_table_find(const char *name);

/* A line a machine. */
void vm_table_print(FILE *out);

/* For a message: the nearest name to NAME, and all of them, with commas. */
const char *vm_table_nearest(const char *name);
const char *vm_table_names(void);

#endif
