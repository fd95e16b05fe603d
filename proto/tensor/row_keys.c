/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/tensor/row_keys.h"

#include <stdlib.h>
#include <string.h>

enum { VARINT_BYTES = 10 };

bool row_keys_reserve(struct row_keys *keys, size_t count) {
    size_t room = keys->room ? keys->room : 64;
    if (count <= keys->room)
        return true;
    while (room < count)
        room *= 2;
    uint64_t *ids = realloc(keys->ids, room * sizeof *ids);
    keys->ids = ids ? ids : keys->ids;
    uint16_t *tables =
        ids ? realloc(keys->tables, room * sizeof *tables) : NULL;
    keys->tables = tables ? tables : keys->tables;
    if (tables)
        keys->room = (uint32_t)room;
    return tables != NULL;
}

void row_keys_free(struct row_keys *keys) {
    free(keys->ids);
    free(keys->tables);
    *keys = (struct row_keys){0};
}

size_t row_keys_row_bytes(uint32_t dim, unsigned slots) {
    size_t bytes = sizeof(struct row) + (1 + slots) * (dim * sizeof(float));
    return (bytes + 7) / 8 * 8;
}

/* LEB128. */
static size_t leb128_bytes(uint64_t value) {
    return (size_t)(70 - __builtin_clzll(value | 1)) / 7;
}

static unsigned char *put_leb128(uint64_t value, unsigned char *to) {
    for (; value > 127; value >>= 7)
        *to++ = (unsigned char)(value | 128);
    *to++ = (unsigned char)value;
    return to;
}

/* Joins the low 7 bits of each byte of X: of pairs, of fours, of all eight. */
static uint64_t join_sevens(uint64_t x) {
    x = (x & UINT64_C(0x007f007f007f007f)) |
        (x & UINT64_C(0x7f007f007f007f00)) >> 1;
    x = (x & UINT64_C(0x00003fff00003fff)) |
        (x & UINT64_C(0x3fff00003fff0000)) >> 2;
    return (x & UINT64_C(0x000000000fffffff)) |
           (x & UINT64_C(0x0fffffff00000000)) >> 4;
}

/* NULL: it does not end before END, or is no 64-bit number. Up to 8 bytes
 * without a branch on their number, which nothing predicts. */
static const unsigned char *get_leb128(const unsigned char *from,
                                       const unsigned char *end,
                                       uint64_t *value) {
    if (end - from >= 8) {
        uint64_t bytes, last;
        memcpy(&bytes, from, sizeof bytes);
        last = ~bytes & UINT64_C(0x8080808080808080);
        if (last) { /* its lowest bit ends the number */
            *value = join_sevens(bytes & (last ^ (last - 1)));
            return from + (__builtin_ctzll(last) + 1) / 8;
        }
    }
    *value = 0;
    for (unsigned shift = 0; from < end && shift < 7 * VARINT_BYTES;
         shift += 7) {
        uint64_t bits = *from & 127;
        if (shift == 63 && bits > 1)
            return NULL;
        *value |= bits << shift;
        if (*from++ < 128)
            return from;
    }
    return NULL;
}

/* What an id adds to the one before it; the first of a table to 0. */
static uint64_t difference(const struct row_keys *keys, uint32_t i) {
    bool first = !i || keys->tables[i - 1] != keys->tables[i];
    return keys->ids[i] - (first ? 0 : keys->ids[i - 1]);
}

static size_t delta_bytes(const struct layout *layout,
                          const struct row_keys *keys) {
    size_t bytes = 0;
    for (uint32_t s = 0; s < layout->num_stacks; s++)
        for (uint32_t i = 0; i < keys[s].count; i++)
            bytes += leb128_bytes(difference(&keys[s], i));
    return bytes;
}

static size_t plain_bytes(const struct layout *layout,
                          const struct row_keys *keys) {
    size_t bytes = 0;
    for (uint32_t s = 0; s < layout->num_stacks; s++)
        bytes += keys[s].count * sizeof(uint64_t);
    return bytes;
}

/* Calls for the tables of each stack in order, with their number of rows. */
static uint32_t count_of(const struct row_keys *keys, uint32_t table,
                         uint32_t *at) {
    uint32_t first = *at;
    while (*at < keys->count && keys->tables[*at] == table)
        ++*at;
    return *at - first;
}

static size_t counts_bytes(const struct layout *layout,
                           const struct row_keys *keys) {
    size_t bytes = 0;
    for (uint32_t s = 0, i = 0; s < layout->num_stacks; s++)
        for (uint32_t at = 0; i < layout->first_stacked[s + 1]; i++)
            bytes += leb128_bytes(count_of(&keys[s], layout->stacked[i], &at));
    return bytes;
}

