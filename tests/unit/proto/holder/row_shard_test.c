/* SPDX-License-Identifier: Apache-2.0 */
/* Rounds of several trainers on the partitions of one or more ps, beside dense
 * blocks that get the same gradients. */
#include "proto/holder/row_shard.h"

#include "core/tensor/row_keys.h"
#include "tests/lib/seed.h"
#include "tests/lib/test.h"

#include <math.h>

enum {
    TABLES = 3,
    STACKS = 2,
    IDS = 120, /* of a table */
    PARTITIONS = 6,
    RANKS = 4,
    STEPS = 12,
    MAX_DIM = 5,
    ROWS = TABLES * IDS,
    MAX_BYTES = ROWS * (MAX_DIM * 4 + 10) + 16,
};

static const uint32_t dims[TABLES] = {2, MAX_DIM, 2};

static const struct optimizer rules[] = {
    {.type = OPTIMIZER_SGD},
    {.type = OPTIMIZER_ADAGRAD, .eps = 1e-10, .initial_accumulator_value = 0.1},
    {.type = OPTIMIZER_FTRL,
     .learning_rate_power = -0.5,
     .initial_accumulator_value = 0.1,
     .l1 = 0.01},
    {.type = OPTIMIZER_ADAM, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8},
};

/* Row R is of table r / IDS; ids ascend. */
static uint32_t table_of(uint32_t row) {
    return row / IDS;
}

static uint64_t id_of(uint32_t row) {
    uint64_t i = row % IDS;
    return i == IDS - 1 ? UINT64_MAX : 3 * i;
}

struct fixture {
    struct layout *layout;
    struct row_shard *shards[3];
    uint32_t units[3][PARTITIONS], counts[3];
    unsigned num_shards;
};

static void open_shards(struct fixture *fixture, unsigned num_shards,
                        const struct optimizer *rule, struct table like) {
    static const char *const names[TABLES] = {"a", "b", "c"};
    struct parameter parameter = {.name = "p"};
    struct table tables[TABLES];
    const struct rule_loops *loops;
    *fixture = (struct fixture){.num_shards = num_shards};
    for (uint32_t t = 0; t < TABLES; t++) {
        tables[t] = like;
        tables[t].dim = dims[t];
        tables[t].name[0] = *names[t];
    }
    assert_ok(rule_choose(&loops, NULL, &failure));
    assert_ok(layout_build(&fixture->layout, &parameter, 1, &failure));
    assert_ok(layout_add_tables(fixture->layout, tables, TABLES, PARTITIONS,
                                &failure));
    assert_int_equal(fixture->layout->num_stacks, STACKS);
    for (uint32_t p = 0; p < PARTITIONS; p++) {
        unsigned s = p % num_shards;
        fixture->units[s][fixture->counts[s]++] =
            fixture->layout->num_blocks + p;
    }
    for (unsigned s = 0; s < num_shards; s++) {
        struct row_shard_settings settings = {.layout = fixture->layout,
                                              .ids = fixture->units[s],
                                              .count = fixture->counts[s],
                                              .num_parts = RANKS,
                                              .seed = 7,
                                              .optimizer = rule,
                                              .loops = loops};
        assert_ok(row_shard_open(&fixture->shards[s], &settings, &failure));
    }
}

static void close_shards(struct fixture *fixture) {
    for (unsigned s = 0; s < fixture->num_shards; s++)
        row_shard_close(&fixture->shards[s]);
    layout_free(&fixture->layout);
}

/* Partition P's shard; its number there is p / num_shards. */
static struct row_shard *shard_of(const struct fixture *fixture, uint32_t p) {
    return fixture->shards[p % fixture->num_shards];
}

static uint32_t partition_of(const struct fixture *fixture, uint32_t row) {
    return layout_partition(fixture->layout,
                            layout_row_hash(table_of(row), id_of(row)));
}

