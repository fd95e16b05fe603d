/* SPDX-License-Identifier: Apache-2.0 */
/* Rows by id beside rows of a dense block with the same updates. */
#include "core/rows/row_table.h"

#include "core/tensor/philox.h"
#include "tests/lib/test.h"

#include <math.h>

enum { IDS = 20000, BATCH = 700, MAX_DIM = 33, STEPS = 60 };

static const struct optimizer rules[] = {
    {.type = OPTIMIZER_SGD},
    {.type = OPTIMIZER_ADAGRAD, .eps = 1e-10, .initial_accumulator_value = 0.1},
    {.type = OPTIMIZER_FTRL,
     .learning_rate_power = -0.5,
     .initial_accumulator_value = 0.1,
     .l1 = 0.01},
    {.type = OPTIMIZER_ADAM, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8},
};

/* Id I of the test: any bits. */
static uint64_t id_of(uint32_t i) {
    return i * UINT64_C(0x9e3779b97f4a7c15) + (i % 3 ? 0 : UINT64_C(1) << 63);
}

struct table_options {
    uint32_t dim;
    float init_bound;
    const struct optimizer *optimizer;
    uint32_t admit;
    uint64_t max_rows;
};

enum { TABLE = 1, TABLES = 2, OPEN = 64, PARTITIONS = 2 };

/* Layouts and counts outlive their tables: those of the present test. */
static struct layout *layouts[OPEN];
static struct row_table_count counts[OPEN][TABLES];
static int num_open;

static int forget_layouts(void **state) {
    (void)state;
    while (num_open)
        layout_free(&layouts[--num_open]);
    return 0;
}

FIXTURE(NULL, forget_layouts);

static struct row_table_options options_of(struct table_options given) {
    struct parameter parameter = {.name = "p", .num_dims = 1, .dims = {1}};
    struct table tables[TABLES] = {{.name = "t"}, {.name = "u"}};
    struct row_table_options options = {.seed = 7,
                                        .optimizer = given.optimizer};
    for (int t = 0; t < TABLES; t++) {
        tables[t].dim = given.dim;
        tables[t].init_bound = given.init_bound;
        tables[t].admit = given.admit;
        counts[num_open][t].rows = 0;
        counts[num_open][t].most = given.max_rows;
    }
    assert_true(num_open < OPEN);
    struct layout **layout = &layouts[num_open];
    assert_ok(layout_build(layout, &parameter, 1, &failure));
    assert_ok(layout_add_tables(*layout, tables, TABLES, PARTITIONS, &failure));
    assert_int_equal((*layout)->num_stacks, 1);
    options.layout = *layout;
    options.counts = counts[num_open++];
    assert_ok(rule_choose(&options.loops, NULL, &failure));
    return options;
}

static struct row_table *open_table(struct table_options given) {
    struct row_table_options options = options_of(given);
    struct row_table *table;
    assert_ok(row_table_open(&table, &options, &failure));
    return table;
}

/* Views of COUNT ids of table TABLE. */
static struct row_keys keys_of(const uint64_t *ids, size_t count) {
    static uint16_t tables[IDS];
    for (size_t i = 0; i < count; i++)
        tables[i] = TABLE;
    return (struct row_keys){
        .count = (uint32_t)count, .ids = (uint64_t *)ids, .tables = tables};
}

static void lookup(const struct row_table *table, const uint64_t *ids,
                   size_t count, float *weights) {
    struct row_keys keys = keys_of(ids, count);
    row_table_lookup(table, &keys, NULL, weights);
}

/* A batch of different ids, by their numbers, and their gradients. */
struct batch {
    size_t count;
    uint32_t numbers[BATCH];
    uint64_t ids[BATCH];
    float gradients[BATCH * MAX_DIM];
};

static void draw(struct batch *batch, struct philox_sequence *random,
                 uint32_t among, uint32_t dim) {
    static bool drawn[IDS];
    batch->count = 0;
    for (int i = 0; i < BATCH; i++) {
        uint32_t number = philox_below(random, among);
        if (drawn[number])
            continue;
        drawn[number] = true;
        batch->numbers[batch->count] = number;
        batch->ids[batch->count++] = id_of(number);
    }
    for (size_t i = 0; i < batch->count; i++)
        drawn[batch->numbers[i]] = false;
    for (size_t i = 0; i < batch->count * dim; i++)
        batch->gradients[i] = (float)(int32_t)philox_next(random) * 0x1p-31f;
}

