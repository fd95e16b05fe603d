/* SPDX-License-Identifier: Apache-2.0 */
/* Both checkpoints are read in the order of the tensors' elements and of the
 * tables' ids, so that no figure depends on how many files they have. Numbers
 * are equal if their bits are. Differences are taken in double; those with a
 * NaN or an infinity are counted by themselves, as they would hide all others.
 * The text is made from the JSON object. */
#include "commands/ckpt_diff.h"

#include "core/base/log.h"
#include "core/base/output.h"
#include "core/store/checkpoint.h"
#include "core/store/checkpoint_reader.h"
#include "core/store/row_merge.h"
#include "core/tensor/difference.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* One of the two checkpoints. */
struct side {
    char folder[PATH_MAX];
    struct manifest manifest;
    struct checkpoint_reader *reader;
    float *floats;        /* a block */
    uint64_t *rule_steps; /* of each partition of tables */
};

static enum status find_step(const char *name, const char *dir,
                             const struct ckpt_diff_options *options,
                             uint64_t *step, struct failure *why) {
    uint64_t *steps;
    size_t count;
    bool found = false;
    enum status status = checkpoint_list(dir, &steps, &count, why);
    if (status)
        return status;
    if (!options->has_step && count)
        *step = steps[count - 1];
    for (size_t i = 0; i < count; i++)
        found |= !options->has_step || steps[i] == *step;
    free(steps);
    if (found)
        return STATUS_OK;
    if (options->has_step)
        return status_fail(why, FAILURE_CHECKPOINT_MISSING,
                           "%s has no checkpoint of step %" PRIu64
                           "; `capstan ckpt ls` lists those it has",
                           name, *step);
    return status_fail(why, FAILURE_CHECKPOINT_MISSING,
                       "%s has no complete checkpoint: is it the job's "
                       "checkpoint.dir, or the folder of a step in it?",
                       name);
}

/* Finds the folder of the checkpoint that NAME is, or that is in it. */
static enum status diff_find_folder(struct side *side, const char *name,
                                    const struct ckpt_diff_options *options,
                                    struct failure *why) {
    char dir[PATH_MAX];
    struct stat about;
    uint64_t step = options->step;
    if (strlen(name) >= sizeof dir)
        return status_errno(why, FAILURE_NAME_TOO_LONG, ENAMETOOLONG, "%s",
                            name);
    if (stat(name, &about))
        return status_errno(why, FAILURE_FILE_UNREADABLE, errno,
                            "cannot open %s", name);
    memcpy(dir, name, strlen(name) + 1);
    if (checkpoint_split_folder(dir, &step)) {
        if (options->has_step && step != options->step)
            return status_fail(
                why, FAILURE_FLAG_CONFLICT,
                "%s is the checkpoint of another step than --step %" PRIu64,
                name, options->step);
    } else {
        enum status status = find_step(name, dir, options, &step, why);
        if (status)
            return status;
    }
    checkpoint_folder(dir, step, side->folder, sizeof side->folder);
    return STATUS_OK;
}

static enum status open_side(struct side *side, const char *name,
                             const struct ckpt_diff_options *options,
                             struct failure *why) {
    enum status status = diff_find_folder(side, name, options, why);
    if (!status)
        status = manifest_read(&side->manifest, side->folder, why);
    if (!status)
        status = checkpoint_reader_open(&side->reader, side->folder,
                                        &side->manifest, why);
    if (status)
        return status;
    side->floats =
        calloc(side->manifest.layout->block_elements, sizeof *side->floats);
    return side->floats
               ? STATUS_OK
               : status_fail(why, FAILURE_NO_MEMORY,
                             "no memory for a block of %s", side->folder);
}

static void close_side(struct side *side) {
    checkpoint_reader_close(&side->reader);
    manifest_clear(&side->manifest);
    free(side->floats);
    free(side->rule_steps);
}

/* A slot of a parameter, block by block. */
struct walk {
    struct side *side;
    uint32_t parameter, block; /* the next one */
    uint16_t slot;
    const float *floats; /* the LEFT next elements */
    uint64_t left;
    uint64_t rule_step; /* of their block */
};

static struct walk walk_open(struct side *side, uint32_t parameter,
                             uint16_t slot) {
    return (struct walk){.side = side,
                         .parameter = parameter,
                         .block = side->manifest.layout->first_block[parameter],
                         .slot = slot};
}

