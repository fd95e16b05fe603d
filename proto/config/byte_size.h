/* SPDX-License-Identifier: Apache-2.0 */
/* Byte counts as people write them: "64", "4K", "16 MB". K is 1024. */
#ifndef CAPSTAN_BYTE_SIZE_H
#define CAPSTAN_BYTE_SIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Reads digits and an optional B, K, M or G (also KB, KiB, ...), in any case.
 * False for anything else and for a value above 64 bits. */
bool byte_size_parse(const char *text, uint64_t *bytes);

/* "64 B", "4 KB", "1.5 MB" into TEXT (16 bytes hold any). */
void byte_size_text(uint64_t bytes, char *text, size_t size);

#endif
