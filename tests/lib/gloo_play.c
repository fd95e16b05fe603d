/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/gloo_play.h"

#include "proto/base/time.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dlfcn.h>
#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const size_t sizes[] = {0, 1, 15, 16, 17, 255, 1025, 100003, 700001};
enum { NUM_SIZES = sizeof sizes / sizeof *sizes, LARGEST = 700001 };

/* It lies beside the program, not beside this test. */
const struct collective_ops *gloo_play_load(void) {
    char path[PATH_MAX];
    const char *program = getenv("CAPSTAN");
    snprintf(path, sizeof path, "%s-gloo.so",
             program ? program : "build/capstan");
    void *plugin = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const struct collective_ops *ops =
        plugin ? dlsym(plugin, COLLECTIVE_SYMBOL) : NULL;
    if (!ops)
        fail_msg("%s: %s", path, dlerror());
    assert_int_equal(ops->abi, COLLECTIVE_ABI);
    return ops;
}

void gloo_play_end(struct rank_board *board, uint32_t rank, enum status status,
                   const char *text) {
    board->ends[rank].status = status;
    snprintf(board->ends[rank].text, sizeof board->ends[rank].text, "%s", text);
    _exit(status == STATUS_OK ? 0 : 1);
}

static void expect_way(struct rank_board *board, uint32_t rank,
                       const struct gloo_play *play, struct collective *group) {
    char way[256];
    play->ops->way(group, way, sizeof way);
    const char *expected = play->size > 1 ? play->ways[rank] : "";
    if (expected && strcmp(expected, way))
        gloo_play_end(board, rank, STATUS_FAILED, way);
}

struct collective *gloo_play_meet_by(const struct collective_store *store,
                                     struct rank_board *board, uint32_t rank,
                                     const struct gloo_play *play) {
    struct failure why = {0};
    struct collective *group;
    struct collective_settings settings = {.rank = rank,
                                           .size = play->size,
                                           .host = play->host,
                                           .store = store,
                                           .algorithm = play->algorithm,
                                           .timeout = play->timeout,
                                           .lanes = play->lanes};
    if (play->prepare)
        play->prepare(rank, &settings);
    enum status status = play->ops->open(&group, &settings, &why);
    if (status)
        gloo_play_end(board, rank, status, why.text);
    expect_way(board, rank, play, group);
    return group;
}

struct collective *gloo_play_meet(struct rank_board *board, uint32_t rank,
                                  const struct gloo_play *play) {
    return gloo_play_meet_by(&board->store, board, rank, play);
}

float gloo_play_value(uint32_t rank, size_t i) {
    uint32_t x = (uint32_t)i * 2654435761u ^ (rank + 1) * 40503u;
    x ^= x >> 15, x *= 2246822519u, x ^= x >> 13;
    return (float)(int32_t)x * 0x1p-31f * (x & 64 ? 1.0f : 1000.0f);
}

void gloo_play_without_end(struct rank_board *board, uint32_t rank,
                           const void *context) {
    static float data[300000];
    const struct gloo_play *play = context;
    struct collective *group = gloo_play_meet(board, rank, play);
    struct failure why = {0};
    enum status status = STATUS_OK;
    for (int i = 0; !status; i++) {
        int64_t begun = time_now();
        status = play->ops->all_reduce(group, data, 300000, &why);
        board->ends[rank].waited = time_now() - begun;
        if (i == 3)
            rank_board_arrive(board);
    }
    play->ops->close(&group);
    gloo_play_end(board, rank, status, why.text);
}

static void expect_sums(struct rank_board *board, uint32_t rank, uint32_t size,
                        const float *data, size_t from, size_t count) {
    for (size_t i = from; i < from + count; i++) {
        double sum = 0, most = 0;
        for (uint32_t r = 0; r < size; r++) {
            sum += (double)gloo_play_value(r, i);
            most += fabs((double)gloo_play_value(r, i));
        }
        if (!(fabs((double)data[i] - sum) <= size * FLT_EPSILON * most)) {
            char text[256];
            snprintf(text, sizeof text,
                     "element %zu from %zu of %zu: %g not %g", i, from, count,
                     (double)data[i], sum);
            gloo_play_end(board, rank, STATUS_FAILED, text);
        }
    }
}

void gloo_play_note_bits(struct rank_end *end, const void *data, size_t bytes) {
    const unsigned char *byte = data;
    for (size_t i = 0; i < bytes; i++)
        end->bits = (end->bits ^ byte[i]) * 1099511628211u;
}