/* Reads the next block if all elements of the last were compared. */
static enum status walk_fill(struct walk *walk, struct failure *why) {
    struct side *side = walk->side;
    if (walk->left)
        return STATUS_OK;
    uint32_t b = walk->block++;
    assert(side->manifest.layout->blocks[b].parameter == walk->parameter);
    walk->floats = side->floats;
    walk->left = side->manifest.layout->blocks[b].elements;
    enum status status =
        checkpoint_reader_rule_step(side->reader, b, &walk->rule_step, why);
    return status ? status
                  : checkpoint_reader_block(side->reader, b, walk->slot,
                                            side->floats, why);
}

/* Of two blocks whose optimizer has counted other numbers of updates. */
struct rule_steps {
    bool differ;
    uint64_t a, b;
};

static void note_rule_steps(struct rule_steps *steps, uint64_t a, uint64_t b) {
    if (!steps->differ && a != b)
        *steps = (struct rule_steps){true, a, b};
}

/* Compares the two walks of ELEMENTS floats each. */
static enum status compare_walks(struct walk *a, struct walk *b,
                                 uint64_t elements, bool integers,
                                 struct difference *out,
                                 struct rule_steps *steps,
                                 struct failure *why) {
    uint64_t count;
    for (uint64_t at = 0; at < elements; at += count) {
        enum status status = walk_fill(a, why);
        if (!status)
            status = walk_fill(b, why);
        if (status)
            return status;
        count = a->left < b->left ? a->left : b->left;
        struct difference_place place = {.at = at};
        (integers ? difference_add_integers : difference_add_floats)(
            out, a->floats, b->floats, count, place);
        note_rule_steps(steps, a->rule_step, b->rule_step);
        a->floats += count;
        b->floats += count;
        a->left -= count;
        b->left -= count;
    }
    return STATUS_OK;
}

/* JSON has no NaN and no infinity: those are texts. */
static json_t *number_json(double number) {
    return isfinite(number) ? json_real(number)
           : isnan(number)  ? json_string("nan")
                            : json_string(number > 0 ? "inf" : "-inf");
}

/* Ids have all 64 bits, which no number of JSON has everywhere. */
static json_t *unsigned_json(uint64_t number) {
    char text[24];
    snprintf(text, sizeof text, "%" PRIu64, number);
    return json_string(text);
}

/* The place of element AT of PARAMETER in each of its dimensions. */
static json_t *index_json(const struct parameter *parameter, uint64_t at) {
    json_t *index = json_array();
    for (uint32_t d = parameter->num_dims; d-- > 0;) {
        json_array_insert_new(
            index, 0, json_integer((json_int_t)(at % parameter->dims[d])));
        at /= parameter->dims[d];
    }
    return index;
}

/* PARAMETER NULL: in a row of a table. */
static json_t *place_json(const struct difference_place *place,
                          const struct parameter *parameter) {
    json_t *all = json_pack("{s:o, s:o}", "a", number_json(place->a), "b",
                            number_json(place->b));
    json_object_set_new(all, parameter ? "element" : "column",
                        json_integer((json_int_t)place->at));
    if (parameter)
        json_object_set_new(all, "index", index_json(parameter, place->at));
    else
        json_object_set_new(all, "id", unsigned_json(place->id));
    return all;
}

static json_t *difference_json(const char *name, const char *slot,
                               const struct difference *difference,
                               const struct parameter *parameter) {
    uint64_t finite = difference->different - difference->not_finite;
    json_t *largest = json_null(), *not_finite = json_null();
    if (finite) {
        largest = place_json(&difference->largest, parameter);
        json_object_set_new(largest, "difference", json_real(difference->most));
    }
    if (difference->not_finite)
        not_finite = place_json(&difference->first_not_finite, parameter);
    return json_pack("{s:s, s:s?, s:b, s:I, s:I, s:I, s:f, s:o, s:o}", "name",
                     name, "slot", slot, "equal", !difference->different,
                     "elements", (json_int_t)difference->elements, "different",
                     (json_int_t)difference->different, "not_finite",
                     (json_int_t)difference->not_finite, "norm",
                     sqrt(difference->squares), "largest", largest,
                     "first_not_finite", not_finite);
}

/* Appends ITEM to the list KEY of REPORT. The report is then no longer equal
 * unless ITEM is. */
static void add_to(json_t *report, const char *key, json_t *item) {
    if (!json_is_true(json_object_get(item, "equal")))
        json_object_set_new(report, "equal", json_false());
    json_array_append_new(json_object_get(report, key), item);
}