/* What a trainer pushes, by row. */
struct push {
    bool has[ROWS];
    float gradients[ROWS][MAX_DIM];
};

static void draw_push(struct push *push, struct philox_sequence *random,
                      uint32_t one_in) {
    for (uint32_t r = 0; r < ROWS; r++) {
        push->has[r] = !philox_below(random, one_in);
        for (int d = 0; d < MAX_DIM; d++)
            push->gradients[r][d] =
                (float)(int32_t)philox_next(random) * 0x1p-31f;
    }
}

/* Lists of PUSH's rows of partition P, with FLOATS; returns their bytes. */
static size_t write_part(const struct fixture *fixture, const struct push *push,
                         uint32_t p, bool floats, unsigned char *to) {
    struct row_keys keys[STACKS] = {0};
    for (uint32_t r = 0; r < ROWS; r++) {
        uint32_t s = fixture->layout->tables[table_of(r)].stack;
        if (!push->has[r] || partition_of(fixture, r) != p)
            continue;
        assert_true(row_keys_reserve(&keys[s], keys[s].count + 1));
        keys[s].ids[keys[s].count] = id_of(r);
        keys[s].tables[keys[s].count++] = (uint16_t)table_of(r);
    }
    unsigned char *end = to + row_keys_write(fixture->layout, keys, to);
    for (uint32_t s = 0; s < STACKS; s++) {
        row_keys_free(&keys[s]);
        for (uint32_t r = 0; floats && r < ROWS; r++) {
            if (fixture->layout->tables[table_of(r)].stack != s ||
                !push->has[r] || partition_of(fixture, r) != p)
                continue;
            size_t bytes = dims[table_of(r)] * sizeof(float);
            memcpy(end, push->gradients[r], bytes);
            end += bytes;
        }
    }
    return (size_t)(end - to);
}

/* Reads the list of PART, and the numbers of its rows if LOOKS_UP. */
static void read_list(struct row_shard *shard, uint32_t local,
                      struct row_part *part, struct row_list *list,
                      bool looks_up) {
    static float weights[ROWS * MAX_DIM];
    assert_ok(row_shard_read(shard, local, part->bytes, part->size, true, list,
                             &failure));
    if (looks_up)
        row_shard_lookup(shard, local, NULL, list, weights);
    part->list = list;
}

/* One round of PUSHES [num_parts], some with lists that have been read, some of
 * these looked up; *SQUARES, unless NULL: of partition P. */
static enum status update(struct fixture *fixture, uint32_t p,
                          const struct push *pushes, struct unit_round round,
                          double *squares, struct failure *why) {
    static unsigned char bytes[RANKS][MAX_BYTES];
    struct row_shard *shard = shard_of(fixture, p);
    struct row_part parts[RANKS];
    struct row_list lists[RANKS] = {0};
    uint32_t local = p / fixture->num_shards;
    for (unsigned i = 0; i < round.num_parts; i++) {
        parts[i].bytes = bytes[i];
        parts[i].size = write_part(fixture, &pushes[i], p, true, bytes[i]);
        parts[i].list = NULL;
        if (row_shard_check(shard, local, bytes[i], parts[i].size, why))
            fail_msg("%s", why->text);
        if ((round.step + i) % 3)
            read_list(shard, local, &parts[i], &lists[i],
                      (round.step + i) % 3 == 1);
    }
    round.parts = parts;
    if (squares)
        *squares = row_shard_units.square_sum(shard, local, &round);
    enum status status = row_shard_units.update(shard, local, &round, why);
    for (unsigned i = 0; i < RANKS; i++)
        row_list_free(&lists[i]);
    return status;
}

static void update_all(struct fixture *fixture, const struct push *pushes,
                       struct unit_round round) {
    for (uint32_t p = 0; p < PARTITIONS; p++)
        assert_ok(update(fixture, p, pushes, round, NULL, &failure));
}

