/* SPDX-License-Identifier: Apache-2.0 */
/* Lookups that wait and lookups that are remembered, with lists of a few bytes
 * that nobody reads. */
#include "ps/units/row_lookups.h"

#include "tests/lib/test.h"

enum { PARTITIONS = 4, RANKS = 2, RANK = 1, PARTS = 2, FLOATS = 3, LIST = 4 };

/* As the parts of a message: their lists in one piece. */
static const char message[PARTS * LIST + 1] = "abcdefgh";
static unsigned recycled; /* buffers of floats */

static void recycle(void *owner, struct buffer *buffer) {
    (void)owner;
    recycled++;
    buffer_destroy(buffer);
}

static int open_lookups(void **state) {
    *state = row_lookups_open(PARTITIONS, RANKS);
    recycled = 0;
    return !*state;
}

static int close_lookups(void **state) {
    struct row_lookups *lookups = *state;
    row_lookups_close(&lookups);
    return lookups != NULL;
}

FIXTURE(open_lookups, close_lookups);

/* One of LISTS for the partitions 1 and 3, remembered, that waits for both. */
static struct row_lookup *look_up(struct row_lookups *lookups,
                                  const char *lists, uint64_t seq) {
    struct row_lookup *lookup =
        row_lookups_new(lookups, PARTS, lists, PARTS * LIST);
    assert_non_null(lookup);
    lookup->rank = RANK;
    lookup->seq = seq;
    lookup->floats = buffer_open(PARTS * FLOATS * sizeof(float), recycle, NULL);
    for (uint32_t i = 0; i < PARTS; i++) {
        struct row_lookup_part *part = &lookup->parts[i];
        part->p = 2 * i + 1;
        part->bytes = lookup->bytes + (size_t)i * LIST;
        part->list.size = LIST;
        part->list.floats = FLOATS;
        row_lookups_wait(lookups, lookup, part->p, i);
    }
    row_lookups_remember(lookups, lookup);
    row_lookups_drop(lookups, lookup);
    return lookup;
}

/* The lookup of RANK that is found for a push of LIST to partition P. */
static struct row_lookup *find(struct row_lookups *lookups, uint32_t rank,
                               uint32_t p, const char *list, uint32_t *part) {
    char bytes[LIST + FLOATS * sizeof(float)] = {0};
    memcpy(bytes, list, LIST);
    return row_lookups_find(
        lookups, rank, p, &(struct row_part){bytes, sizeof bytes, NULL}, part);
}

TEST(a_push_of_looked_up_rows_finds_its_lookup) {
    struct row_lookup *first = look_up(*state, message, 1);
    struct row_lookup *second = look_up(*state, "ijklmnop", 2);
    uint32_t part = 0;
    assert_ptr_equal(find(*state, RANK, 3, "efgh", &part), first);
    assert_int_equal(part, 1);
    assert_ptr_equal(find(*state, RANK, 1, "abcd", &part), first);
    assert_int_equal(part, 0);
    assert_ptr_equal(find(*state, RANK, 3, "mnop", &part), second);
    assert_null(find(*state, RANK, 3, "abcd", &part));
    assert_null(find(*state, RANK, 2, "abcd", &part));
    assert_null(find(*state, RANK - 1, 1, "abcd", &part));
    look_up(*state, "qrstuvwx", 3);
    assert_ptr_equal(find(*state, RANK, 1, "abcd", &part), first);
    look_up(*state, "yzABCDEF", 4);
    assert_null(find(*state, RANK, 1, "abcd", &part));
    assert_ptr_equal(find(*state, RANK, 1, "ijkl", &part), second);
}

TEST(a_replaced_lookup_keeps_no_floats) {
    struct row_lookup *first = look_up(*state, message, 1);
    assert_non_null(first->floats);
    look_up(*state, message, 2);
    assert_null(first->floats);
    assert_int_equal(recycled, 1);
}

/* A thread may still write them. */
TEST(floats_stay_while_a_part_is_being_read) {
    struct row_lookup *first = look_up(*state, message, 1);
    uint32_t part;
    assert_ptr_equal(row_lookups_take(*state, 1, RANK, 1, &part), first);
    look_up(*state, message, 2);
    assert_null(row_lookups_take(*state, 3, RANK, 1, &part));
    assert_non_null(first->floats);
    row_lookups_end_part(first);
    assert_null(first->floats);
    row_lookups_drop(*state, first);
    assert_int_equal(recycled, 1);
}

TEST(an_answered_lookup_is_remembered_without_floats) {
    struct row_lookup *first = look_up(*state, message, 1);
    uint32_t part;
    for (uint32_t i = 0; i < PARTS; i++) {
        assert_non_null(first->floats);
        assert_ptr_equal(row_lookups_take(*state, 2 * i + 1, RANK, 1, &part),
                         first);
        row_lookups_end_part(first);
        row_lookups_drop(*state, first);
    }
    assert_null(first->floats);
    assert_ptr_equal(find(*state, RANK, 1, "abcd", &part), first);
}