static void add_only(json_t *report, bool in_a, const char *name,
                     const char *slot) {
    add_to(report, in_a ? "only_in_a" : "only_in_b",
           json_pack("{s:s, s:s?}", "name", name, "slot", slot));
}

/* Both have NAME's WHAT, and of one it is A, of the other B. */
static void add_unlike(json_t *report, const char *name, const char *what,
                       const char *a, const char *b) {
    add_to(report, "unlike",
           json_pack("{s:s, s:s, s:s, s:s}", "name", name, "what", what, "a", a,
                     "b", b));
}

static void add_unlike_counts(json_t *report, const char *name,
                              const char *what, uint64_t a, uint64_t b) {
    char text[2][24];
    snprintf(text[0], sizeof text[0], "%" PRIu64, a);
    snprintf(text[1], sizeof text[1], "%" PRIu64, b);
    add_unlike(report, name, what, text[0], text[1]);
}

static enum status compare_slot(json_t *report, struct side sides[2],
                                const uint32_t parameters[2],
                                const uint16_t slots[2], const char *slot_name,
                                struct failure *why) {
    const struct parameter *parameter =
        &sides[0].manifest.layout->parameters[parameters[0]];
    struct difference difference = {0};
    struct rule_steps steps = {false};
    struct walk a = walk_open(&sides[0], parameters[0], slots[0]);
    struct walk b = walk_open(&sides[1], parameters[1], slots[1]);
    enum status status = compare_walks(&a, &b, parameter->elements,
                                       parameter->dtype == PARAMETER_INT64,
                                       &difference, &steps, why);
    if (status)
        return status;
    if (steps.differ && !slot_name)
        add_unlike_counts(report, parameter->name, "counted updates", steps.a,
                          steps.b);
    add_to(report, "tensors",
           difference_json(parameter->name, slot_name, &difference, parameter));
    return STATUS_OK;
}

/* The slot of RULE with NAME; 0: there is none. */
static uint16_t diff_find_slot(const struct manifest_rule *rule,
                               const char *name) {
    for (uint32_t s = 0; s < rule->num_slots; s++)
        if (!strcmp(rule->slot_names[s], name))
            return (uint16_t)(s + 1);
    return 0;
}

/* Compares the slots that both rules have by name; lists the others. */
static enum status compare_state(json_t *report, struct side sides[2],
                                 const uint32_t parameters[2],
                                 struct failure *why) {
    const struct manifest_rule *rules[2];
    const char *name = sides[0].manifest.layout->parameters[parameters[0]].name;
    enum status status = STATUS_OK;
    for (int i = 0; i < 2; i++)
        rules[i] = manifest_rule(&sides[i].manifest, parameters[i]);
    if (strcmp(rules[0]->name, rules[1]->name) != 0)
        add_unlike(report, name, "optimizer", rules[0]->name, rules[1]->name);
    for (uint32_t s = 0; s < rules[0]->num_slots && !status; s++) {
        const char *slot = rules[0]->slot_names[s];
        uint16_t slots[2] = {(uint16_t)(s + 1), diff_find_slot(rules[1], slot)};
        if (slots[1])
            status = compare_slot(report, sides, parameters, slots, slot, why);
        else
            add_only(report, true, name, slot);
    }
    for (uint32_t s = 0; s < rules[1]->num_slots && !status; s++)
        if (!diff_find_slot(rules[0], rules[1]->slot_names[s]))
            add_only(report, false, name, rules[1]->slot_names[s]);
    return status;
}

/* "[3, 4] float32", without what does not change the numbers' meaning. */
static void describe_shape(const struct parameter *parameter, char *text,
                           size_t size) {
    size_t used = (size_t)snprintf(text, size, "[");
    for (uint32_t d = 0; d < parameter->num_dims; d++)
        used += (size_t)snprintf(text + used, size - used, "%s%" PRIu32,
                                 d ? ", " : "", parameter->dims[d]);
    snprintf(text + used, size - used, "] %s",
             parameter->dtype == PARAMETER_INT64 ? "int64" : "float32");
}

/* True if both have the same shape and type; else the difference is listed. */
static bool diff_same_shape(json_t *report, const struct parameter *a,
                            const struct parameter *b) {
    char text[2][LAYOUT_MAX_DIMS * 12 + 16];
    describe_shape(a, text[0], sizeof text[0]);
    describe_shape(b, text[1], sizeof text[1]);
    bool same = !strcmp(text[0], text[1]);
    if (!same)
        add_unlike(report, a->name, "shape", text[0], text[1]);
    return same;
}

