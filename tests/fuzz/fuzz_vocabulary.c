/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/data/vocabulary.h"

#include "tests/fuzz/fuzz.h"

/* A file of words: one that is there twice is named, each other has a place. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    struct vocabulary *vocabulary;
    struct record_text word = {(const char *)bytes, size};
    struct failure why;
    uint64_t lines[2];
    uint32_t place;
    if (!fuzz_is_read(
            vocabulary_open(&vocabulary, fuzz_file(bytes, size), NULL, &why),
            &why))
        return 0;
    uint32_t count = vocabulary_count(vocabulary);
    if (vocabulary_find(vocabulary, &word, &place))
        fuzz_require(place < count, "a word has a place");
    if (vocabulary_twin(vocabulary, &word, lines)) {
        fuzz_touch(word.bytes, word.size);
        fuzz_require(lines[0] < lines[1], "two lines");
    }
    vocabulary_close(&vocabulary);
    return 0;
}
