/* SPDX-License-Identifier: Apache-2.0 */
#include "core/store/manifest.h"

#include "tests/fuzz/fuzz.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* The same text with the checksum that it should have; NULL: no object. */
static char *with_digest(const char *text) {
    json_t *root = json_loads(text, 0, NULL);
    char digits[17], *right = NULL;
    if (json_is_object(root)) {
        json_object_del(root, "xxh3");
        fuzz_require(manifest_text_digest(root, digits), "there is memory");
        json_object_set_new(root, "xxh3", json_string(digits));
        right = json_dumps(root, JSON_COMPACT);
    }
    json_decref(root);
    return right;
}

static void check(const char *text) {
    struct manifest manifest, again;
    struct failure why;
    if (!fuzz_is_read(manifest_parse(&manifest, text, &why), &why))
        return;
    for (uint32_t b = 0; b < manifest.layout->num_blocks; b++)
        fuzz_require(manifest.block_file[b] < manifest.num_files,
                     "a block is in one of the files");
    char *written = manifest_text(&manifest);
    fuzz_require(written, "a manifest has a text");
    fuzz_require(fuzz_is_read(manifest_parse(&again, written, &why), &why),
                 "a manifest's text is a manifest");
    char *rewritten = manifest_text(&again);
    fuzz_require(rewritten && !strcmp(rewritten, written),
                 "the text is the same");
    free(written);
    free(rewritten);
    manifest_clear(&manifest);
    manifest_clear(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    char *text = fuzz_text(bytes, size), *right = with_digest(text);
    check(text);
    if (right)
        check(right);
    free(text);
    free(right);
    return 0;
}