/* The parameter of LAYOUT with NAME, first looked for at GUESS; num_parameters:
 * there is none. */
static uint32_t find_parameter(const struct layout *layout, const char *name,
                               uint32_t guess) {
    uint32_t p = 0;
    if (guess < layout->num_parameters &&
        !strcmp(layout->parameters[guess].name, name))
        return guess;
    while (p < layout->num_parameters &&
           strcmp(layout->parameters[p].name, name) != 0)
        p++;
    return p;
}

static enum status compare_parameter(json_t *report, struct side sides[2],
                                     uint32_t p, struct failure *why) {
    static const uint16_t weights[2] = {SHARD_WEIGHTS, SHARD_WEIGHTS};
    const struct layout *a = sides[0].manifest.layout;
    const struct layout *b = sides[1].manifest.layout;
    const uint32_t parameters[2] = {
        p, find_parameter(b, a->parameters[p].name, p)};
    if (parameters[1] == b->num_parameters) {
        add_only(report, true, a->parameters[p].name, NULL);
        return STATUS_OK;
    }
    if (!diff_same_shape(report, &a->parameters[p],
                         &b->parameters[parameters[1]]))
        return STATUS_OK;
    enum status status =
        compare_slot(report, sides, parameters, weights, NULL, why);
    return status ? status : compare_state(report, sides, parameters, why);
}

static enum status compare_parameters(json_t *report, struct side sides[2],
                                      struct failure *why) {
    const struct layout *a = sides[0].manifest.layout;
    const struct layout *b = sides[1].manifest.layout;
    enum status status = STATUS_OK;
    for (uint32_t p = 0; p < a->num_parameters && !status; p++)
        status = compare_parameter(report, sides, p, why);
    for (uint32_t p = 0; p < b->num_parameters && !status; p++)
        if (find_parameter(a, b->parameters[p].name, p) == a->num_parameters)
            add_only(report, false, b->parameters[p].name, NULL);
    return status;
}

/* What the rows of a table differ in: `tensors` are the weights and the state
 * of rows that both have. */
struct table_difference {
    uint64_t rows[2], only[2];
    uint64_t different;     /* rows with other numbers */
    uint64_t counts_differ; /* other rows with another last update, or number
                               of pushes */
    uint32_t dim, num_slots;
    struct difference tensors[1 + MANIFEST_MAX_SLOTS];
    const struct side *sides;
    const uint32_t *tables;
    struct rule_steps *steps; /* of the partitions that rows are in */
};

/* The updates that the optimizer of the row ID has counted on side S. */
static uint64_t row_rule_step(const struct table_difference *out, int s,
                              uint64_t id) {
    const struct side *side = &out->sides[s];
    return side->rule_steps[layout_partition(
        side->manifest.layout, layout_row_hash(out->tables[s], id))];
}

/* A and B are the rows of one id. */
static void diff_compare_rows(struct table_difference *out, const struct row *a,
                              const struct row *b) {
    const float *floats[2] = {(const float *)(a + 1), (const float *)(b + 1)};
    const struct difference_place place = {.id = a->id};
    bool differ = false;
    note_rule_steps(out->steps, row_rule_step(out, 0, a->id),
                    row_rule_step(out, 1, b->id));
    for (uint32_t s = 0; s <= out->num_slots; s++) {
        uint64_t before = out->tensors[s].different;
        difference_add_floats(
            &out->tensors[s], floats[0] + (size_t)s * out->dim,
            floats[1] + (size_t)s * out->dim, out->dim, place);
        differ |= out->tensors[s].different > before;
    }
    out->different += differ;
    out->counts_differ +=
        !differ && (a->touched != b->touched || a->count != b->count);
}

/* Walks the rows of both in the order of their ids. */
static void merge_rows(struct table_difference *out, struct row_merge *a,
                       struct row_merge *b) {
    const struct row *x = row_merge_next(a), *y = row_merge_next(b);
    while (x || y) {
        bool in_a = x && (!y || x->id <= y->id);
        bool in_b = y && (!x || y->id <= x->id);
        if (in_a && in_b)
            diff_compare_rows(out, x, y);
        else
            out->only[in_b]++;
        out->rows[0] += in_a;
        out->rows[1] += in_b;
        if (in_a)
            x = row_merge_next(a);
        if (in_b)
            y = row_merge_next(b);
    }
}

/* The state of a table's rows has the names of the run's optimizer, or, by an
 * optimizer of its own, numbers. */
