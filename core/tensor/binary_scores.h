/* SPDX-License-Identifier: Apache-2.0 */
/* The scores that a model with one logit gives to samples of two classes, for
 * the area under its ROC curve (AUC) and its calibration. Trainers add their
 * samples; the chief adds up what they send. */
#ifndef CAPSTAN_BINARY_SCORES_H
#define CAPSTAN_BINARY_SCORES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Scores of more samples are put into bins of 2^12 neighbouring floats. */
#define BINARY_SCORES_MAX_EXACT UINT64_C(10000000)

/* The samples of one score. */
struct binary_score {
    uint32_t key; /* ascends with the score */
    uint32_t positives, negatives;
};

/* All zero: none. */
struct binary_scores {
    struct binary_score *items; /* [count] of [room] */
    size_t count, room;
    size_t sorted;                    /* of them: by key, each once */
    double predicted_sum, target_sum; /* of probabilities and of targets */
};

/* Frees what SCORES owns and clears it. */
void binary_scores_clear(struct binary_scores *scores);

/* Adds COUNT samples with their LOGITS and TARGETS, positive over 0.5; SAMPLES
 * is how many there will be in all parts together. False: no memory. */
bool binary_scores_add(struct binary_scores *scores, const float *logits,
                       const float *targets, size_t count, uint64_t samples);

/* SCORES without its sums, in *SIZE bytes, which the caller frees; NULL: no
 * memory. Sorts SCORES. */
unsigned char *binary_scores_pack(struct binary_scores *scores, size_t *size);

/* Adds what binary_scores_pack gave. False: no memory, or the bytes are of
 * nothing that it gives; then SCORES may have a part of them. */
bool binary_scores_unpack(struct binary_scores *scores,
                          const unsigned char *bytes, size_t size);

/* The share of pairs of a positive and a negative sample in which the positive
 * has the higher score, equal ones counting half (Mann and Whitney 1947); NAN
 * without such a pair. *ERROR: how far it can be off because of bins, half the
 * share of equal pairs; 0 if SAMPLES, as above, are exact. Sorts SCORES. */
double binary_scores_auc(struct binary_scores *scores, uint64_t samples,
                         double *error);

#endif
