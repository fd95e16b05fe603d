/* SPDX-License-Identifier: Apache-2.0 */
/* Steps of a caller that looks up and pushes lists in any order: what each step
 * sums, beside the sums of what was pushed in it. */
#define STATE struct fixture *fixture

#include "worker/train/table_steps.h"

#include "core/tensor/row_keys.h"
#include "tests/lib/assert_fails.h"
#include "tests/lib/test.h"

#include <stdlib.h>
#include <string.h>

enum { TABLES = 2, PARTITIONS = 8, MOST = 40, LISTS = 8, FLOATS = 3 };
enum { IDS = 25, BAGS = 6, SENT = 2 };

static const uint32_t dims[TABLES] = {FLOATS, 1};

/* A list of a step; VALUES and WEIGHTS are small integers, so that sums are
 * exact. */
struct list {
    uint64_t ids[MOST];
    float values[MOST * FLOATS], weights[MOST];
    uint32_t offsets[BAGS + 1];
    struct external_rows rows;
};

/* A batch that is on its way, and what was in it. */
struct sent {
    const struct row_batch *batch;
    float gradients[IDS * (FLOATS + 1)];
    unsigned char bytes[IDS * TABLES * 16];
};

struct fixture {
    struct layout *layout;
    struct table_steps steps;
    struct list read[LISTS], pushed[LISTS];
    uint32_t num_read, num_pushed;
    struct sent sent[SENT]; /* last, and before */
    uint32_t random;
};

static uint32_t draw(struct fixture *fixture, uint32_t below) {
    fixture->random = fixture->random * 1664525 + 1013904223;
    return (fixture->random >> 8) % below;
}

static int setup(void **state) {
    struct fixture *fixture = calloc(1, sizeof *fixture);
    struct table tables[TABLES] = {{.name = "a", .dim = dims[0]},
                                   {.name = "b", .dim = dims[1]}};
    struct parameter parameter = {.name = "p"};
    fixture->random = 1;
    *state = fixture;
    return layout_build(&fixture->layout, &parameter, 1, &failure) ||
           layout_add_tables(fixture->layout, tables, TABLES, PARTITIONS,
                             &failure) ||
           table_steps_open(&fixture->steps, fixture->layout, &failure);
}

static int teardown(void **state) {
    struct fixture *fixture = *state;
    layout_free(&fixture->layout); /* as a plan ends before its caller */
    table_steps_close(&fixture->steps);
    free(fixture);
    return 0;
}

FIXTURE(setup, teardown);

/* Points LIST at its own arrays. */
static void place_list(struct list *list) {
    list->rows.ids = list->ids;
    list->rows.values = list->values;
    list->rows.offsets = list->offsets;
    list->rows.weights = list->rows.weights ? list->weights : NULL;
}

/* Ids, every other time in bags, those every other time with weights. */
static void draw_list(struct fixture *fixture, struct list *list) {
    list->rows = (struct external_rows){
        .table = draw(fixture, TABLES),
        .count = draw(fixture, MOST),
        .weights = draw(fixture, 2) ? list->weights : NULL};
    if (draw(fixture, 2))
        list->rows.num_bags = 1 + draw(fixture, BAGS);
    place_list(list);
    uint32_t count = (uint32_t)list->rows.count;
    for (uint32_t i = 0; i < count; i++) {
        list->ids[i] = draw(fixture, IDS);
        list->weights[i] = (float)draw(fixture, 3);
    }
    list->offsets[0] = 0;
    for (size_t b = 0; b < list->rows.num_bags; b++) {
        bool last = b + 1 == list->rows.num_bags;
        uint32_t left = count - list->offsets[b];
        list->offsets[b + 1] =
            list->offsets[b] + (last ? left : draw(fixture, left + 1));
    }
}

/* The weight of id K of LIST, and the place of its VALUES. */
static float weight_of(const struct external_rows *rows, size_t k,
                       size_t *place) {
    *place = k;
    if (!rows->num_bags)
        return 1;
    for (*place = 0; k >= rows->offsets[*place + 1];)
        ++*place;
    return rows->weights ? rows->weights[k] : 1;
}

/* What ROWS read is 1 for each id of table a, and 2 of b. */
static void expect_read(const struct external_rows *rows) {
    uint32_t dim = dims[rows->table];
    float expected[MOST] = {0};
    size_t places = rows->num_bags ? rows->num_bags : rows->count, place;
    for (size_t k = 0; k < rows->count; k++) {
        float weight = weight_of(rows, k, &place);
        expected[place] += weight * (1 + (float)rows->table);
    }
    for (size_t f = 0; f < places * dim; f++)
        assert_true(rows->values[f] == expected[f / dim]);
}

/* A lookup of COUNT lists; what it reads is 1 in table a and 2 in b. */
static void look_up(struct fixture *fixture, uint32_t count) {
    struct external_rows rows[LISTS];
    fixture->num_read = count;
    for (uint32_t i = 0; i < count; i++) {
        draw_list(fixture, &fixture->read[i]);
        rows[i] = fixture->read[i].rows;
    }
    assert_ok(table_steps_look_up(&fixture->steps, rows, count, &failure));
    struct row_batch *batch = &fixture->steps.awaited->batch;
    const uint32_t *position = batch->positions;
    for (uint32_t i = 0; i < count; i++)
        for (size_t k = 0; k < rows[i].count; k++, position++)
            for (uint32_t d = 0; d < dims[rows[i].table]; d++)
                batch->weights[*position + d] = 1 + (float)rows[i].table;
    table_steps_copy(&fixture->steps, table_steps_take(&fixture->steps), rows,
                     count);
    for (uint32_t i = 0; i < count; i++)
        expect_read(&rows[i]);
}

