/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of a batch beside a sorted list of what was added to it. */
#include "worker/exchange/client/row_batch.h"

#include "core/tensor/row_keys.h"
#include "proto/messages/message.h"
#include "tests/lib/seed.h"
#include "tests/lib/test.h"

#include <math.h>

enum { STACKS = 3, TABLES = 5, MOST_ADDED = 6000, MAX_PARTITIONS = 64 };

/* Table t's rows have dims[t] floats. */
static const uint32_t dims[TABLES] = {3, 1, 3, 16, 1};

/* An added id, or a row of the batch and where its floats begin. */
struct place {
    uint64_t id;
    uint32_t table, at;
};

static struct layout *build_layout(uint32_t tables, uint32_t partitions) {
    struct parameter parameter = {.name = "p"};
    struct table list[TABLES] = {0};
    struct layout *layout;
    for (uint32_t t = 0; t < tables; t++) {
        snprintf(list[t].name, LAYOUT_MAX_NAME, "t%u", t);
        list[t].dim = dims[t];
    }
    assert_ok(layout_build(&layout, &parameter, 1, &failure));
    assert_ok(layout_add_tables(layout, list, tables, partitions, &failure));
    return layout;
}

static int compare_places(const void *a, const void *b) {
    const struct place *left = a, *right = b;
    if (left->table != right->table)
        return left->table < right->table ? -1 : 1;
    return left->id < right->id ? -1 : left->id > right->id;
}

static struct row_batch_index *open_index(const struct layout *layout) {
    struct row_batch_index *index;
    assert_ok(row_batch_index_open(&index, layout, &failure));
    return index;
}

static void open_batch(struct row_batch *batch, struct row_batch_index *index) {
    assert_ok(row_batch_open(batch, index, &failure));
}

static void finish(struct row_batch *batch) {
    assert_ok(row_batch_finish(batch, &failure));
}

static void add(struct row_batch *batch, uint32_t table, const uint64_t *ids,
                size_t count) {
    assert_ok(row_batch_add(batch, table, ids, count, &failure));
}

static uint64_t draw_id(struct philox_sequence *random) {
    uint64_t bits = (uint64_t)philox_next(random) << 32 | philox_next(random);
    switch (philox_below(random, 4)) {
    case 0:
        return philox_below(random, 30);
    case 1:
        return UINT64_MAX - philox_below(random, 30);
    case 2:
        return philox_below(random, 3000);
    default:
        return bits;
    }
}

/* Adds lists of ids, which ADDED gets too; returns how many ids. */
static size_t fill(struct row_batch *batch, struct philox_sequence *random,
                   uint32_t tables, struct place *added) {
    size_t count = 0;
    uint64_t ids[MOST_ADDED / 6];
    row_batch_begin(batch);
    for (uint32_t lists = philox_below(random, 7); lists; lists--) {
        uint32_t table = philox_below(random, tables);
        uint32_t length = philox_below(random, MOST_ADDED / 6);
        for (uint32_t i = 0; i < length; i++) {
            ids[i] = draw_id(random);
            added[count++] = (struct place){.id = ids[i], .table = table};
        }
        add(batch, table, ids, length);
    }
    return count;
}

/* Reads the lists of partition P behind the COUNT ROWS there are; returns how
 * many there are then. */
static size_t read_part(const struct row_batch *batch, uint32_t p,
                        struct place *rows, size_t count) {
    const struct layout *layout = batch->layout;
    const struct row_batch_part *part = &batch->parts[p];
    struct row_keys keys[STACKS] = {0};
    uint32_t at = part->first_float;
    size_t used;
    assert_ok(row_keys_read(layout, batch->bytes + part->first_byte,
                            part->bytes, keys, &used, &failure));
    assert_int_equal(used, part->bytes);
    assert_int_equal(row_keys_floats(layout, keys), part->floats);
    for (uint32_t s = 0; s < layout->num_stacks; s++) {
        for (uint32_t i = 0; i < keys[s].count; i++) {
            uint32_t table = keys[s].tables[i];
            uint64_t hash = layout_row_hash(table, keys[s].ids[i]);
            assert_int_equal(layout_partition(layout, hash), p);
            rows[count++] = (struct place){keys[s].ids[i], table, at};
            at += layout->tables[table].dim;
        }
        row_keys_free(&keys[s]);
    }
    return count;
}

/* All rows by table and id; each float is of one part. */
static size_t read_rows(const struct row_batch *batch, struct place *rows) {
    size_t count = 0, floats = 0;
    char *taken = calloc(batch->floats + 1, 1);
    for (uint32_t p = 0; p < batch->layout->num_partitions; p++) {
        const struct row_batch_part *part = &batch->parts[p];
        if (!part->bytes) {
            assert_int_equal(part->floats, 0);
            continue;
        }
        size_t before = count;
        count = read_part(batch, p, rows, count);
        assert_true(count > before);
        floats += part->floats;
        assert_true(part->first_float + part->floats <= batch->floats);
        for (uint32_t f = 0; f < part->floats; f++)
            assert_int_equal(taken[part->first_float + f]++, 0);
    }
    assert_int_equal(floats, batch->floats);
    assert_int_equal(count, batch->num_rows);
    free(taken);
    qsort(rows, count, sizeof *rows, compare_places);
    return count;
}

