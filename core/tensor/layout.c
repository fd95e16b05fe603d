/* SPDX-License-Identifier: Apache-2.0 */
/* The block size depends only on the total size, not on the number of ps, and a
 * block never crosses the end of a parameter, so a checkpoint fits any number
 * of ps. Blocks are numbered in the order in which gradients are computed: last
 * parameter first, ascending within it. */
#include "core/tensor/layout.h"

#include "core/tensor/initializer.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { KIB_64 = 64 << 10, MIB = 1 << 20 };

/* Blocks are smaller than 1 MiB only if there are at most 512 of them beside
 * the parameters' last ones, so no layout exceeds the limit. */
_Static_assert(LAYOUT_MAX_ELEMENTS / (MIB / sizeof(float)) +
                       LAYOUT_MAX_PARAMETERS <=
                   LAYOUT_MAX_BLOCKS,
               "a layout within the limits has too many blocks");

/* layout_digest hashes the bytes of parameters and tables in memory. */
_Static_assert(sizeof(struct parameter) ==
                   LAYOUT_MAX_NAME + (LAYOUT_MAX_DIMS + 6) * sizeof(uint32_t) +
                       2 * sizeof(float) + sizeof(uint64_t),
               "struct parameter has padding");
_Static_assert(offsetof(struct table, num_ids) == LAYOUT_MAX_NAME +
                                                      8 * sizeof(uint32_t) +
                                                      2 * sizeof(uint64_t),
               "struct table has padding");

uint32_t layout_block_bytes(uint64_t total_bytes) {
    uint64_t bytes = total_bytes / 512;
    if (bytes > MIB)
        return MIB;
    if (bytes < KIB_64)
        return KIB_64;
    return (uint32_t)((bytes + KIB_64 - 1) / KIB_64 * KIB_64);
}

static struct initializer layout_parameter_init(
    const struct parameter *parameter) {
    return (struct initializer){parameter->init_kind, parameter->init_shift,
                                parameter->init_bound};
}

static struct initializer layout_table_init(const struct table *table) {
    return (struct initializer){table->init_kind, table->init_shift,
                                table->init_bound};
}

static enum status count_elements(struct parameter *parameter,
                                  struct failure *why) {
    parameter->elements = 1;
    for (uint32_t d = 0; d < parameter->num_dims; d++) {
        if (parameter->dims[d] == 0)
            return status_fail(why, FAILURE_MODEL_INVALID,
                               "parameter \"%s\": dimension %u is 0; "
                               "every dimension is at least 1",
                               parameter->name, d);
        if (parameter->elements > LAYOUT_MAX_ELEMENTS / parameter->dims[d])
            return status_fail(why, FAILURE_MODEL_INVALID,
                               "parameter \"%s\" has more than 2^40 elements",
                               parameter->name);
        parameter->elements *= parameter->dims[d];
    }
    if (parameter->dtype == PARAMETER_INT64)
        parameter->elements *= sizeof(int64_t) / sizeof(float);
    return STATUS_OK;
}

static enum status copy_kind(struct parameter *to, const struct parameter *from,
                             struct failure *why) {
    to->kind = from->kind;
    to->dtype = from->dtype;
    to->group = from->group;
    to->values = from->values;
    if (from->kind < PARAMETER_KINDS && from->dtype < PARAMETER_DTYPES &&
        from->values <= 1 &&
        (from->dtype == PARAMETER_FLOAT32 || from->kind == PARAMETER_ASSIGNED))
        return STATUS_OK;
    return status_fail(why, FAILURE_MODEL_INVALID,
                       "parameter \"%s\": kind %u with data type %u; allowed "
                       "are float32 of any kind, and int64 if it is assigned",
                       to->name, from->kind, from->dtype);
}

/* Copies the valid part of FROM, nothing after the end of the name or the last
 * dimension, so that equal parameters have equal bytes. */
