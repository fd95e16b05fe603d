/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/masked_crc.h"

#include <isa-l/crc.h>

/* crc32_iscsi of ISA-L leaves both inversions to its caller, takes an int, and
 * does not change what it reads. */
uint32_t masked_crc(const void *bytes, size_t size) {
    const uint32_t chunk = 1 << 30;
    uint32_t crc = 0xffffffffu;
    unsigned char *at = (unsigned char *)bytes;
    for (; size > chunk; size -= chunk, at += chunk)
        crc = crc32_iscsi(at, (int)chunk, crc);
    crc = ~crc32_iscsi(at, (int)size, crc);
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}