static const char *table_slot_name(const struct manifest *manifest, uint32_t t,
                                   uint32_t slot, char number[12]) {
    snprintf(number, 12, "%" PRIu32, slot);
    if (!slot)
        return NULL;
    return manifest->layout->tables[t].optimizer ||
                   slot > manifest->rules->num_slots
               ? number
               : manifest->rules->slot_names[slot - 1];
}

static json_t *table_json(const struct manifest *manifest, uint32_t t,
                          const struct table_difference *table) {
    const char *name = manifest->layout->tables[t].name;
    json_t *tensors = json_array();
    bool equal = !table->only[0] && !table->only[1] && !table->different &&
                 !table->counts_differ;
    for (uint32_t s = 0; s <= table->num_slots; s++) {
        char number[12];
        json_array_append_new(
            tensors,
            difference_json(name, table_slot_name(manifest, t, s, number),
                            &table->tensors[s], NULL));
    }
    return json_pack(
        "{s:s, s:b, s:{s:I, s:I}, s:I, s:I, s:I, s:I, s:o}", "name", name,
        "equal", equal, "rows", "a", (json_int_t)table->rows[0], "b",
        (json_int_t)table->rows[1], "only_in_a", (json_int_t)table->only[0],
        "only_in_b", (json_int_t)table->only[1], "different",
        (json_int_t)table->different, "counts_differ",
        (json_int_t)table->counts_differ, "tensors", tensors);
}

static void describe_table(const struct manifest *manifest, uint32_t t,
                           char *text, size_t size) {
    const struct table *table = &manifest->layout->tables[t];
    snprintf(text, size,
             "rows of %" PRIu32 ", admit %" PRIu32 ", expire %" PRIu64,
             table->dim, table->admit, table->expire);
}

/* Sets what the two tables have in common; false: their rows cannot be
 * compared. */
static bool match_tables(json_t *report, const struct side sides[2],
                         const uint32_t tables[2],
                         struct table_difference *out) {
    const struct manifest *a = &sides[0].manifest, *b = &sides[1].manifest;
    const struct manifest_table *first = &a->tables[tables[0]];
    const struct manifest_table *second = &b->tables[tables[1]];
    const char *name = a->layout->tables[tables[0]].name;
    char text[2][96];
    describe_table(a, tables[0], text[0], sizeof text[0]);
    describe_table(b, tables[1], text[1], sizeof text[1]);
    if (strcmp(text[0], text[1]) != 0)
        add_unlike(report, name, "table", text[0], text[1]);
    bool like = !strcmp(first->rule, second->rule) &&
                first->num_slots == second->num_slots;
    if (!like)
        add_unlike(report, name, "optimizer", first->rule, second->rule);
    out->dim = a->layout->tables[tables[0]].dim;
    out->num_slots = like ? first->num_slots : 0;
    return out->dim == b->layout->tables[tables[1]].dim;
}

static uint32_t find_table_named(const struct layout *layout,
                                 const char *name) {
    uint32_t t = 0;
    while (t < layout->num_tables && strcmp(layout->tables[t].name, name) != 0)
        t++;
    return t;
}

static enum status diff_check_rows(const struct side *side, uint32_t t,
                                   uint64_t found, struct failure *why) {
    uint64_t wanted = side->manifest.tables[t].count.rows;
    if (found == wanted)
        return STATUS_OK;
    return status_fail(
        why, FAILURE_CHECKPOINT_DAMAGED,
        "%s: table \"%s\" has %" PRIu64 " rows, its manifest says %" PRIu64,
        side->folder, side->manifest.layout->tables[t].name, found, wanted);
}

static enum status compare_table(json_t *report, struct side sides[2],
                                 const uint32_t tables[2],
                                 struct rule_steps *steps,
                                 struct failure *why) {
    struct row_merge merges[2] = {{0}, {0}};
    struct table_difference *table = calloc(1, sizeof *table);
    enum status status = STATUS_OK;
    if (!table)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for a table");
    table->sides = sides;
    table->tables = tables;
    table->steps = steps;
    if (!match_tables(report, sides, tables, table)) {
        free(table);
        return STATUS_OK;
    }
    for (int i = 0; i < 2 && !status; i++)
        status = row_merge_open(&merges[i], sides[i].reader, &sides[i].manifest,
                                tables[i], why);
    if (!status)
        merge_rows(table, &merges[0], &merges[1]);
    for (int i = 0; i < 2; i++) {
        row_merge_close(&merges[i]);
        if (!status)
            status = diff_check_rows(&sides[i], tables[i], table->rows[i], why);
    }
    if (!status)
        add_to(report, "tables",
               table_json(&sides[0].manifest, tables[0], table));
    free(table);
    return status;
}

