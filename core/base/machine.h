/* SPDX-License-Identifier: Apache-2.0 */
/* What a measurement says of the machine it was made on. */
#ifndef CAPSTAN_MACHINE_H
#define CAPSTAN_MACHINE_H

#include <stdint.h>

struct machine {
    char processor[256]; /* of the first processor: "Intel(R) ..." */
    char kernel[256];    /* "Linux 6.1.0 x86_64" */
    uint64_t memory;     /* bytes of the machine; 0: unknown */
    uint32_t cores;      /* that this process may use */
};

void machine_describe(struct machine *machine);

#endif
