/* SPDX-License-Identifier: Apache-2.0 */
#include "core/tensor/row_keys.h"

#include <stdlib.h>
#include <string.h>

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

/* Bytes of VALUE, 1 to 8. */
static unsigned width_of(uint64_t value) {
    return (unsigned)(71 - __builtin_clzll(value | 1)) / 8;
}

/* An array of packed numbers. Where each one begins follows from the widths
 * alone, so that reading needs no branch that nothing predicts. */
struct packed {
    unsigned char *widths, *at;
    const unsigned char *end; /* of what is read */
    uint32_t next;
};

static size_t widths_bytes(size_t count) {
    return (count + 1) / 2;
}

/* Begins COUNT numbers at AT. */
static struct packed packed_write(unsigned char *at, size_t count) {
    memset(at, 0, widths_bytes(count));
    return (struct packed){.widths = at, .at = at + widths_bytes(count)};
}

/* Writes 8 bytes, of which those behind the number do not count. */
static inline void packed_put(struct packed *packed, uint64_t value) {
    unsigned width = width_of(value), i = packed->next++;
    packed->widths[i / 2] |= (unsigned char)((width - 1) << i % 2 * 4);
    memcpy(packed->at, &value, sizeof value);
    packed->at += width;
}

/* False: they end behind END. */
static bool packed_read(struct packed *packed, const unsigned char *at,
                        const unsigned char *end, size_t count) {
    if (widths_bytes(count) > (size_t)(end - at))
        return false;
    *packed = (struct packed){.widths = (unsigned char *)at,
                              .at = (unsigned char *)at + widths_bytes(count),
                              .end = end};
    return true;
}

/* False: it ends behind the end, or is no number. */
static inline bool packed_take(struct packed *packed, uint64_t *value) {
    unsigned i = packed->next++;
    size_t width = (packed->widths[i / 2] >> i % 2 * 4 & 15) + 1u;
    size_t left = (size_t)(packed->end - packed->at);
    if (width > 8 || width > left)
        return false;
    *value = 0;
    if (left >= 8)
        memcpy(value, packed->at, 8);
    else
        memcpy(value, packed->at, width);
    *value &= UINT64_MAX >> (64 - 8 * width);
    packed->at += width;
    return true;
}

/* Calls for the tables of each stack in order, with their number of rows. */
static uint32_t count_of(const struct row_keys *keys, uint32_t table,
                         uint32_t *at) {
    uint32_t first = *at;
    while (*at < keys->count && keys->tables[*at] == table)
        ++*at;
    return *at - first;
}

size_t row_keys_most_bytes(const struct layout *layout,
                           const struct row_keys *keys) {
    size_t numbers = layout->num_tables + 1; /* and what the last one writes */
    size_t bytes = 1 + widths_bytes(layout->num_tables);
    for (uint32_t s = 0; s < layout->num_stacks; s++) {
        numbers += keys[s].count;
        bytes += widths_bytes(keys[s].count);
    }
    return bytes + numbers * sizeof(uint64_t);
}

/* The ids' differences, the first of a table from 0; returns their end. */
static unsigned char *write_deltas(const struct row_keys *keys,
                                   unsigned char *to) {
    struct packed packed = packed_write(to, keys->count);
    uint64_t before = 0;
    for (uint32_t i = 0; i < keys->count; i++) {
        if (i && keys->tables[i - 1] != keys->tables[i])
            before = 0;
        packed_put(&packed, keys->ids[i] - before);
        before = keys->ids[i];
    }
    return packed.at;
}

size_t row_keys_write(const struct layout *layout, const struct row_keys *keys,
                      unsigned char *to) {
    size_t plain = 0;
    struct packed packed = packed_write(to + 1, layout->num_tables);
    for (uint32_t s = 0, i = 0; s < layout->num_stacks; s++) {
        plain += keys[s].count * sizeof(uint64_t);
        for (uint32_t at = 0; i < layout->first_stacked[s + 1]; i++)
            packed_put(&packed, count_of(&keys[s], layout->stacked[i], &at));
    }
    unsigned char *ids = packed.at, *end = ids;
    for (uint32_t s = 0; s < layout->num_stacks; s++)
        end = write_deltas(&keys[s], end);
    bool is_shorter = (size_t)(end - ids) < plain;
    *to = is_shorter ? ROW_KEYS_DELTA : ROW_KEYS_PLAIN;
    if (is_shorter)
        return (size_t)(end - to);
    for (uint32_t s = 0; s < layout->num_stacks; s++) {
        size_t bytes = keys[s].count * sizeof *keys[s].ids;
        if (bytes)
            memcpy(ids, keys[s].ids, bytes);
        ids += bytes;
    }
    return (size_t)(ids - to);
}

static enum status row_keys_bad(const char *what, struct failure *why) {
    return status_fail(why, FAILURE_BAD_MESSAGE, "a list of rows %s", what);
}

static enum status row_keys_too_long(struct failure *why) {
    return row_keys_bad("that is longer than its message", why);
}

/* Reads how many rows each table of each stack has and names their tables. An
 * id has at least one byte, so that all are no more than the message has. */
static enum status row_keys_read_counts(const struct layout *layout,
                                        const unsigned char **at,
                                        const unsigned char *end,
                                        struct row_keys *keys,
                                        struct failure *why) {
    struct packed packed;
    uint64_t rows = 0, size = (uint64_t)(end - *at);
    if (!packed_read(&packed, *at, end, layout->num_tables))
        return row_keys_too_long(why);
    for (uint32_t s = 0, i = 0; s < layout->num_stacks; s++) {
        keys[s].count = 0;
        for (; i < layout->first_stacked[s + 1]; i++) {
            uint64_t count;
            if (!packed_take(&packed, &count) || count > size ||
                rows + count > size)
                return row_keys_too_long(why);
            rows += count;
            if (count && !row_keys_reserve(&keys[s], keys[s].count + count))
                return status_fail(why, FAILURE_NO_MEMORY,
                                   "no memory for a list of rows");
            uint16_t *tables = keys[s].tables + keys[s].count;
            for (uint64_t k = 0; k < count; k++)
                tables[k] = (uint16_t)layout->stacked[i];
            keys[s].count += (uint32_t)count;
        }
    }
    *at = packed.at;
    return STATUS_OK;
}

static enum status read_deltas(struct row_keys *keys, const unsigned char **at,
                               const unsigned char *end, struct failure *why) {
    struct packed packed;
    uint64_t *ids = keys->ids;
    const uint16_t *tables = keys->tables;
    uint32_t count = keys->count;
    if (!packed_read(&packed, *at, end, count))
        return row_keys_too_long(why);
    for (uint32_t i = 0; i < count; i++)
        if (!packed_take(&packed, &ids[i]))
            return row_keys_too_long(why);
    for (uint32_t i = 1; i < count; i++) {
        if (tables[i] != tables[i - 1])
            continue;
        ids[i] += ids[i - 1];
        if (ids[i] <= ids[i - 1])
            return row_keys_bad("that do not ascend", why);
    }
    *at = packed.at;
    return STATUS_OK;
}

static enum status read_plain(struct row_keys *keys, const unsigned char **at,
                              const unsigned char *end, struct failure *why) {
    size_t bytes = keys->count * sizeof(uint64_t);
    if (bytes > (size_t)(end - *at))
        return row_keys_too_long(why);
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
