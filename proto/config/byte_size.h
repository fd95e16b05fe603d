/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers of bytes as people write them: "64", "4K", "16 MB". A thousand is
 * 1024 here. */
#ifndef CAPSTAN_BYTE_SIZE_H
#define CAPSTAN_BYTE_SIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Digits and perhaps B, K, M or G (KB and KiB likewise), in any case. False for
 * anything else, and for what 64 bits do not hold. */
bool byte_size_parse(const char *text, uint64_t *bytes);

/* "64 B", "4 KB", "1.5 MB" into TEXT (16 bytes hold any). */
void byte_size_text(uint64_t bytes, char *text, size_t size);

#endif