/* With the rows' numbers, those of another batch or none: it is the same. */
static void apply(struct row_table *table, const struct batch *batch,
                  uint64_t step) {
    static uint32_t numbers[BATCH];
    static float weights[BATCH * MAX_DIM];
    struct row_keys keys = keys_of(batch->ids, batch->count);
    struct row_table_update update = {.step = step,
                                      .rule_step = step,
                                      .rate = 0.05,
                                      .scale = 0.5f,
                                      .keys = &keys,
                                      .numbers = step % 3 ? numbers : NULL,
                                      .gradients = batch->gradients};
    if (step % 3 == 1)
        row_table_lookup(table, &keys, numbers, weights);
    assert_ok(row_table_apply(table, &update, &failure));
}

/* A dense block of all ids. */
struct dense {
    float *weights, *state[RULE_MAX_SLOTS];
};

static void open_dense(struct dense *dense, const struct row_table *table,
                       const struct optimizer *rule, uint32_t dim) {
    uint64_t *ids = malloc(IDS * sizeof *ids);
    dense->weights = malloc((size_t)IDS * dim * sizeof(float));
    for (uint32_t i = 0; i < IDS; i++)
        ids[i] = id_of(i);
    lookup(table, ids, IDS, dense->weights);
    for (unsigned s = 0; s < rule_slots(rule); s++) {
        dense->state[s] = malloc((size_t)IDS * dim * sizeof(float));
        for (size_t i = 0; i < (size_t)IDS * dim; i++)
            dense->state[s][i] = rule_slot_start(rule, s);
    }
    free(ids);
}

static void close_dense(struct dense *dense, const struct optimizer *rule) {
    free(dense->weights);
    for (unsigned s = 0; s < rule_slots(rule); s++)
        free(dense->state[s]);
}

static void apply_dense(struct dense *dense, const struct optimizer *rule,
                        const struct batch *batch, uint32_t dim,
                        uint64_t step) {
    const struct rule_loops *loops;
    assert_int_equal(rule_choose(&loops, NULL, NULL), STATUS_OK);
    for (size_t i = 0; i < batch->count; i++) {
        size_t at = (size_t)batch->numbers[i] * dim;
        const void *const gradients[] = {batch->gradients + i * dim};
        struct rule_update update = {.step = step,
                                     .rate = 0.05,
                                     .scale = 0.5f,
                                     .elements = dim,
                                     .num_gradients = 1,
                                     .gradients = gradients,
                                     .weights = dense->weights + at,
                                     .weights_out = dense->weights + at};
        for (unsigned s = 0; s < rule_slots(rule); s++)
            update.state[s] = update.state_out[s] = dense->state[s] + at;
        rule_apply(loops, rule, &update);
    }
}

static void assert_rows(const struct row_table *table, const float *expected,
                        uint32_t dim) {
    uint64_t *ids = malloc(IDS * sizeof *ids);
    float *weights = malloc((size_t)IDS * dim * sizeof *weights);
    for (uint32_t i = 0; i < IDS; i++)
        ids[i] = id_of(i);
    lookup(table, ids, IDS, weights);
    assert_memory_equal(weights, expected, (size_t)IDS * dim * sizeof *weights);
    free(ids);
    free(weights);
}

TEST(rows_have_the_bits_of_a_dense_block) {
    static const uint32_t dims[] = {1, 3, 16, MAX_DIM};
    static struct batch batch;
    for (int r = 0; r < 4; r++)
        for (int d = 0; d < 4; d++) {
            struct philox_sequence random;
            struct dense dense;
            struct row_table *table = open_table(
                (struct table_options){.dim = dims[d],
                                       .init_bound = r == 2 ? 0 : 0.1f,
                                       .optimizer = &rules[r]});
            uint64_t admitted;
            philox_sequence_open(&random, 3, 0);
            open_dense(&dense, table, &rules[r], dims[d]);
            assert_int_equal(row_table_rows(table, &admitted), 0);
            for (uint64_t step = 1; step <= STEPS; step++) {
                draw(&batch, &random, IDS, dims[d]);
                apply(table, &batch, step);
                apply_dense(&dense, &rules[r], &batch, dims[d], step);
            }
            assert_rows(table, dense.weights, dims[d]);
            assert_true(row_table_rows(table, &admitted) > IDS / 2);
            close_dense(&dense, &rules[r]);
            row_table_close(&table);
            assert_null(table);
        }
}