static enum status copy_parameter(struct parameter *to,
                                  const struct parameter *from, uint32_t index,
                                  struct failure *why) {
    size_t length = strnlen(from->name, sizeof from->name);
    if (length == 0 || length == sizeof from->name)
        return status_fail(why, FAILURE_MODEL_INVALID,
                           "parameter %u: its name has %s; 1 to %d bytes are "
                           "allowed",
                           index, length ? "too many bytes" : "no bytes",
                           LAYOUT_MAX_NAME - 1);
    memcpy(to->name, from->name, length);
    if (from->num_dims > LAYOUT_MAX_DIMS)
        return status_fail(why, FAILURE_MODEL_INVALID,
                           "parameter \"%s\" has %u dimensions; at most %d are "
                           "allowed",
                           to->name, from->num_dims, LAYOUT_MAX_DIMS);
    to->num_dims = from->num_dims;
    memcpy(to->dims, from->dims, from->num_dims * sizeof from->dims[0]);
    const struct initializer init = layout_parameter_init(from);
    if (!initializer_is_valid(&init))
        return status_fail(
            why, FAILURE_MODEL_INVALID,
            "parameter \"%s\": the bound of its initial weights is %g; a "
            "finite number of at least 0 is allowed, with a finite shift "
            "(found %g), of a kind below %d (found %u)",
            to->name, (double)from->init_bound, (double)from->init_shift,
            INITIALIZER_KINDS, from->init_kind);
    to->init_bound = from->init_bound;
    to->init_shift = from->init_shift;
    to->init_kind = from->init_kind;
    enum status status = copy_kind(to, from, why);
    return status ? status : count_elements(to, why);
}

static int compare_names(const void *a, const void *b) {
    const struct parameter *const *left = a, *const *right = b;
    return strcmp((*left)->name, (*right)->name);
}

static enum status check_unique_names(const struct layout *layout,
                                      struct failure *why) {
    uint32_t count = layout->num_parameters;
    const struct parameter **sorted = malloc(count * sizeof *sorted);
    if (!sorted)
        return status_errno(why, FAILURE_NO_MEMORY, ENOMEM, "the layout");
    for (uint32_t p = 0; p < count; p++)
        sorted[p] = &layout->parameters[p];
    qsort(sorted, count, sizeof *sorted, compare_names);
    enum status status = STATUS_OK;
    for (uint32_t p = 1; p < count && !status; p++)
        if (strcmp(sorted[p - 1]->name, sorted[p]->name) == 0)
            status = status_fail(
                why, FAILURE_MODEL_INVALID,
                "parameter \"%s\" is listed twice; names are unique",
                sorted[p]->name);
    free(sorted);
    return status;
}

static enum status copy_parameters(struct layout *layout,
                                   const struct parameter *parameters,
                                   struct failure *why) {
    for (uint32_t p = 0; p < layout->num_parameters; p++) {
        struct parameter *own = &layout->parameters[p];
        enum status status = copy_parameter(own, &parameters[p], p, why);
        if (status)
            return status;
        layout->elements += own->elements;
        if (layout->elements > LAYOUT_MAX_ELEMENTS)
            return status_fail(why, FAILURE_MODEL_INVALID,
                               "the parameters up to \"%s\" have more than "
                               "2^40 elements",
                               own->name);
    }
    return check_unique_names(layout, why);
}

/* Computes the number of blocks of each parameter and its first block. */
static void count_blocks(struct layout *layout) {
    uint64_t total_bytes = layout->elements * sizeof(float);
    uint32_t full = layout_block_bytes(total_bytes) / sizeof(float);
    layout->block_elements = full;
    for (uint32_t p = layout->num_parameters; p-- > 0;) {
        uint64_t elements = layout->parameters[p].elements;
        layout->first_block[p] = layout->num_blocks;
        layout->num_blocks_of[p] = (uint32_t)((elements + full - 1) / full);
        layout->num_blocks += layout->num_blocks_of[p];
    }
}

static void cut_blocks(struct layout *layout) {
    struct block *block = layout->blocks;
    for (uint32_t p = layout->num_parameters; p-- > 0;) {
        uint64_t left = layout->parameters[p].elements, offset = 0;
        while (left > 0) {
            uint32_t elements = layout->block_elements;
            if (left < elements)
                elements = (uint32_t)left;
            *block++ = (struct block){p, elements, offset};
            offset += elements;
            left -= elements;
        }
    }
}

static enum status layout_build_blocks(struct layout *layout,
                                       const struct parameter *parameters,
                                       uint32_t count, struct failure *why) {
    layout->num_parameters = count;
    layout->parameters = calloc(count, sizeof *layout->parameters);
    layout->first_block = calloc(count, sizeof *layout->first_block);
    layout->num_blocks_of = calloc(count, sizeof *layout->num_blocks_of);
    if (!layout->parameters || !layout->first_block || !layout->num_blocks_of)
        return status_errno(why, FAILURE_NO_MEMORY, ENOMEM, "the layout");
    enum status status = copy_parameters(layout, parameters, why);
    if (status)
        return status;
    count_blocks(layout);
    layout->blocks = calloc(layout->num_blocks, sizeof *layout->blocks);
    if (!layout->blocks)
        return status_errno(why, FAILURE_NO_MEMORY, ENOMEM,
                            "a layout of %u blocks", layout->num_blocks);
    cut_blocks(layout);
    return STATUS_OK;
}

