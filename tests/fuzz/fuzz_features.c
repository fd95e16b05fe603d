/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/data/features.h"

#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

static const struct record_text texts[] = {{"1.5", 3}, {"x", 1}, {"", 0}};
static const float floats[] = {2, -1e30f};
static const int64_t integers[] = {0, INT64_MIN};
/* What columns may have, and what the first of LIBSVM has. */
static const struct record_cell lists[] =
    {{.type = RECORD_TEXTS, .count = 1, .texts = texts},
     {.type = RECORD_FLOATS, .count = 1, .floats = floats},
     {.type = RECORD_TEXTS, .count = 3, .texts = texts},
     {.type = RECORD_FLOATS, .count = 2, .floats = floats},
     {.type = RECORD_INTEGERS, .count = 2, .integers = integers},
     {.type = RECORD_TEXTS}},
                                pairs = {.type = RECORD_PAIRS,
                                         .count = 2,
                                         .integers = integers,
                                         .floats = floats};
enum { LISTS = sizeof lists / sizeof *lists };

/* Features that fit the columns read a record of CELLS [NUM_CELLS], in turns
 * from number FIRST on. */
static void read_record(const struct features *features,
                        const struct record_cell *cells, uint32_t num_cells,
                        uint32_t first) {
    struct failure why;
    uint32_t count, width = features_width(features);
    (void)features_columns(features, &count);
    if (width > 1 << 20)
        return;
    const struct record_cell **chosen = calloc(count + 1, sizeof *chosen);
    float *values = calloc(width + 1, sizeof *values);
    fuzz_require(chosen && values, "there is memory");
    for (uint32_t c = 0; c < count; c++)
        chosen[c] = &cells[(c + first) % num_cells];
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
        for (uint32_t c = 0; fuzz_is_read(status, &why) && c < LISTS; c++)
            read_record(features, lists, LISTS, c);
        features_close(&features);
    }
    if (strstr(text, "\"file\""))
        return;
    if (fuzz_is_read(features_open_pairs(&features, text, "a", &why), &why))
        read_record(features, &pairs, 1, 0);
    features_close(&features);
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