static enum status read_rule_steps(struct side *side, struct failure *why) {
    const struct layout *layout = side->manifest.layout;
    enum status status = STATUS_OK;
    side->rule_steps =
        calloc(layout->num_partitions + 1, sizeof *side->rule_steps);
    if (!side->rule_steps)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for partitions");
    for (uint32_t p = 0; p < layout->num_partitions && !status; p++)
        status = checkpoint_reader_rule_step(
            side->reader, layout->num_blocks + p, &side->rule_steps[p], why);
    return status;
}

/* The optimizers of rows count their updates by partition. Where both sides
 * have as many, those without rows are compared too. */
static void note_partitions(struct rule_steps *steps,
                            const struct side sides[2]) {
    uint32_t count = sides[0].manifest.layout->num_partitions;
    if (count != sides[1].manifest.layout->num_partitions)
        return;
    for (uint32_t p = 0; p < count; p++)
        note_rule_steps(steps, sides[0].rule_steps[p], sides[1].rule_steps[p]);
}

static enum status compare_tables(json_t *report, struct side sides[2],
                                  struct failure *why) {
    const struct layout *a = sides[0].manifest.layout;
    const struct layout *b = sides[1].manifest.layout;
    struct rule_steps steps = {false};
    enum status status = STATUS_OK;
    for (int i = 0; i < 2 && a->num_tables && b->num_tables && !status; i++)
        status = read_rule_steps(&sides[i], why);
    if (!status && a->num_tables && b->num_tables)
        note_partitions(&steps, sides);
    for (uint32_t t = 0; t < a->num_tables && !status; t++) {
        const uint32_t tables[2] = {t, find_table_named(b, a->tables[t].name)};
        if (tables[1] == b->num_tables)
            add_only(report, true, a->tables[t].name, NULL);
        else
            status = compare_table(report, sides, tables, &steps, why);
    }
    for (uint32_t t = 0; t < b->num_tables && !status; t++)
        if (find_table_named(a, b->tables[t].name) == a->num_tables)
            add_only(report, false, b->tables[t].name, NULL);
    if (!status && steps.differ)
        add_unlike_counts(report, "tables", "counted updates", steps.a,
                          steps.b);
    return status;
}

/* "kept-0-shared" of a kept file's name, which ends in the run's id. */
static void kept_name(const struct shard_info *file, char name[128]) {
    snprintf(name, 128, "%s", file->name);
    char *end = strrchr(name, '-');
    if (end)
        *end = 0;
}

static const struct shard_info *find_kept(const struct manifest *manifest,
                                          const char *name) {
    char other[128];
    for (uint32_t k = 0; k < manifest->num_kept; k++) {
        kept_name(&manifest->kept[k], other);
        if (!strcmp(other, name))
            return &manifest->kept[k];
    }
    return NULL;
}

/* What trainers keep is compared by the size and the hash of its files. */
static void compare_kept(json_t *report, const struct side sides[2]) {
    for (int i = 0; i < 2; i++)
        for (uint32_t k = 0; k < sides[i].manifest.num_kept; k++) {
            const struct shard_info *own = &sides[i].manifest.kept[k], *other;
            char name[128];
            kept_name(own, name);
            other = find_kept(&sides[!i].manifest, name);
            if (!other)
                add_only(report, !i, name, NULL);
            else if (!i)
                add_to(report, "kept",
                       json_pack("{s:s, s:b}", "name", name, "equal",
                                 own->size == other->size &&
                                     !memcmp(own->hash, other->hash,
                                             sizeof own->hash)));
        }
}

/* Lists NAME, a fact of both runs, unless it is the same. */
static void compare_fact(json_t *report, const char *name, uint64_t a,
                         uint64_t b) {
    if (a != b)
        add_unlike_counts(report, "run", name, a, b);
}