/* The rows that WANTED has, of partition P from HELD or the present ones. */
static void look_up_partition(struct fixture *fixture, uint32_t p,
                              struct row_table *const *held,
                              const struct push *wanted,
                              float weights[ROWS][MAX_DIM]) {
    static unsigned char bytes[MAX_BYTES];
    static float floats[ROWS * MAX_DIM];
    struct row_shard *shard = shard_of(fixture, p);
    uint32_t local = p / fixture->num_shards;
    size_t size = write_part(fixture, wanted, p, false, bytes), at = 0;
    struct row_list list = {0};
    assert_ok(
        row_shard_read(shard, local, bytes, size, false, &list, &failure));
    row_shard_lookup(shard, local, held, &list, floats);
    size_t list_floats = list.floats;
    row_list_free(&list);
    for (uint32_t s = 0; s < STACKS; s++)
        for (uint32_t r = 0; r < ROWS; r++) {
            uint32_t t = table_of(r);
            if (fixture->layout->tables[t].stack != s || !wanted->has[r] ||
                partition_of(fixture, r) != p)
                continue;
            memcpy(weights[r], floats + at, dims[t] * sizeof(float));
            at += dims[t];
        }
    assert_int_equal(at, list_floats);
}

static void look_up_all(struct fixture *fixture, float weights[ROWS][MAX_DIM]) {
    static struct push all;
    memset(all.has, true, sizeof all.has);
    memset(weights, 0, sizeof(float[ROWS][MAX_DIM]));
    for (uint32_t p = 0; p < PARTITIONS; p++)
        look_up_partition(fixture, p, NULL, &all, weights);
}

/* The same rows as dense blocks, each of a row. */
struct dense {
    float weights[ROWS][MAX_DIM], state[RULE_MAX_SLOTS][ROWS][MAX_DIM];
};

static void start_dense(struct dense *dense, struct fixture *fixture,
                        const struct optimizer *rule) {
    look_up_all(fixture, dense->weights);
    for (unsigned slot = 0; slot < rule_slots(rule); slot++)
        for (uint32_t r = 0; r < ROWS; r++)
            for (int d = 0; d < MAX_DIM; d++)
                dense->state[slot][r][d] = rule_slot_start(rule, slot);
}

static void update_dense(struct dense *dense, const struct optimizer *rule,
                         const struct push *pushes, struct unit_round round) {
    const struct rule_loops *loops;
    assert_int_equal(rule_choose(&loops, NULL, NULL), STATUS_OK);
    for (uint32_t r = 0; r < ROWS; r++) {
        const void *gradients[RANKS];
        struct rule_update of_row = {.step = round.rule_step,
                                     .rate = round.rate,
                                     .scale = round.scale,
                                     .elements = dims[table_of(r)],
                                     .gradients = gradients,
                                     .weights = dense->weights[r],
                                     .weights_out = dense->weights[r]};
        for (unsigned i = 0; i < round.num_parts; i++)
            if (pushes[i].has[r])
                gradients[of_row.num_gradients++] = pushes[i].gradients[r];
        for (unsigned slot = 0; slot < rule_slots(rule); slot++)
            of_row.state[slot] = of_row.state_out[slot] = dense->state[slot][r];
        if (of_row.num_gradients)
            rule_apply(loops, rule, &of_row);
    }
}

static void play_rounds(const struct optimizer *rule, unsigned num_shards,
                        struct philox_sequence random) {
    static struct push pushes[RANKS];
    static struct dense dense;
    static float weights[ROWS][MAX_DIM];
    struct fixture fixture;
    struct table like = {.init_bound = rule->type == OPTIMIZER_FTRL ? 0 : 0.1f};
    open_shards(&fixture, num_shards, rule, like);
    start_dense(&dense, &fixture, rule);
    for (uint64_t step = 1; step <= STEPS; step++) {
        struct unit_round round = {
            .step = step, .rule_step = step, .rate = 0.05};
        round.num_parts = 1 + philox_below(&random, RANKS);
        round.scale = 1.0f / (float)round.num_parts;
        for (unsigned i = 0; i < round.num_parts; i++)
            draw_push(&pushes[i], &random, 1 + philox_below(&random, 30));
        update_all(&fixture, pushes, round);
        update_dense(&dense, rule, pushes, round);
        look_up_all(&fixture, weights);
        for (uint32_t r = 0; r < ROWS; r++)
            assert_memory_equal(weights[r], dense.weights[r],
                                dims[table_of(r)] * sizeof(float));
    }
    close_shards(&fixture);
}

