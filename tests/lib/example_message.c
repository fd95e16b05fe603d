/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/example_message.h"

#include "core/base/masked_crc.h"
#include "tests/lib/test.h"

void example_message_put(struct example_message *to, const void *bytes,
                         size_t size) {
    assert_true(to->size + size <= sizeof to->bytes);
    memcpy(to->bytes + to->size, bytes, size);
    to->size += size;
}

void example_message_put_varint(struct example_message *to, uint64_t value) {
    for (; value > 127; value >>= 7)
        example_message_put(to, &(char){(char)(value | 128)}, 1);
    example_message_put(to, &(char){(char)value}, 1);
}

void example_message_put_part(struct example_message *to, unsigned field,
                              const void *bytes, size_t size) {
    example_message_put_varint(to, field << 3 | 2);
    example_message_put_varint(to, size);
    example_message_put(to, bytes, size);
}

void example_message_put_entry(struct example_message *features,
                               const char *name, unsigned kind,
                               const struct example_message *list) {
    struct example_message feature = {.size = 0}, entry = {.size = 0};
    example_message_put_part(&feature, kind, list->bytes, list->size);
    example_message_put_part(&entry, 1, name, strlen(name));
    example_message_put_part(&entry, 2, feature.bytes, feature.size);
    example_message_put_part(features, 1, entry.bytes, entry.size);
}

void example_message_put_floats(struct example_message *features,
                                const char *name, const float *floats,
                                size_t count) {
    struct example_message list = {.size = 0};
    example_message_put_part(&list, 1, floats, count * sizeof *floats);
    example_message_put_entry(features, name, EXAMPLE_FLOATS, &list);
}

void example_message_write(FILE *file, const struct example_message *example) {
    uint64_t length = example->size;
    uint32_t crc = masked_crc(&length, sizeof length);
    fwrite(&length, sizeof length, 1, file);
    fwrite(&crc, sizeof crc, 1, file);
    crc = masked_crc(example->bytes, example->size);
    fwrite(example->bytes, 1, example->size, file);
    fwrite(&crc, sizeof crc, 1, file);
}
