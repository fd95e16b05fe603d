/* SPDX-License-Identifier: Apache-2.0 */
#include "core/tensor/binary_scores.h"

#include "tests/fuzz/fuzz.h"

#include <math.h>
#include <stdlib.h>

/* What a trainer sends: scores that are added have an area from 0 to 1, the
 * same after they were packed. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    struct binary_scores scores = {0}, again = {0};
    double error;
    if (binary_scores_unpack(&scores, bytes, size)) {
        double auc = binary_scores_auc(&scores, 1, &error);
        fuzz_require(isnan(auc) || (auc >= 0 && auc <= 1), "an area");
        size_t packed;
        unsigned char *copy = binary_scores_pack(&scores, &packed);
        fuzz_require(copy && binary_scores_unpack(&again, copy, packed),
                     "scores that were packed are read");
        double other = binary_scores_auc(&again, 1, &error);
        fuzz_require(auc == other || isnan(auc), "the same area");
        free(copy);
    }
    binary_scores_clear(&scores);
    binary_scores_clear(&again);
    return 0;
}
