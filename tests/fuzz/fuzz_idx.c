/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/data/idx_dataset.h"

#include "tests/fuzz/fuzz.h"

#include <math.h>
#include <stdlib.h>

static float *make_values(uint32_t count) {
    float *values = malloc(count * sizeof *values);
    fuzz_require(values, "there is memory");
    return values;
}

/* A model can be trained with what is read. */
static void expect_finite(const float *values, uint32_t count) {
    for (uint32_t i = 0; i < count; i++)
        fuzz_require(isfinite(values[i]), "a value is finite");
}

static void read_labels(const char *path) {
    struct idx_file file;
    struct failure why;
    if (!fuzz_is_read(idx_file_read(&file, path, "labels", 1, 1, &why), &why))
        return;
    float *labels = make_values(file.dims[0]);
    idx_file_decode(file.type, file.data, file.dims[0], labels);
    expect_finite(labels, file.dims[0]);
    free(labels);
    free(file.data);
}

static void read_images(const char *path) {
    struct dataset *dataset;
    struct failure why;
    if (!fuzz_is_read(idx_dataset_load(&dataset, path, NULL, NULL, &why), &why))
        return;
    float *pixels = make_values(dataset->features);
    for (uint32_t i = 0; i < dataset->count; i++) {
        (void)idx_dataset_sample((const struct idx_dataset *)dataset, i,
                                 pixels);
        expect_finite(pixels, dataset->features);
    }
    free(pixels);
    dataset_free(&dataset);
}

/* Plain and compressed files: the content's first bytes tell. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    const char *path = fuzz_file(bytes, size);
    read_labels(path);
    read_images(path);
    return 0;
}