TEST(rounds_have_the_bits_of_dense_blocks_on_1_to_3_ps) {
    struct philox_sequence random;
    seed_open(&random);
    for (int r = 0; r < 4; r++)
        for (unsigned num_shards = 1; num_shards <= 3; num_shards++)
            play_rounds(&rules[r], num_shards, random);
}

TEST(square_sums_are_those_of_the_scaled_sums) {
    static struct push pushes[RANKS];
    struct philox_sequence random;
    struct fixture fixture;
    seed_open(&random);
    open_shards(&fixture, 2, &rules[0], (struct table){0});
    for (unsigned n = 0; n <= RANKS; n++) {
        struct unit_round round = {.num_parts = n,
                                   .step = n + 1,
                                   .rule_step = n + 1,
                                   .rate = 0.1,
                                   .scale = 0.3f};
        for (unsigned i = 0; i < n; i++)
            draw_push(&pushes[i], &random, 2);
        for (uint32_t p = 0; p < PARTITIONS; p++) {
            double sum = 0, squares;
            for (uint32_t r = 0; r < ROWS; r++)
                for (uint32_t d = 0; d < dims[table_of(r)]; d++) {
                    double value = 0;
                    for (unsigned i = 0; i < n; i++)
                        if (pushes[i].has[r] && partition_of(&fixture, r) == p)
                            value += (double)pushes[i].gradients[r][d];
                    sum += value * 0.3 * value * 0.3;
                }
            assert_ok(update(&fixture, p, pushes, round, &squares, &failure));
            if (!(fabs(squares - sum) <= 1e-5 * sum))
                fail_msg("%u parts: %.9g, not %.9g", n, squares, sum);
        }
    }
    close_shards(&fixture);
}

/* BYTES [SIZE], in memory of that size, is no push to partition P. */
static void assert_refused(struct fixture *fixture, uint32_t p,
                           const void *bytes, size_t size, bool floats) {
    void *exact = malloc(size + !size);
    struct row_list list = {0};
    if (size)
        memcpy(exact, bytes, size);
    assert_error(row_shard_read(fixture->shards[0], p, exact, size, floats,
                                &list, &failure),
                 FAILURE_BAD_MESSAGE);
    row_list_free(&list);
    free(exact);
}

TEST(foreign_rows_and_other_bytes_are_refused) {
    static unsigned char bytes[MAX_BYTES];
    static struct push push;
    struct philox_sequence random;
    struct fixture fixture;
    struct row_list list = {0};
    size_t floats = 0;
    seed_open(&random);
    open_shards(&fixture, 1, &rules[0], (struct table){0});
    draw_push(&push, &random, 1);
    for (uint32_t r = 0; r < ROWS; r++)
        floats += partition_of(&fixture, r) == 2 ? dims[table_of(r)] : 0;
    size_t lists = write_part(&fixture, &push, 2, false, bytes);
    assert_ok(row_shard_read(fixture.shards[0], 2, bytes, lists, false, &list,
                             &failure));
    assert_int_equal(list.floats, floats);
    assert_refused(&fixture, 2, bytes, lists, true);
    size_t size = write_part(&fixture, &push, 2, true, bytes);
    assert_int_equal(size, lists + floats * sizeof(float));
    assert_ok(row_shard_read(fixture.shards[0], 2, bytes, size, true, &list,
                             &failure));
    assert_int_equal(list.floats, floats);
    row_list_free(&list);
    for (uint32_t p = 0; p < PARTITIONS; p++)
        if (p != 2)
            assert_refused(&fixture, p, bytes, size, true);
    assert_refused(&fixture, 2, bytes, size, false);
    for (size_t less = 0; less < size; less++)
        assert_refused(&fixture, 2, bytes, less, true);
    assert_refused(&fixture, 2, bytes, size + 4, true);
    memset(bytes, 0xee, sizeof bytes);
    assert_refused(&fixture, 2, bytes, size, true);
    close_shards(&fixture);
}