/* Initial values follow from seed, table and id alone. */
TEST(lookups_create_nothing) {
    struct table_options options = {
        .dim = 4, .init_bound = 1, .optimizer = &rules[0]};
    const uint64_t ids[] = {0, 1, UINT64_MAX};
    float one[12], two[12];
    uint64_t admitted;
    struct row_table *table = open_table(options);
    lookup(table, ids, 3, one);
    lookup(table, ids, 3, two);
    assert_memory_equal(one, two, sizeof one);
    assert_int_equal(row_table_rows(table, &admitted), 0);
    assert_memory_not_equal(one, one + 4, 4 * sizeof *one);
    assert_memory_not_equal(one, one + 8, 4 * sizeof *one);
    row_table_close(&table);
}

TEST(a_row_is_admitted_by_its_pushes) {
    struct table_options options = {
        .dim = 2, .init_bound = 1, .optimizer = &rules[0], .admit = 3};
    const uint64_t ids[] = {11, 12};
    const uint16_t pushes[] = {1, 2};
    const float gradients[] = {1, 1, 1, 1}, zero[4] = {0};
    struct row_keys keys = keys_of(ids, 2);
    struct row_table_update update = {.rate = 1,
                                      .scale = 1,
                                      .keys = &keys,
                                      .gradients = gradients,
                                      .pushes = pushes};
    float rows[4], first[2];
    uint64_t admitted;
    struct row_table *always = open_table((struct table_options){
        .dim = 2, .init_bound = 1, .optimizer = &rules[0]});
    struct row_table *table = open_table(options);
    lookup(always, ids + 1, 1, first);
    lookup(table, ids, 2, rows);
    assert_memory_equal(rows, zero, sizeof rows);
    update.step = 1;
    assert_ok(row_table_apply(table, &update, NULL));
    lookup(table, ids, 2, rows);
    assert_memory_equal(rows, zero, sizeof rows);
    assert_int_equal(row_table_rows(table, &admitted), 2);
    assert_int_equal(admitted, 0);
    update.step = 2; /* the second has 4 pushes now, the first 2 */
    assert_ok(row_table_apply(table, &update, NULL));
    lookup(table, ids, 2, rows);
    assert_memory_equal(rows, zero, sizeof first);
    assert_memory_equal(rows + 2, first, sizeof first);
    (void)row_table_rows(table, &admitted);
    assert_int_equal(admitted, 1);
    update.step = 3;
    assert_ok(row_table_apply(table, &update, NULL));
    lookup(table, ids, 2, rows);
    assert_true(rows[2] == first[0] - 1 && rows[3] == first[1] - 1);
    assert_true(rows[0] != 0);
    row_table_close(&table);
    row_table_close(&always);
}

/* Rows that went away begin anew; the others keep their bits. */
TEST(rows_that_nobody_touches_expire) {
    static struct batch batch;
    struct philox_sequence random;
    struct dense dense;
    struct row_table *table = open_table((struct table_options){
        .dim = 3, .init_bound = 0.1f, .optimizer = &rules[1]});
    uint64_t admitted, last[IDS] = {0};
    philox_sequence_open(&random, 4, 0);
    open_dense(&dense, table, &rules[1], 3);
    for (uint64_t step = 1; step <= STEPS; step++) {
        uint64_t gone = 0, rows = row_table_rows(table, &admitted);
        draw(&batch, &random, IDS, 3);
        apply(table, &batch, step);
        apply_dense(&dense, &rules[1], &batch, 3, step);
        for (size_t i = 0; i < batch.count; i++)
            last[batch.numbers[i]] = step;
        if (step % 5)
            continue;
        rows = row_table_rows(table, &admitted);
        uint64_t expired = row_table_expire(table, step - 8, step);
        for (uint32_t i = 0; step > 8 && i < IDS; i++) {
            if (!last[i] || last[i] >= step - 8)
                continue;
            gone++;
            last[i] = 0;
            uint64_t id = id_of(i);
            lookup(table, &id, 1, dense.weights + i * 3);
            for (int d = 0; d < 3; d++)
                dense.state[0][i * 3 + d] = rule_slot_start(&rules[1], 0);
        }
        assert_int_equal(expired, gone);
        assert_int_equal(row_table_rows(table, &admitted), rows - gone);
        assert_int_equal(admitted, rows - gone);
        assert_rows(table, dense.weights, 3);
    }
    assert_true(row_table_rows(table, &admitted) > 0);
    close_dense(&dense, &rules[1]);
    row_table_close(&table);
}

