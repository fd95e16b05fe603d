/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/messages/message.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

/* Fields of other versions, of which protobuf-c writes some as none reads
 * them. */
static void drop_unknown(Capstan__DataHeader *header) {
    header->base.n_unknown_fields = 0;
    for (size_t g = 0; g < header->n_groups; g++)
        header->groups[g]->base.n_unknown_fields = 0;
}

/* A header that is read can be written, and is read again. */
static void read_header(const uint8_t *bytes, size_t size) {
    static struct message_arena arena, other;
    static unsigned char space[MESSAGE_MAX_HEADER];
    Capstan__DataHeader *header, *again;
    struct failure why;
    if (!fuzz_is_read(message_read_data(&header, &arena, bytes, size, &why),
                      &why))
        return;
    fuzz_touch(header->blocks, header->n_blocks * sizeof *header->blocks);
    fuzz_touch(header->sizes, header->n_sizes * sizeof *header->sizes);
    fuzz_touch(header->assigned, header->n_assigned * sizeof *header->assigned);
    fuzz_touch(header->text, strlen(header->text));
    drop_unknown(header);
    if (capstan__data_header__get_packed_size(header) > sizeof space)
        return;
    size_t written = message_write_data(header, space);
    fuzz_require(
        fuzz_is_read(message_read_data(&again, &other, space, written, &why),
                     &why),
        "a header that was read and written is one");
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    read_header(bytes, size);
    uint8_t *message = fuzz_message(bytes, &size);
    read_header(message, size);
    free(message);
    return 0;
}