/* The rows are just those ADDED [COUNT], and each is where it was added. */
static void check_batch(const struct row_batch *batch, struct place *added,
                        size_t count) {
    static struct place rows[MOST_ADDED];
    size_t num_rows = read_rows(batch, rows), distinct = 0;
    assert_int_equal(batch->num_added, count);
    for (size_t i = 0; i < count; i++) {
        const struct place *row =
            bsearch(&added[i], rows, num_rows, sizeof *rows, compare_places);
        assert_non_null(row);
        assert_int_equal(batch->positions[i], row->at);
    }
    qsort(added, count, sizeof *added, compare_places);
    for (size_t i = 0; i < count; i++)
        distinct += !i || compare_places(&added[i - 1], &added[i]);
    assert_int_equal(num_rows, distinct);
}

TEST(each_row_of_many_batches_is_there_once) {
    static struct place added[MOST_ADDED];
    struct philox_sequence random;
    seed_open(&random);
    for (uint32_t trial = 0; trial < 10; trial++) {
        uint32_t tables = 1 + philox_below(&random, TABLES);
        struct layout *layout =
            build_layout(tables, 1 + philox_below(&random, MAX_PARTITIONS));
        struct row_batch_index *index = open_index(layout);
        struct row_batch batch;
        open_batch(&batch, index);
        for (int round = 0; round < 20; round++) {
            size_t count = fill(&batch, &random, tables, added);
            finish(&batch);
            check_batch(&batch, added, count);
        }
        row_batch_close(&batch);
        row_batch_index_close(&index);
        layout_free(&layout);
    }
}

/* One batch with the rows of IDS [COUNT]. */
static void check_ids(uint32_t partitions, const uint64_t *ids, size_t count) {
    static struct place added[MOST_ADDED];
    struct layout *layout = build_layout(1, partitions);
    struct row_batch_index *index = open_index(layout);
    struct row_batch batch;
    open_batch(&batch, index);
    row_batch_begin(&batch);
    add(&batch, 0, ids, count);
    finish(&batch);
    for (size_t i = 0; i < count; i++)
        added[i] = (struct place){.id = ids[i]};
    check_batch(&batch, added, count);
    row_batch_close(&batch);
    row_batch_index_close(&index);
    layout_free(&layout);
}

TEST(few_ids_may_differ_in_their_highest_bit) {
    enum { MOST = 80 };
    uint64_t ids[MOST];
    for (uint64_t i = 0; i < MOST; i++)
        ids[i] = i % 2 ? UINT64_MAX - i : i;
    for (size_t count = 1; count <= MOST; count++)
        check_ids(256, ids, count);
}

/* The id of table 0 with HASH. */
static uint64_t id_with_hash(uint64_t hash) {
    uint64_t x = (hash ^ hash >> 31 ^ hash >> 62) * 0x319642b2d24d8ec3;
    x = (x ^ x >> 27 ^ x >> 54) * 0x96de1b173f119089;
    x = (x ^ x >> 30 ^ x >> 60) - 0x9e3779b97f4a7c15;
    assert_true(layout_row_hash(0, x) == hash);
    return x;
}

/* So that any tag of some bits of the hash is the same for some of them. */
TEST(ids_whose_hashes_differ_in_few_bits_are_distinct) {
    enum { HASHES = 1 + 64 + 64 * 63 / 2 };
    static uint64_t ids[2 * HASHES];
    size_t count = 0;
    for (unsigned i = 0; i <= 64; i++)
        for (unsigned j = i; j <= 64; j++) {
            uint64_t first = i < 64 ? UINT64_C(1) << i : 0;
            uint64_t second = j < 64 ? UINT64_C(1) << j : 0;
            if (i < j || i == 64)
                ids[count++] = id_with_hash(first ^ second);
        }
    assert_int_equal(count, HASHES);
    memcpy(ids + HASHES, ids, HASHES * sizeof *ids);
    check_ids(MAX_PARTITIONS, ids, 2 * HASHES);
}

TEST(a_batch_without_ids_has_no_rows) {
    struct layout *layout = build_layout(2, 4);
    struct row_batch_index *index = open_index(layout);
    const uint64_t id = 5;
    struct place none;
    struct row_batch batch;
    open_batch(&batch, index);
    for (int round = 0; round < 2; round++) {
        row_batch_begin(&batch);
        add(&batch, 1, NULL, 0);
        finish(&batch);
        row_batch_clear_gradients(&batch);
        check_batch(&batch, &none, 0);
        row_batch_begin(&batch);
        add(&batch, 1, &id, 1);
        finish(&batch);
        assert_int_equal(batch.num_rows, 1);
    }
    row_batch_close(&batch);
    row_batch_close(&batch);
    row_batch_index_close(&index);
    layout_free(&layout);
}