/* How far training was, and what it goes on with beside the numbers. */
static void compare_progress(json_t *report, const struct side sides[2]) {
    const struct manifest *a = &sides[0].manifest, *b = &sides[1].manifest;
    const struct loss_scaler *x = &a->scaler, *y = &b->scaler;
    char text[2][32];
    compare_fact(report, "step", a->step, b->step);
    compare_fact(report, "epoch", a->epoch, b->epoch);
    compare_fact(report, "epoch_step", a->epoch_step, b->epoch_step);
    compare_fact(report, "samples", a->samples, b->samples);
    compare_fact(report, "seed", a->seed, b->seed);
    compare_fact(report, "skipped_steps", x->skipped, y->skipped);
    compare_fact(report, "loss_scale_good", x->good, y->good);
    compare_fact(report, "loss_scale_hysteresis", x->hysteresis, y->hysteresis);
    snprintf(text[0], sizeof text[0], "%.17g", x->scale);
    snprintf(text[1], sizeof text[1], "%.17g", y->scale);
    if (strcmp(text[0], text[1]) != 0)
        add_unlike(report, "run", "loss_scale", text[0], text[1]);
}

static json_t *side_json(const struct side *side) {
    const struct manifest *manifest = &side->manifest;
    char run[17];
    json_t *base = manifest->is_delta
                       ? json_integer((json_int_t)manifest->base_name.step)
                       : json_null();
    snprintf(run, sizeof run, "%016" PRIx64, manifest->run);
    return json_pack(
        "{s:s, s:s, s:I, s:I, s:I, s:I, s:o, s:b}", "path", side->folder, "run",
        run, "step", (json_int_t)manifest->step, "epoch",
        (json_int_t)manifest->epoch, "samples", (json_int_t)manifest->samples,
        "files", (json_int_t)manifest->num_files, "base", base, "final",
        manifest->final);
}

static enum status compare_sides(json_t *report, struct side sides[2],
                                 struct failure *why) {
    json_object_set_new(report, "a", side_json(&sides[0]));
    json_object_set_new(report, "b", side_json(&sides[1]));
    compare_progress(report, sides);
    enum status status = compare_parameters(report, sides, why);
    if (!status)
        status = compare_tables(report, sides, why);
    if (!status)
        compare_kept(report, sides);
    return status;
}