void gloo_play_expect_call(struct rank_board *board, uint32_t rank,
                           enum status status, const struct failure *why) {
    if (status)
        gloo_play_end(board, rank, status, why->text);
}

static void try_reductions(struct rank_board *board, uint32_t rank,
                           const struct gloo_play *play,
                           struct collective *group, float *data,
                           size_t count) {
    struct failure why = {0};
    size_t first, length = collective_piece(count, rank, play->size, &first);
    for (size_t i = 0; i < count; i++)
        data[i] = gloo_play_value(rank, i);
    gloo_play_expect_call(
        board, rank, play->ops->all_reduce(group, data, count, &why), &why);
    expect_sums(board, rank, play->size, data, 0, count);
    gloo_play_note_bits(&board->ends[rank], data, count * sizeof *data);
    for (size_t i = 0; i < count; i++)
        data[i] = gloo_play_value(rank, i);
    gloo_play_expect_call(
        board, rank, play->ops->reduce_scatter(group, data, count, &why), &why);
    expect_sums(board, rank, play->size, data, first, length);
    for (size_t i = 0; i < count; i++)
        data[i] = i - first < length ? data[i] : NAN;
    gloo_play_expect_call(
        board, rank, play->ops->all_gather(group, data, count, &why), &why);
    expect_sums(board, rank, play->size, data, 0, count);
    gloo_play_note_bits(&board->ends[rank], data, count * sizeof *data);
}

static void try_broadcast(struct rank_board *board, uint32_t rank,
                          const struct gloo_play *play,
                          struct collective *group, float *data, size_t count) {
    struct failure why = {0};
    size_t bytes = count * sizeof *data;
    bytes -= bytes > 0; /* not whole floats */
    for (uint32_t root = 0; root < play->size; root++) {
        for (size_t i = 0; i < count; i++)
            data[i] = rank == root ? gloo_play_value(root + 10, i) : NAN;
        gloo_play_expect_call(
            board, rank, play->ops->broadcast(group, data, bytes, root, &why),
            &why);
        for (size_t i = 0; i + 1 < count; i++)
            if (data[i] != gloo_play_value(root + 10, i))
                gloo_play_end(board, rank, STATUS_FAILED, "not what root has");
    }
}

static void play_all(struct rank_board *board, uint32_t rank,
                     const void *context) {
    const struct gloo_play *play = context;
    struct collective *group = gloo_play_meet(board, rank, play);
    float *data = malloc(LARGEST * sizeof *data);
    for (size_t i = 0; i < NUM_SIZES; i++) {
        try_reductions(board, rank, play, group, data, sizes[i]);
        try_broadcast(board, rank, play, group, data, sizes[i]);
    }
    free(data);
    play->ops->close(&group);
    gloo_play_end(board, rank, STATUS_OK, group ? "not cleared" : "");
}

void gloo_play_expect_well(struct rank_board *board, uint32_t size) {
    for (uint32_t i = 0; i < size; i++) {
        int code = rank_board_end(board, i);
        if (code || board->ends[i].text[0])
            fail_msg("%u ranks, rank %u ended with %d: %s", size, i, code,
                     board->ends[i].text);
    }
}

uint64_t gloo_play_run(const struct gloo_play *play, gloo_play_part *part) {
    struct rank_board *board = rank_board_open();
    for (uint32_t i = 0; i < play->size; i++)
        rank_board_start(board, i, part, play);
    gloo_play_expect_well(board, play->size);
    for (uint32_t i = 1; i < play->size; i++)
        if (board->ends[i].bits != board->ends[0].bits)
            fail_msg("%u ranks: rank %u has other bits than rank 0", play->size,
                     i);
    uint64_t bits = board->ends[0].bits;
    rank_board_close(&board);
    return bits;
}

uint64_t gloo_play_run_all(struct gloo_play play) {
    return gloo_play_run(&play, play_all);
}

void gloo_play_expect_named(struct rank_board *board, uint32_t size,
                            uint32_t rank, const char *how) {
    char name[64];
    snprintf(name, sizeof name, "rank %u %s", rank, how);
    for (uint32_t i = 0; i < size; i++) {
        if (i == rank)
            continue;
        rank_board_end(board, i);
        if (board->ends[i].status != STATUS_RETRY ||
            strncmp(board->ends[i].text, name, strlen(name)))
            fail_msg("%u ranks, rank %u: status %d, %s", size, i,
                     board->ends[i].status, board->ends[i].text);
    }
}