enum status layout_build(struct layout **out,
                         const struct parameter *parameters, uint32_t count,
                         struct failure *why) {
    *out = NULL;
    if (count == 0 || count > LAYOUT_MAX_PARAMETERS)
        return status_fail(why, FAILURE_MODEL_INVALID,
                           "the model has %u parameters; 1 to %d are allowed",
                           count, LAYOUT_MAX_PARAMETERS);
    struct layout *layout = calloc(1, sizeof *layout);
    if (!layout)
        return status_errno(why, FAILURE_NO_MEMORY, ENOMEM, "the layout");
    enum status status = layout_build_blocks(layout, parameters, count, why);
    if (status)
        layout_free(&layout);
    *out = layout;
    return status;
}

void layout_free(struct layout **layout) {
    if (!layout || !*layout)
        return;
    free((*layout)->parameters);
    free((*layout)->blocks);
    free((*layout)->first_block);
    free((*layout)->num_blocks_of);
    free((*layout)->tables);
    free((*layout)->stacked);
    free((*layout)->first_stacked);
    free(*layout);
    *layout = NULL;
}

static enum status check_table(const struct layout *layout, uint32_t t,
                               struct failure *why) {
    const struct table *table = &layout->tables[t];
    bool known = false;
    for (uint32_t p = 0; p < layout->num_parameters && !known; p++)
        known = !strcmp(layout->parameters[p].name, table->name);
    for (uint32_t u = 0; u < t && !known; u++)
        known = !strcmp(layout->tables[u].name, table->name);
    if (known || !*table->name)
        return status_fail(why, FAILURE_MODEL_INVALID,
                           "table \"%s\": %s; names are unique", table->name,
                           known ? "listed twice" : "without a name");
    if (!table->dim || table->dim > LAYOUT_MAX_DIM)
        return status_fail(why, FAILURE_MODEL_INVALID,
                           "table \"%s\" has rows of %u floats; 1 to %d are "
                           "allowed",
                           table->name, table->dim, LAYOUT_MAX_DIM);
    if (table->admit > LAYOUT_MAX_ADMIT)
        return status_fail(why, FAILURE_MODEL_INVALID,
                           "table \"%s\" admits rows after %u pushes; at most "
                           "%d are allowed",
                           table->name, table->admit, LAYOUT_MAX_ADMIT);
    const struct initializer init = layout_table_init(table);
    if (initializer_is_valid(&init))
        return STATUS_OK;
    return status_fail(why, FAILURE_MODEL_INVALID,
                       "table \"%s\": the bound of its initial rows is %g; a "
                       "finite number of at least 0 is allowed, with a finite "
                       "shift (found %g), of a kind below %d (found %u)",
                       table->name, (double)table->init_bound,
                       (double)table->init_shift, INITIALIZER_KINDS,
                       table->init_kind);
}

/* The stack of table T: that of an earlier one that is like it, or a new one.
 */
static uint32_t stack_of(const struct layout *layout, uint32_t t) {
    const struct table *table = &layout->tables[t];
    for (uint32_t u = 0; u < t; u++) {
        const struct table *other = &layout->tables[u];
        if (other->dim == table->dim && other->admit == table->admit &&
            other->expire == table->expire &&
            other->optimizer == table->optimizer)
            return other->stack;
    }
    return layout->num_stacks;
}

/* As copy_parameter. */
static enum status copy_table(struct layout *layout, uint32_t t,
                              const struct table *from, struct failure *why) {
    struct table *own = &layout->tables[t];
    size_t length = strnlen(from->name, sizeof from->name);
    if (length == sizeof from->name)
        return status_fail(why, FAILURE_MODEL_INVALID,
                           "table %u: its name has too many bytes; 1 to %d are "
                           "allowed",
                           t, LAYOUT_MAX_NAME - 1);
    *own = *from;
    own->unused = 0;
    memset(own->name + length, 0, sizeof own->name - length);
    own->stack = stack_of(layout, t);
    if (own->stack == layout->num_stacks)
        layout->num_stacks++;
    return check_table(layout, t, why);
}