size_t row_keys_bytes(const struct layout *layout, const struct row_keys *keys,
                      unsigned char *form) {
    size_t plain = plain_bytes(layout, keys), delta = delta_bytes(layout, keys);
    *form = delta < plain ? ROW_KEYS_DELTA : ROW_KEYS_PLAIN;
    return 1 + counts_bytes(layout, keys) + (delta < plain ? delta : plain);
}

unsigned char *row_keys_write(const struct layout *layout,
                              const struct row_keys *keys, unsigned char form,
                              unsigned char *to) {
    bool delta = form == ROW_KEYS_DELTA;
    *to++ = form;
    for (uint32_t s = 0, i = 0; s < layout->num_stacks; s++)
        for (uint32_t at = 0; i < layout->first_stacked[s + 1]; i++)
            to = put_leb128(count_of(&keys[s], layout->stacked[i], &at), to);
    for (uint32_t s = 0; s < layout->num_stacks; s++) {
        size_t bytes = keys[s].count * sizeof(uint64_t);
        for (uint32_t i = 0; delta && i < keys[s].count; i++)
            to = put_leb128(difference(&keys[s], i), to);
        if (!delta && bytes) {
            memcpy(to, keys[s].ids, bytes);
            to += bytes;
        }
    }
    return to;
}

static enum status row_keys_bad(const char *what, struct failure *why) {
    return status_fail(why, FAILURE_BAD_MESSAGE, "a list of rows %s", what);
}

/* Reads how many rows each table of each stack has and names their tables. An
 * id has at least one byte, so that all are no more than the message has. */
static enum status row_keys_read_counts(const struct layout *layout,
                                        const unsigned char **at,
                                        const unsigned char *end,
                                        struct row_keys *keys,
                                        struct failure *why) {
    uint64_t rows = 0;
    for (uint32_t s = 0, i = 0; s < layout->num_stacks; s++) {
        keys[s].count = 0;
        for (; i < layout->first_stacked[s + 1]; i++) {
            uint64_t count;
            *at = get_leb128(*at, end, &count);
            uint64_t left = *at ? (uint64_t)(end - *at) : 0;
            if (!*at || count > left || rows + count > left)
                return row_keys_bad("that is longer than its message", why);
            rows += count;
            if (count && !row_keys_reserve(&keys[s], keys[s].count + count))
                return status_fail(why, FAILURE_NO_MEMORY,
                                   "no memory for a list of rows");
            for (uint64_t k = 0; k < count; k++)
                keys[s].tables[keys[s].count++] = (uint16_t)layout->stacked[i];
        }
    }
    return STATUS_OK;
}

static enum status read_deltas(struct row_keys *keys, const unsigned char **at,
                               const unsigned char *end, struct failure *why) {
    for (uint32_t i = 0; i < keys->count; i++) {
        bool first = !i || keys->tables[i - 1] != keys->tables[i];
        uint64_t step, before = first ? 0 : keys->ids[i - 1];
        *at = get_leb128(*at, end, &step);
        if (!*at)
            return row_keys_bad("that is longer than its message", why);
        keys->ids[i] = before + step;
        if (!first && (!step || keys->ids[i] < before))
            return row_keys_bad("that do not ascend", why);
    }
    return STATUS_OK;
}

static enum status read_plain(struct row_keys *keys, const unsigned char **at,
                              const unsigned char *end, struct failure *why) {
    size_t bytes = keys->count * sizeof(uint64_t);
    if (bytes > (size_t)(end - *at))
        return row_keys_bad("that is longer than its message", why);
    if (bytes)
        memcpy(keys->ids, *at, bytes);
    *at += bytes;
    for (uint32_t i = 1; i < keys->count; i++)
        if (keys->tables[i] == keys->tables[i - 1] &&
            keys->ids[i] <= keys->ids[i - 1])
            return row_keys_bad("that do not ascend", why);
    return STATUS_OK;
}

enum status row_keys_read(const struct layout *layout, const void *bytes,
                          size_t size, struct row_keys *keys, size_t *used,
                          struct failure *why) {
    const unsigned char *at = bytes, *end = at + size;
    if (!size || *at > ROW_KEYS_DELTA)
        return row_keys_bad("of an unknown form", why);
    bool delta = *at++ == ROW_KEYS_DELTA;
    enum status status = row_keys_read_counts(layout, &at, end, keys, why);
    for (uint32_t s = 0; !status && s < layout->num_stacks; s++)
        status = delta ? read_deltas(&keys[s], &at, end, why)
                       : read_plain(&keys[s], &at, end, why);
    *used = status ? 0 : (size_t)(at - (const unsigned char *)bytes);
    return status;
}

uint32_t row_keys_dim(const struct layout *layout, uint32_t stack) {
    return layout_first_table(layout, stack)->dim;
}

size_t row_keys_floats(const struct layout *layout,
                       const struct row_keys *keys) {
    size_t floats = 0;
    for (uint32_t s = 0; s < layout->num_stacks; s++)
        floats += (size_t)keys[s].count * row_keys_dim(layout, s);
    return floats;
}