/* What is held does not change while updates go on, and is enough to go on
 * from. */
TEST(held_pages_are_a_snapshot) {
    static struct batch batch;
    struct philox_sequence random;
    struct dense dense;
    struct table_options options = {
        .dim = 5, .init_bound = 0.1f, .optimizer = &rules[3]};
    struct row_table *table = open_table(options);
    struct row_table_options of_held = options_of(options);
    struct row_table *copy = open_table(options), *snapshot;
    struct row_table *halves[] = {open_table(options), open_table(options)};
    size_t pages;
    uint64_t admitted;
    philox_sequence_open(&random, 5, 0);
    open_dense(&dense, table, &rules[3], 5);
    for (uint64_t step = 1; step <= STEPS; step++) {
        draw(&batch, &random, IDS, 5);
        apply(table, &batch, step);
        apply_dense(&dense, &rules[3], &batch, 5, step);
    }
    uint64_t rows = row_table_rows(table, &admitted);
    struct buffer *const *views = row_table_pages(table, &pages);
    struct buffer *held[256];
    assert_true(pages > 1 && pages <= 256);
    for (size_t p = 0; p < pages; p++)
        held[p] = buffer_hold(views[p]);
    for (uint64_t step = STEPS + 1; step <= STEPS + 10; step++) {
        draw(&batch, &random, IDS, 5);
        apply(table, &batch, step);
    }
    assert_int_equal(row_table_open_held(&snapshot, &of_held, held, pages,
                                         (uint32_t)rows, NULL),
                     STATUS_OK);
    assert_rows(snapshot, dense.weights, 5);
    row_table_close(&snapshot);
    uint32_t each = row_table_page_rows(table);
    for (size_t p = 0; p < pages; p++) {
        uint64_t left = rows - p * each;
        uint32_t in_page = left < each ? (uint32_t)left : each;
        const void *bytes = buffer_data(held[p]);
        for (unsigned h = 0; h < PARTITIONS; h++) {
            assert_int_equal(row_table_restore(copy, bytes, in_page, h, NULL),
                             STATUS_OK);
            assert_int_equal(
                row_table_restore(halves[h], bytes, in_page, h, NULL),
                STATUS_OK);
        }
        buffer_release(&held[p]);
    }
    assert_rows(copy, dense.weights, 5);
    assert_int_equal(row_table_rows(halves[0], &admitted) +
                         row_table_rows(halves[1], &admitted),
                     rows);
    draw(&batch, &random, IDS, 5);
    apply(copy, &batch, STEPS + 1);
    apply_dense(&dense, &rules[3], &batch, 5, STEPS + 1);
    assert_rows(copy, dense.weights, 5);
    close_dense(&dense, &rules[3]);
    row_table_close(&table);
    row_table_close(&copy);
    row_table_close(&halves[0]);
    row_table_close(&halves[1]);
}

TEST(a_full_table_and_a_nan_are_named) {
    struct row_table *table = open_table((struct table_options){
        .dim = 1, .optimizer = &rules[2], .max_rows = 2});
    const uint64_t ids[] = {5, 6, 7};
    const float gradients[] = {1, 1, 1};
    float wrong[] = {1, NAN}, before[2], after[2];
    struct row_keys keys = keys_of(ids, 3);
    struct row_table_update update = {.step = 1,
                                      .rule_step = 1,
                                      .rate = 0.1,
                                      .scale = 1,
                                      .keys = &keys,
                                      .gradients = gradients};
    keys.count = 2;
    assert_ok(row_table_apply(table, &update, &failure));
    lookup(table, ids, 2, before);
    update.gradients = wrong;
    update.step = 2;
    assert_error(row_table_apply(table, &update, &failure),
                 FAILURE_LOSS_NOT_FINITE);
    lookup(table, ids, 2, after);
    assert_memory_equal(before, after, sizeof before);
    update.gradients = gradients;
    keys.count = 3;
    assert_error(row_table_apply(table, &update, &failure), FAILURE_TABLE_FULL);
    row_table_close(&table);
}