/* Pushes the ids of LIST, or new ones. */
static void push(struct fixture *fixture, const struct list *list) {
    struct list *pushed = &fixture->pushed[fixture->num_pushed++];
    if (list) {
        *pushed = *list;
        place_list(pushed);
    } else {
        draw_list(fixture, pushed);
    }
    for (size_t f = 0; f < MOST * FLOATS; f++)
        pushed->values[f] = (float)draw(fixture, 9) - 4;
    struct list sent = *pushed;
    place_list(&sent);
    assert_ok(table_steps_add(&fixture->steps, &sent.rows, &failure));
    memset(&sent, 0x55, sizeof sent); /* it is the caller's */
}

/* The sum of what was pushed to float D of ID's row of TABLE. *PUSHED: whether
 * anything was. */
static float expected_sum(const struct fixture *fixture, uint32_t table,
                          uint64_t id, uint32_t d, bool *pushed) {
    float sum = 0;
    *pushed = false;
    for (uint32_t i = 0; i < fixture->num_pushed; i++) {
        const struct external_rows *rows = &fixture->pushed[i].rows;
        for (size_t k = 0; rows->table == table && k < rows->count; k++) {
            size_t place;
            float weight = weight_of(rows, k, &place);
            if (rows->ids[k] != id)
                continue;
            *pushed = true;
            sum += weight * rows->values[place * dims[table] + d];
        }
    }
    return sum;
}

/* The rows of PART, as they are sent; returns their number. */
static size_t expect_part(const struct fixture *fixture,
                          const struct row_batch *batch,
                          const struct row_batch_part *part) {
    struct row_keys keys[TABLES] = {{0}};
    const float *sums = batch->gradients + part->first_float;
    size_t used, count = 0;
    bool pushed;
    assert_ok(row_keys_read(fixture->layout, batch->bytes + part->first_byte,
                            part->bytes, keys, &used, &failure));
    for (uint32_t s = 0; s < fixture->layout->num_stacks; s++) {
        for (uint32_t i = 0; i < keys[s].count; i++, count++)
            for (uint32_t d = 0; d < dims[keys[s].tables[i]]; d++) {
                assert_true(*sums++ == expected_sum(fixture, keys[s].tables[i],
                                                    keys[s].ids[i], d,
                                                    &pushed));
                assert_true(pushed);
            }
        row_keys_free(&keys[s]);
    }
    return count;
}

static size_t num_pushed_rows(const struct fixture *fixture) {
    size_t count = 0;
    bool pushed;
    for (uint32_t t = 0; t < TABLES; t++)
        for (uint64_t id = 0; id < IDS; id++) {
            (void)expected_sum(fixture, t, id, 0, &pushed);
            count += pushed;
        }
    return count;
}

/* The last two that were sent are as they were; BATCH takes the place of one.
 */
static void expect_sent(struct fixture *fixture,
                        const struct row_batch *batch) {
    struct sent *sent = fixture->sent;
    for (int i = 0; i < SENT && sent[i].batch; i++) {
        assert_memory_equal(sent[i].gradients, sent[i].batch->gradients,
                            sent[i].batch->floats * sizeof(float));
        assert_memory_equal(sent[i].bytes, sent[i].batch->bytes,
                            sent[i].batch->lists);
    }
    table_steps_sent(&fixture->steps);
    if (!batch)
        return;
    sent[1] = sent[0];
    sent[0].batch = batch;
    memcpy(sent[0].gradients, batch->gradients, batch->floats * sizeof(float));
    memcpy(sent[0].bytes, batch->bytes, batch->lists);
}

/* Ends the step; returns whether its sums are where rows were looked up. */
static bool expect_sums(struct fixture *fixture) {
    const struct row_lists *read = fixture->steps.read;
    struct row_batch *batch;
    size_t rows = 0;
    assert_ok(table_steps_sum(&fixture->steps, &batch, &failure));
    for (uint32_t p = 0; batch && p < PARTITIONS; p++)
        if (batch->parts[p].bytes)
            rows += expect_part(fixture, batch, &batch->parts[p]);
    assert_int_equal(rows, num_pushed_rows(fixture));
    fixture->num_pushed = 0;
    expect_sent(fixture, batch);
    return read && batch == &read->batch;
}

TEST(lists_pushed_as_they_were_read_are_summed_in_place) {
    for (int step = 0; step < 20; step++) {
        look_up(fixture, 4);
        for (uint32_t i = 0; i < 4; i++) /* backwards every other time */
            push(fixture, &fixture->read[step % 2 ? 3 - i : i]);
        assert_true(expect_sums(fixture));
    }
}

TEST(rows_that_were_read_and_not_pushed_are_not_sent) {
    look_up(fixture, 4);
    push(fixture, &fixture->read[0]);
    push(fixture, &fixture->read[1]);
    assert_false(expect_sums(fixture));
    look_up(fixture, 2);
    assert_false(expect_sums(fixture));
}

/* Lookups between the pushes of a step, other lists than were read, in another
 * order, and twice. */
TEST(any_order_has_the_same_sums) {
    for (int step = 0; step < 3000; step++) {
        uint32_t calls = draw(fixture, LISTS);
        for (uint32_t i = 0; i < calls; i++) {
            uint32_t which = draw(fixture, 8);
            if (which == 0 || !fixture->num_read)
                look_up(fixture, 1 + draw(fixture, 4));
            else if (which == 1)
                push(fixture, NULL);
            else
                push(fixture,
                     &fixture->read[which == 2 ? 0 : i % fixture->num_read]);
        }
        expect_sums(fixture);
        if (draw(fixture, 2))
            look_up(fixture, 1 + draw(fixture, 4));
    }
}