/* Row R alone, with gradients of ones. */
static void push_row(struct push *push, uint32_t r) {
    memset(push, 0, sizeof *push);
    push->has[r] = true;
    for (int d = 0; d < MAX_DIM; d++)
        push->gradients[r][d] = 1;
}

/* The weights of row R, whose width is 2. */
static void look_up_row(struct fixture *fixture, uint32_t r, float row[2]) {
    static float weights[ROWS][MAX_DIM];
    look_up_all(fixture, weights);
    memcpy(row, weights[r], 2 * sizeof *row);
}

/* What a heartbeat says of table 0. */
static void expect_counts(const struct fixture *fixture, uint64_t rows,
                          uint64_t admitted, uint64_t expired) {
    Capstan__Heartbeat heartbeat = CAPSTAN__HEARTBEAT__INIT;
    uint64_t counts[ROW_SHARD_COUNTS * TABLES];
    row_shard_report(fixture->shards[0], counts, &heartbeat);
    assert_int_equal(heartbeat.n_table_rows, TABLES);
    assert_int_equal(heartbeat.n_table_admitted, TABLES);
    assert_int_equal(heartbeat.n_table_expired, TABLES);
    assert_int_equal(heartbeat.table_rows[0], rows);
    assert_int_equal(heartbeat.table_admitted[0], admitted);
    assert_int_equal(heartbeat.table_expired[0], expired);
}

TEST(each_trainers_push_counts_for_admission) {
    static struct push pushes[3];
    struct unit_round round = {.rate = 1, .scale = 1};
    struct fixture fixture, always;
    float first[2], row[2];
    open_shards(&fixture, 1, &rules[0],
                (struct table){.init_bound = 1, .admit = 3});
    open_shards(&always, 1, &rules[0], (struct table){.init_bound = 1});
    look_up_row(&always, 4, first);
    push_row(&pushes[0], 4);
    push_row(&pushes[1], 4);
    push_row(&pushes[2], 5);
    round.num_parts = 3;
    round.step = 1;
    update_all(&fixture, pushes, round);
    look_up_row(&fixture, 4, row);
    assert_true(row[0] == 0 && row[1] == 0);
    expect_counts(&fixture, 2, 0, 0);
    round.num_parts = 1;
    round.step = 2;
    update_all(&fixture, pushes, round);
    look_up_row(&fixture, 4, row);
    assert_memory_equal(row, first, sizeof row);
    round.step = 3;
    update_all(&fixture, pushes, round);
    look_up_row(&fixture, 4, row);
    assert_true(row[0] == first[0] - 1 && row[1] == first[1] - 1);
    look_up_row(&fixture, 5, row);
    assert_true(row[0] == 0 && row[1] == 0);
    expect_counts(&fixture, 2, 1, 0);
    close_shards(&fixture);
    close_shards(&always);
}

