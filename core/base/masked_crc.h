/* SPDX-License-Identifier: Apache-2.0 */
/* The checksum of TFRecord files: CRC-32C, rotated by 15 bits and with an
 * offset, which makes a checksum of data that holds checksums robust
 * (tensorflow/core/lib/hash/crc32c.h). */
#ifndef CAPSTAN_MASKED_CRC_H
#define CAPSTAN_MASKED_CRC_H

#include <stddef.h>
#include <stdint.h>

uint32_t masked_crc(const void *bytes, size_t size);

#endif