static const char *string_at(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

static json_int_t diff_integer_at(const json_t *object, const char *key) {
    return json_integer_value(json_object_get(object, key));
}

static void print_side(const json_t *report, const char *key,
                       const char *letter, FILE *to) {
    const json_t *side = json_object_get(report, key);
    fprintf(to,
            "%s: %s (step %" JSON_INTEGER_FORMAT ", epoch %" JSON_INTEGER_FORMAT
            ", %" JSON_INTEGER_FORMAT " samples",
            letter, string_at(side, "path"), diff_integer_at(side, "step"),
            diff_integer_at(side, "epoch"), diff_integer_at(side, "samples"));
    if (json_is_integer(json_object_get(side, "base")))
        fprintf(to, ", a delta of step %" JSON_INTEGER_FORMAT,
                diff_integer_at(side, "base"));
    fputs(")\n", to);
}

static void print_number(const json_t *number, FILE *to) {
    if (json_is_string(number))
        fputs(json_string_value(number), to);
    else
        fprintf(to, "%.9g", json_number_value(number));
}

/* "at [3, 7]: 0.5 and 0.25", of a row "in column 2 of row 17". */
static void diff_print_place(const json_t *place, FILE *to) {
    const json_t *index = json_object_get(place, "index");
    if (!index)
        fprintf(to, " in column %" JSON_INTEGER_FORMAT " of row %s",
                diff_integer_at(place, "column"), string_at(place, "id"));
    for (size_t d = 0; d < json_array_size(index); d++)
        fprintf(to, "%s%" JSON_INTEGER_FORMAT "%s", d ? ", " : " at [",
                json_integer_value(json_array_get(index, d)),
                d + 1 == json_array_size(index) ? "]" : "");
    fputs(": ", to);
    print_number(json_object_get(place, "a"), to);
    fputs(" and ", to);
    print_number(json_object_get(place, "b"), to);
}

static void print_tensor(const json_t *tensor, const char *before, FILE *to) {
    const json_t *largest = json_object_get(tensor, "largest");
    const char *slot = string_at(tensor, "slot");
    fprintf(to, "%s%s%s%s: ", before, string_at(tensor, "name"),
            *slot ? "." : "", slot);
    if (json_is_true(json_object_get(tensor, "equal"))) {
        fputs("equal\n", to);
        return;
    }
    fprintf(to,
            "%" JSON_INTEGER_FORMAT " of %" JSON_INTEGER_FORMAT
            " elements differ",
            diff_integer_at(tensor, "different"),
            diff_integer_at(tensor, "elements"));
    if (json_is_object(largest)) {
        fprintf(to, "; norm of the difference %.9g, largest %.9g",
                json_number_value(json_object_get(tensor, "norm")),
                json_number_value(json_object_get(largest, "difference")));
        diff_print_place(largest, to);
    }
    if (diff_integer_at(tensor, "not_finite")) {
        fprintf(to,
                "; %" JSON_INTEGER_FORMAT
                " with a NaN or an infinity, the first",
                diff_integer_at(tensor, "not_finite"));
        diff_print_place(json_object_get(tensor, "first_not_finite"), to);
    }
    fputc('\n', to);
}

static void diff_print_table(const json_t *table, FILE *to) {
    const json_t *rows = json_object_get(table, "rows");
    size_t i;
    json_t *tensor;
    fprintf(to, "table %s: ", string_at(table, "name"));
    if (json_is_true(json_object_get(table, "equal"))) {
        fprintf(to, "equal, %" JSON_INTEGER_FORMAT " row%s\n",
                diff_integer_at(rows, "a"),
                log_plural((uint64_t)diff_integer_at(rows, "a")));
        return;
    }
    fprintf(to,
            "%" JSON_INTEGER_FORMAT " and %" JSON_INTEGER_FORMAT
            " rows; %" JSON_INTEGER_FORMAT " only in A, %" JSON_INTEGER_FORMAT
            " only in B, %" JSON_INTEGER_FORMAT
            " have other numbers, %" JSON_INTEGER_FORMAT
            " only another last update or number of pushes\n",
            diff_integer_at(rows, "a"), diff_integer_at(rows, "b"),
            diff_integer_at(table, "only_in_a"),
            diff_integer_at(table, "only_in_b"),
            diff_integer_at(table, "different"),
            diff_integer_at(table, "counts_differ"));
    json_array_foreach(json_object_get(table, "tensors"), i, tensor)
        print_tensor(tensor, "table ", to);
}

static void print_only(const json_t *report, const char *key,
                       const char *letter, FILE *to) {
    size_t i;
    json_t *item;
    json_array_foreach(json_object_get(report, key), i, item) fprintf(
        to, "%s%s%s: only in %s\n", string_at(item, "name"),
        *string_at(item, "slot") ? "." : "", string_at(item, "slot"), letter);
}

static void print_report(const json_t *report, FILE *to) {
    size_t i;
    json_t *item;
    print_side(report, "a", "A", to);
    print_side(report, "b", "B", to);
    json_array_foreach(json_object_get(report, "unlike"), i, item) fprintf(
        to, "%s: %s %s and %s\n", string_at(item, "name"),
        string_at(item, "what"), string_at(item, "a"), string_at(item, "b"));
    print_only(report, "only_in_a", "A", to);
    print_only(report, "only_in_b", "B", to);
    json_array_foreach(json_object_get(report, "tensors"), i, item)
        print_tensor(item, "", to);
    json_array_foreach(json_object_get(report, "tables"), i, item)
        diff_print_table(item, to);
    json_array_foreach(json_object_get(report, "kept"), i, item) fprintf(
        to, "%s: %s\n", string_at(item, "name"),
        json_is_true(json_object_get(item, "equal")) ? "equal" : "different");
    fputs(json_is_true(json_object_get(report, "equal")) ? "equal\n"
                                                         : "different\n",
          to);
}

enum status ckpt_diff(const struct ckpt_diff_options *options, FILE *to,
                      struct failure *why) {
    struct side *sides = calloc(2, sizeof *sides);
    json_t *report = json_pack(
        "{s:b, s:n, s:n, s:[], s:[], s:[], s:[], s:[], s:[]}", "equal", 1, "a",
        "b", "unlike", "only_in_a", "only_in_b", "tensors", "tables", "kept");
    enum status status =
        sides && report
            ? open_side(&sides[0], options->a, options, why)
            : status_fail(why, FAILURE_NO_MEMORY, "no memory to compare");
    if (!status)
        status = open_side(&sides[1], options->b, options, why);
    if (!status)
        status = compare_sides(report, sides, why);
    if (!status && options->json) {
        json_dumpf(report, to, JSON_COMPACT);
        fputc('\n', to);
    } else if (!status) {
        print_report(report, to);
    }
    if (!status)
        status = output_finish(to, why);
    if (status)
        status = STATUS_CONFIG;
    else if (!json_is_true(json_object_get(report, "equal")))
        status = STATUS_FAILED;
    for (int i = 0; sides && i < 2; i++)
        close_side(&sides[i]);
    free(sides);
    json_decref(report);
    return status;
}