/* One id in two tables of one stack. */
TEST(tables_have_rows_of_their_own) {
    struct row_table *table = open_table((struct table_options){
        .dim = 2, .init_bound = 1, .optimizer = &rules[0]});
    uint64_t ids[] = {9, 9}, admitted;
    uint16_t tables[] = {0, 1};
    struct row_keys keys = {.count = 2, .ids = ids, .tables = tables};
    const float gradients[] = {0, 0, 1, 1};
    struct row_table_update update = {.step = 1,
                                      .rule_step = 1,
                                      .rate = 1,
                                      .scale = 1,
                                      .keys = &keys,
                                      .gradients = gradients};
    float before[4], after[4];
    row_table_lookup(table, &keys, NULL, before);
    assert_memory_not_equal(before, before + 2, 2 * sizeof *before);
    assert_ok(row_table_apply(table, &update, NULL));
    row_table_lookup(table, &keys, NULL, after);
    assert_memory_equal(before, after, 2 * sizeof *before);
    assert_true(after[2] == before[2] - 1 && after[3] == before[3] - 1);
    assert_int_equal(row_table_rows(table, &admitted), 2);
    row_table_close(&table);
}

/* The list then holds each row once, with its last removal. */
TEST(rows_removed_repeatedly_are_listed_once) {
    struct row_table_options options = options_of((struct table_options){
        .dim = 2, .init_bound = 1, .optimizer = &rules[0]});
    const struct row rows[TABLES] = {{.id = 9, .table = 0},
                                     {.id = 9, .table = 1}};
    struct row_table *table;
    uint32_t count = 0, most = 0, step = 0, seen[TABLES] = {0};
    options.lists_removed = true;
    assert_ok(row_table_open(&table, &options, &failure));
    do {
        most = count;
        step++;
        for (int t = 0; t < TABLES; t++)
            assert_ok(
                row_table_restore_removed(table, &rows[t], step, &failure));
        const struct row *list = buffer_data(row_table_removed(table, &count));
        memset(seen, 0, sizeof seen);
        for (uint32_t r = 0; r < count; r++)
            if (list[r].touched > seen[list[r].table])
                seen[list[r].table] = list[r].touched;
        assert_true(seen[0] == step && seen[1] == step);
        assert_true(step < 10000);
    } while (count > most);
    assert_true(count <= 2 * TABLES);
    row_table_forget_removed(table, step - 1);
    row_table_removed(table, &count);
    assert_int_equal(count, 2 * TABLES);
    row_table_close(&table);
}

/* So many that hashes of some are alike in all the bits that the index has. */
TEST(rows_with_like_hashes_are_apart) {
    enum { MANY = 200000, AT_ONCE = 1000 };
    struct row_table *table = open_table((struct table_options){
        .dim = 1, .init_bound = 1, .optimizer = &rules[0]});
    static const float gradients[AT_ONCE];
    static uint16_t tables[AT_ONCE];
    static uint64_t ids[AT_ONCE];
    struct row_keys keys = {.count = AT_ONCE, .ids = ids, .tables = tables};
    struct row_table_update update = {.step = 1,
                                      .rule_step = 1,
                                      .rate = 1,
                                      .scale = 1,
                                      .keys = &keys,
                                      .gradients = gradients};
    uint64_t admitted;
    for (uint32_t from = 0; from < MANY; from += AT_ONCE) {
        for (uint32_t i = 0; i < AT_ONCE; i++)
            ids[i] = id_of(from + i);
        assert_ok(row_table_apply(table, &update, NULL));
    }
    assert_int_equal(row_table_rows(table, &admitted), MANY);
    row_table_close(&table);
}