/* Gradients of several batches in the one they are merged in. */
enum { FROM = 3 };

struct merge {
    struct row_batch from[FROM], to;
};

static void draw_gradients(struct row_batch *batch,
                           struct philox_sequence *random) {
    for (size_t f = 0; f < batch->floats; f++)
        batch->gradients[f] = (float)(int32_t)philox_next(random) * 0x1p-31f;
}

/* Merges the rows, then the gradients, of COUNT batches. */
static void merge_all(struct merge *merge, int count) {
    size_t first = 0;
    row_batch_begin(&merge->to);
    for (int i = 0; i < count; i++)
        assert_ok(row_batch_add_rows(&merge->to, &merge->from[i], &failure));
    finish(&merge->to);
    row_batch_clear_gradients(&merge->to);
    for (size_t f = 0; f < merge->to.floats; f++)
        assert_true(merge->to.gradients[f] == 0);
    for (int i = 0; i < count; i++) {
        first = row_batch_add_gradients(&merge->to, first, &merge->from[i]);
        assert_true(first <= merge->to.num_added);
    }
    assert_int_equal(first, merge->to.num_added);
}

/* Where ROW has its gradient in BATCH; NULL: it is not there. */
static const float *gradient_of(const struct row_batch *batch,
                                const struct place *rows, size_t count,
                                const struct place *row) {
    const struct place *found =
        bsearch(row, rows, count, sizeof *rows, compare_places);
    return found ? batch->gradients + found->at : NULL;
}

static void check_sums(const struct merge *merge, int count) {
    static struct place rows[FROM][MOST_ADDED], all[FROM * MOST_ADDED];
    size_t num_rows[FROM], num_all = read_rows(&merge->to, all), found = 0;
    for (int i = 0; i < count; i++)
        num_rows[i] = read_rows(&merge->from[i], rows[i]);
    for (size_t r = 0; r < num_all; r++) {
        const float *sum = merge->to.gradients + all[r].at;
        bool known = false;
        for (uint32_t d = 0; d < dims[all[r].table]; d++) {
            double expected = 0;
            for (int i = 0; i < count; i++) {
                const float *gradient =
                    gradient_of(&merge->from[i], rows[i], num_rows[i], &all[r]);
                expected += gradient ? (double)gradient[d] : 0;
                known |= gradient != NULL;
            }
            if (!(fabs((double)sum[d] - expected) <= 1e-6))
                fail_msg("sum is %g, not %g", (double)sum[d], expected);
        }
        found += known;
    }
    assert_int_equal(found, num_all);
}

TEST(merged_gradients_are_the_sums_of_their_rows) {
    static struct place added[MOST_ADDED];
    static struct merge merge;
    struct philox_sequence random;
    struct layout *layout = build_layout(TABLES, 7);
    struct row_batch_index *index = open_index(layout);
    seed_open(&random);
    open_batch(&merge.to, index);
    for (int i = 0; i < FROM; i++)
        open_batch(&merge.from[i], index);
    for (int round = 0; round < 20; round++) {
        int count = 1 + (int)philox_below(&random, FROM);
        for (int i = 0; i < count; i++) {
            (void)fill(&merge.from[i], &random, TABLES, added);
            finish(&merge.from[i]);
            draw_gradients(&merge.from[i], &random);
        }
        merge_all(&merge, count);
        check_sums(&merge, count);
    }
    row_batch_close(&merge.to);
    for (int i = 0; i < FROM; i++)
        row_batch_close(&merge.from[i]);
    row_batch_index_close(&index);
    layout_free(&layout);
}

/* The floats alone of MOST rows fill a message. */
TEST(a_partition_that_no_message_holds_is_an_error) {
    struct parameter parameter = {.name = "p"};
    struct table table = {.name = "wide", .dim = LAYOUT_MAX_DIM};
    enum { MOST = MESSAGE_MAX_PAYLOAD / (LAYOUT_MAX_DIM * 4) };
    static uint64_t ids[MOST];
    struct layout *layout;
    struct row_batch batch;
    const char *text = textf("%d rows of 4096 floats", MOST);
    for (uint64_t i = 0; i < MOST; i++)
        ids[i] = i;
    assert_ok(layout_build(&layout, &parameter, 1, &failure));
    assert_ok(layout_add_tables(layout, &table, 1, 1, &failure));
    struct row_batch_index *index = open_index(layout);
    open_batch(&batch, index);
    for (int round = 0; round < 2; round++) {
        row_batch_begin(&batch);
        add(&batch, 0, ids, MOST - 1);
        finish(&batch);
        assert_int_equal(batch.floats, (MOST - 1) * LAYOUT_MAX_DIM);
        row_batch_begin(&batch);
        add(&batch, 0, ids, MOST);
        assert_error(row_batch_finish(&batch, &failure), FAILURE_JOB_TOO_LARGE);
        assert_contains(failure.text, text);
        assert_contains(failure.text, "train_micro_batch_size_per_gpu");
    }
    row_batch_close(&batch);
    row_batch_index_close(&index);
    layout_free(&layout);
}