static void order_by_stack(struct layout *layout) {
    uint32_t at = 0;
    for (uint32_t s = 0; s < layout->num_stacks; s++) {
        layout->first_stacked[s] = at;
        for (uint32_t t = 0; t < layout->num_tables; t++)
            if (layout->tables[t].stack == s)
                layout->stacked[at++] = t;
    }
    layout->first_stacked[layout->num_stacks] = at;
}

enum status layout_add_tables(struct layout *layout, const struct table *tables,
                              uint32_t count, uint32_t num_partitions,
                              struct failure *why) {
    enum status status = STATUS_OK;
    if (count > LAYOUT_MAX_TABLES || !num_partitions ||
        num_partitions > LAYOUT_MAX_PARTITIONS)
        return status_fail(why, FAILURE_MODEL_INVALID,
                           "%u tables in %u partitions; at most %d in 1 to %d "
                           "are allowed",
                           count, num_partitions, LAYOUT_MAX_TABLES,
                           LAYOUT_MAX_PARTITIONS);
    if (!count)
        return STATUS_OK;
    layout->tables = calloc(count, sizeof *layout->tables);
    layout->stacked = calloc(count, sizeof *layout->stacked);
    layout->first_stacked = calloc(count + 1, sizeof *layout->first_stacked);
    if (!layout->tables || !layout->stacked || !layout->first_stacked)
        return status_errno(why, FAILURE_NO_MEMORY, ENOMEM, "the layout");
    layout->num_tables = count;
    layout->num_partitions = num_partitions;
    for (uint32_t t = 0; !status && t < count; t++)
        status = copy_table(layout, t, &tables[t], why);
    if (!status)
        order_by_stack(layout);
    return status;
}

uint32_t layout_units(const struct layout *layout) {
    return layout->num_blocks + layout->num_partitions;
}

bool layout_assigns_rows(const struct layout *layout) {
    for (uint32_t t = 0; t < layout->num_tables; t++)
        if (layout->tables[t].assigned)
            return true;
    return false;
}

uint64_t layout_digest(const struct layout *layout) {
    uint64_t digest =
        XXH3_64bits(layout->parameters,
                    layout->num_parameters * sizeof *layout->parameters);
    for (uint32_t t = 0; t < layout->num_tables; t++)
        digest = XXH3_64bits_withSeed(&layout->tables[t],
                                      offsetof(struct table, num_ids), digest);
    return digest;
}

void layout_init_block(const struct layout *layout, uint32_t b, uint64_t seed,
                       float *weights) {
    const struct block *block = &layout->blocks[b];
    const struct initializer init =
        layout_parameter_init(&layout->parameters[block->parameter]);
    initializer_fill(&init, seed, block->parameter, block->offset, weights,
                     block->elements);
}

void layout_init_row(const struct layout *layout, uint32_t t, uint64_t id,
                     uint64_t seed, float *weights) {
    const struct initializer init = layout_table_init(&layout->tables[t]);
    initializer_fill(&init, layout_row_hash(t, seed), id, 0, weights,
                     layout->tables[t].dim);
}

void layout_plain_name(char *name) {
    static const char part[] = "_orig_mod.";
    const size_t length = sizeof part - 1;
    for (char *at = strstr(name, part); at; at = strstr(at, part))
        if ((at == name || at[-1] == '.') && at[length])
            memmove(at, at + length, strlen(at + length) + 1);
        else
            at += length;
}

void layout_describe_parameter(const struct layout *layout, uint32_t p,
                               char *text, size_t size) {
    static const char *const kinds[] = {[PARAMETER_TRAINED] = "trained",
                                        [PARAMETER_AVERAGED] = "averaged",
                                        [PARAMETER_ASSIGNED] = "assigned"};
    if (p >= layout->num_parameters) {
        snprintf(text, size, "none");
        return;
    }
    const struct parameter *parameter = &layout->parameters[p];
    size_t used = (size_t)snprintf(text, size, "\"%s\" [", parameter->name);
    for (uint32_t d = 0; d < parameter->num_dims && used < size; d++)
        used += (size_t)snprintf(text + used, size - used, d ? ", %u" : "%u",
                                 parameter->dims[d]);
    if (used < size)
        snprintf(text + used, size - used, "] %s %s of group %u",
                 parameter->dtype ? "int64" : "float32", kinds[parameter->kind],
                 parameter->group);
}
