/* SPDX-License-Identifier: Apache-2.0 */
/* Byte counts for messages. KB is 1024 bytes. amount.h reads them. */
#ifndef CAPSTAN_BYTE_SIZE_H
#define CAPSTAN_BYTE_SIZE_H

#include <stddef.h>
#include <stdint.h>

/* "64 B", "4 KB", "1.5 MB" into TEXT (16 bytes hold any). */
void byte_size_text(uint64_t bytes, char *text, size_t size);

#endif
