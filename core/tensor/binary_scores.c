/* SPDX-License-Identifier: Apache-2.0 */
/* Packed, a score is the distance of its key to the last one, and a number: 0
 * is one negative sample, 1 a positive one, 2 any others, whose counts follow.
 * All are in groups of 7 bits, the lowest first. Of samples with different
 * scores that are some 3 bytes each. */
#include "core/tensor/binary_scores.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BIN_BITS = 12, MAX_PACKED = 5 + 1 + 5 + 5, FIRST_ROOM = 1024 };

void binary_scores_clear(struct binary_scores *scores) {
    free(scores->items);
    *scores = (struct binary_scores){0};
}

/* As large as floats are in order: of negative ones all bits are inverted, of
 * others the sign alone. Both zeros are one. */
static uint32_t key_of(float logit, uint64_t samples) {
    uint32_t bits;
    logit = logit == 0 ? 0 : logit;
    memcpy(&bits, &logit, sizeof bits);
    bits = bits >> 31 ? ~bits : bits | UINT32_C(1) << 31;
    return samples > BINARY_SCORES_MAX_EXACT ? bits >> BIN_BITS << BIN_BITS
                                             : bits;
}

static int compare_score_keys(const void *left, const void *right) {
    const struct binary_score *a = left, *b = right;
    return (a->key > b->key) - (a->key < b->key);
}

static void binary_scores_sort(struct binary_scores *scores) {
    if (scores->sorted == scores->count)
        return;
    qsort(scores->items, scores->count, sizeof *scores->items,
          compare_score_keys);
    size_t last = 0;
    for (size_t i = 1; i < scores->count; i++) {
        struct binary_score *kept = &scores->items[last];
        const struct binary_score *item = &scores->items[i];
        if (item->key == kept->key) {
            kept->positives += item->positives;
            kept->negatives += item->negatives;
        } else {
            scores->items[++last] = *item;
        }
    }
    scores->count = scores->sorted = last + 1;
}

/* Room for MORE: equal scores are added up first, which is all that bins
 * need. */
static bool make_room(struct binary_scores *scores, size_t more) {
    if (scores->count + more <= scores->room)
        return true;
    binary_scores_sort(scores);
    if (scores->count + more <= scores->room / 2)
        return true;
    size_t room = (scores->count + more) * 2;
    room = room > FIRST_ROOM ? room : FIRST_ROOM;
    struct binary_score *items =
        realloc(scores->items, room * sizeof *scores->items);
    if (!items)
        return false;
    scores->items = items;
    scores->room = room;
    return true;
}

bool binary_scores_add(struct binary_scores *scores, const float *logits,
                       const float *targets, size_t count, uint64_t samples) {
    if (!make_room(scores, count))
        return false;
    for (size_t i = 0; i < count; i++) {
        bool positive = targets[i] > 0.5f;
        scores->items[scores->count++] = (struct binary_score){
            key_of(logits[i], samples), positive, !positive};
        scores->predicted_sum += 1 / (1 + exp(-(double)logits[i]));
        scores->target_sum += targets[i];
    }
    return true;
}

static unsigned char *put_number(unsigned char *to, uint32_t number) {
    for (; number >= 0x80; number >>= 7)
        *to++ = (unsigned char)(number | 0x80);
    *to++ = (unsigned char)number;
    return to;
}

static bool take_number(const unsigned char **from, const unsigned char *end,
                        uint32_t *number) {
    *number = 0;
    for (unsigned shift = 0; *from < end && shift < 35; shift += 7) {
        unsigned char byte = *(*from)++;
        if (shift == 28 && byte > 0x0f)
            return false;
        *number |= (uint32_t)(byte & 0x7f) << shift;
        if (byte < 0x80)
            return true;
    }
    return false;
}

unsigned char *binary_scores_pack(struct binary_scores *scores, size_t *size) {
    binary_scores_sort(scores);
    unsigned char *bytes = malloc(scores->count * MAX_PACKED + 1), *to = bytes;
    uint32_t last = 0;
    for (size_t i = 0; bytes && i < scores->count; i++) {
        const struct binary_score *item = &scores->items[i];
        bool one = item->positives + (uint64_t)item->negatives == 1;
        to = put_number(to, item->key - last);
        to = put_number(to, one ? item->positives : 2);
        if (!one) {
            to = put_number(to, item->positives);
            to = put_number(to, item->negatives);
        }
        last = item->key;
    }
    *size = (size_t)(to - bytes);
    return bytes;
}

bool binary_scores_unpack(struct binary_scores *scores,
                          const unsigned char *bytes, size_t size) {
    const unsigned char *end = bytes + size;
    uint32_t key = 0;
    while (bytes < end) {
        struct binary_score item;
        uint32_t apart, kind;
        if (!take_number(&bytes, end, &apart) || apart > UINT32_MAX - key ||
            !take_number(&bytes, end, &kind) || kind > 2)
            return false;
        item = (struct binary_score){key += apart, kind == 1, kind == 0};
        if (kind == 2 && (!take_number(&bytes, end, &item.positives) ||
                          !take_number(&bytes, end, &item.negatives)))
            return false;
        if (!make_room(scores, 1))
            return false;
        scores->items[scores->count++] = item;
    }
    return true;
}

double binary_scores_auc(struct binary_scores *scores, uint64_t samples,
                         double *error) {
    double below = 0, positives = 0, above = 0, equal = 0;
    binary_scores_sort(scores);
    for (size_t i = 0; i < scores->count; i++) {
        double up = scores->items[i].positives;
        double down = scores->items[i].negatives;
        above += up * below;
        equal += up * down;
        positives += up;
        below += down;
    }
    double pairs = positives * below;
    *error = samples > BINARY_SCORES_MAX_EXACT ? equal / 2 / pairs : 0;
    return pairs > 0 ? (above + equal / 2) / pairs : NAN;
}
