/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/data/features.h"

#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

/* Features that fit the columns read a record of texts and numbers. */
static void read_record(const struct features *features) {
    static const struct record_text text = {"1.5", 3};
    static const float number = 2;
    const struct record_cell cells[2] = {
        {.type = RECORD_TEXTS, .count = 1, .texts = &text},
        {.type = RECORD_FLOATS, .count = 1, .floats = &number}};
    struct failure why;
    uint32_t count, width = features_width(features);
    (void)features_columns(features, &count);
    if (width > 1 << 20)
        return;
    const struct record_cell **chosen = calloc(count + 1, sizeof *chosen);
    float *values = calloc(width + 1, sizeof *values);
    fuzz_require(chosen && values, "there is memory");
    for (uint32_t c = 0; c < count; c++)
        chosen[c] = &cells[c % 2];
    json_t *object = json_object();
    (void)fuzz_is_read(features_read(features, chosen, values, &why), &why);
    (void)fuzz_is_read(features_describe(features, chosen, object, &why), &why);
    json_decref(object);
    free(chosen);
    free(values);
}

/* No vocabulary is opened, as its file could be any. */
static void read_features(const char *text) {
    static const char *const columns[] = {"a", "b", "label"};
    struct diagnostics problems = {.where = "job"};
    struct features *features;
    struct failure why;
    features_check(&features, text, NULL, 0, false, &problems);
    features_close(&features);
    (void)fuzz_is_read(diagnostics_status(&problems, &why), &why);
    for (int turn = 0; turn < 2 && !strstr(text, "\"file\""); turn++) {
        enum status status = features_open(
            &features, text, turn ? columns : NULL, turn ? 3 : 0, NULL, &why);
        if (fuzz_is_read(status, &why))
            read_record(features);
        features_close(&features);
    }
}

/* The job's object `features`, with columns and without. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    char *text = fuzz_text(bytes, size);
    json_t *root = json_loads(text, 0, NULL);
    if (json_is_object(root))
        read_features(text);
    json_decref(root);
    free(text);
    return 0;
}