/* With 32 every second update looks for them. */
TEST(rows_expire_at_multiples_of_a_16th) {
    static struct push once, again;
    struct unit_round round = {.num_parts = 1, .rate = 1, .scale = 1};
    struct fixture fixture;
    float first[2], row[2];
    open_shards(&fixture, 1, &rules[0],
                (struct table){.init_bound = 1, .expire = 32});
    look_up_row(&fixture, 4, first);
    push_row(&once, 4);
    once.has[5] = true;
    push_row(&again, 5);
    for (round.step = 1; round.step <= 40; round.step++) {
        update_all(&fixture, round.step == 1 ? &once : &again, round);
        look_up_row(&fixture, 4, row);
        bool gone = round.step >= 34;
        expect_counts(&fixture, gone ? 1 : 2, gone ? 1 : 2, gone);
        assert_true(row[0] == first[0] - (gone ? 0 : 1));
    }
    for (; round.step <= 80; round.step++) {
        round.num_parts = 0;
        update_all(&fixture, &again, round);
    }
    expect_counts(&fixture, 0, 0, 2);
    close_shards(&fixture);
}

TEST(a_table_has_no_more_than_max_rows) {
    static struct push push;
    struct unit_round round = {
        .num_parts = 1, .step = 1, .rule_step = 1, .rate = 1, .scale = 1};
    enum { MOST = 10 };
    struct fixture fixture;
    uint64_t created = 0;
    open_shards(&fixture, 1, &rules[0], (struct table){.max_rows = MOST});
    for (uint32_t r = 2 * IDS; r < ROWS; r++) {
        push_row(&push, r);
        enum status status = update(&fixture, partition_of(&fixture, r), &push,
                                    round, NULL, &failure);
        created += !status;
        assert_int_equal(row_shard_rows(fixture.shards[0], 2), created);
        if (!status)
            continue;
        assert_error(status, FAILURE_TABLE_FULL);
        assert_contains(failure.text, "\"c\"");
    }
    assert_int_equal(created, MOST);
    push_row(&push, 0);
    update_all(&fixture, &push, round);
    assert_int_equal(row_shard_rows(fixture.shards[0], 0), 1);
    close_shards(&fixture);
}

/* Holds the pages of partition P and opens tables over them. */
static void hold_partition(struct fixture *fixture, uint32_t p,
                           struct row_table *held[STACKS]) {
    for (uint32_t s = 0; s < STACKS; s++) {
        struct row_table *table = row_shard_table(fixture->shards[0], p, s);
        struct row_table_options options =
            row_shard_options(fixture->shards[0], s);
        uint64_t admitted, rows = row_table_rows(table, &admitted);
        size_t count;
        struct buffer *const *pages = row_table_pages(table, &count);
        assert_ok(row_table_open_held(&held[s], &options, pages, count,
                                      (uint32_t)rows, &failure));
    }
}

TEST(held_rows_are_read_as_they_were) {
    static struct push push, all;
    static float before[ROWS][MAX_DIM], after[ROWS][MAX_DIM],
        seen[ROWS][MAX_DIM];
    struct unit_round round = {
        .num_parts = 1, .step = 1, .rule_step = 1, .rate = 1, .scale = 1};
    struct philox_sequence random;
    struct row_table *held[STACKS];
    struct fixture fixture;
    uint32_t changed = 0;
    seed_open(&random);
    open_shards(&fixture, 1, &rules[0], (struct table){.init_bound = 1});
    draw_push(&push, &random, 2);
    update_all(&fixture, &push, round);
    look_up_all(&fixture, before);
    uint64_t rows = row_shard_rows(fixture.shards[0], 0);
    hold_partition(&fixture, 1, held);
    draw_push(&all, &random, 1);
    round.step = 2;
    update_all(&fixture, &all, round);
    look_up_all(&fixture, after);
    look_up_partition(&fixture, 1, held, &all, seen);
    for (uint32_t r = 0; r < ROWS; r++) {
        if (partition_of(&fixture, r) != 1)
            continue;
        size_t bytes = dims[table_of(r)] * sizeof(float);
        assert_memory_equal(seen[r], before[r], bytes);
        changed += memcmp(seen[r], after[r], bytes) != 0;
    }
    assert_true(changed > 0);
    assert_true(row_shard_rows(fixture.shards[0], 0) > rows);
    for (uint32_t s = 0; s < STACKS; s++)
        row_table_close(&held[s]);
    close_shards(&fixture);
}
