/* SPDX-License-Identifier: Apache-2.0 */
/* Random histories of partitions with admission and expiry, with full
 * checkpoints and deltas, and between them copies with bases of their own: a
 * delta with its base has the rows that the ps had, restored to any number of
 * ps, whose own deltas go on from there. */
#include "core/store/checkpoint.h"
#include "core/store/shard_file.h"
#include "core/store/shard_rows.h"
#include "proto/holder/row_shard.h"
#include "tests/lib/checkpoint_fixture.h"
#include "tests/lib/seed.h"
#include "tests/lib/test.h"

#include <sys/stat.h>

enum {
    TABLES = 3,
    STACKS = 2,
    IDS = 300,
    HOT = 30, /* of them are pushed often */
    PARTITIONS = 6,
    MOST_PS = 3,
    ROUNDS = 160,
};

static const struct optimizer adagrad = {.type = OPTIMIZER_ADAGRAD,
                                         .eps = 1e-10};

/* Partition p is on ps p % num_ps, its p / num_ps-th. */
struct cluster {
    struct row_shard *ps[MOST_PS];
    uint32_t units[MOST_PS][PARTITIONS];
    unsigned num_ps;
};

/* Checkpoints, or copies. */
struct line {
    char dir[PATH_MAX];
    struct manifest_name base;
    struct manifest_name whole; /* that ps do not know of yet; step 0: none */
    unsigned num_deltas;
};

struct history {
    struct line checkpoints, copies;
    struct layout *layout;
    const struct rule_loops *loops;
    struct philox_sequence random;
    struct cluster *cluster;
    bool apart; /* partitions are not updated equally often */
    uint64_t versions[PARTITIONS];
    bool full_only[MOST_PS]; /* ps restored from a copy, until there is a base:
                                what the snapshot agent sees to */
    uint64_t unchanged, removed; /* rows of bases, seen in deltas */
};

static bool one_in(struct history *history, uint32_t many) {
    return !philox_below(&history->random, many);
}

static void open_history(struct history *history, const char *dir, bool apart) {
    static const struct table tables[TABLES] = {
        {.name = "a", .dim = 2, .init_bound = 1, .expire = 16},
        {.name = "b", .dim = 5, .init_bound = 1, .admit = 2, .expire = 9},
        {.name = "c", .dim = 2, .init_bound = 1, .expire = 16}};
    struct parameter parameter = {.name = "p"};
    *history = (struct history){.apart = apart};
    snprintf(history->checkpoints.dir, PATH_MAX, "%s/a", dir);
    snprintf(history->copies.dir, PATH_MAX, "%s/b", dir);
    assert_int_equal(mkdir(history->checkpoints.dir, 0755), 0);
    assert_int_equal(mkdir(history->copies.dir, 0755), 0);
    seed_open(&history->random);
    assert_ok(rule_choose(&history->loops, NULL, &failure));
    assert_ok(layout_build(&history->layout, &parameter, 1, &failure));
    assert_ok(layout_add_tables(history->layout, tables, TABLES, PARTITIONS,
                                &failure));
    assert_int_equal(history->layout->num_stacks, STACKS);
}

static struct cluster *open_cluster(const struct history *history,
                                    unsigned num_ps) {
    struct cluster *cluster = calloc(1, sizeof *cluster);
    cluster->num_ps = num_ps;
    for (uint32_t p = 0; p < PARTITIONS; p++)
        cluster->units[p % num_ps][p / num_ps] =
            history->layout->num_blocks + p;
    for (unsigned i = 0; i < num_ps; i++) {
        struct row_shard_settings settings = {
            .layout = history->layout,
            .ids = cluster->units[i],
            .count = (PARTITIONS - i + num_ps - 1) / num_ps,
            .num_parts = 1,
            .seed = 7,
            .optimizer = &adagrad,
            .loops = history->loops,
            .deltas = true,
            .copies = true};
        assert_ok(row_shard_open(&cluster->ps[i], &settings, &failure));
    }
    return cluster;
}

static void close_cluster(struct cluster *cluster) {
    for (unsigned i = 0; i < cluster->num_ps; i++)
        row_shard_close(&cluster->ps[i]);
    free(cluster);
}

/* Some rows of partition P; returns the bytes of their lists and gradients. */
static size_t draw_part(struct history *history, uint32_t p, char *to) {
    const struct layout *layout = history->layout;
    struct row_keys keys[STACKS] = {0};
    for (uint32_t t = 0; t < TABLES; t++)
        for (uint32_t id = 0; id < IDS; id++) {
            struct row_keys *list = &keys[layout->tables[t].stack];
            if (!one_in(history, id < HOT ? 3 : 60) ||
                layout_partition(layout, layout_row_hash(t, id)) != p)
                continue;
            assert_true(row_keys_reserve(list, list->count + 1));
            list->ids[list->count] = id;
            list->tables[list->count++] = (uint16_t)t;
        }
    char *end = to + row_keys_write(layout, keys, (void *)to);
    for (size_t f = row_keys_floats(layout, keys); f-- > 0;) {
        float gradient = (float)(int32_t)philox_next(&history->random);
        memcpy(end, &gradient, sizeof gradient);
        end += sizeof gradient;
    }
    for (uint32_t s = 0; s < STACKS; s++)
        row_keys_free(&keys[s]);
    return (size_t)(end - to);
}

static void update_partition(struct history *history, uint32_t p) {
    static char bytes[TABLES * IDS * (5 * sizeof(float) + 10) + 64];
    struct row_part part = {bytes, draw_part(history, p, bytes), NULL};
    struct unit_round round = {.parts = &part,
                               .num_parts = 1,
                               .step = ++history->versions[p],
                               .rule_step = history->versions[p],
                               .rate = 0.1,
                               .scale = 0x1p-31f};
    struct cluster *cluster = history->cluster;
    struct row_shard *ps = cluster->ps[p % cluster->num_ps];
    uint32_t local = p / cluster->num_ps;
    if (row_shard_check(ps, local, part.bytes, part.size, &failure) ||
        row_shard_units.update(ps, local, &round, &failure))
        fail_msg("%s", failure.text);
}

/* Once each, or apart: the first once, others more often or less. */
static void play_round(struct history *history) {
    for (uint32_t p = 0; p < PARTITIONS; p++) {
        uint32_t times =
            history->apart && p ? philox_below(&history->random, p) : 1;
        while (times--)
            update_partition(history, p);
    }
}

static int compare_rows_of_test(const void *left, const void *right) {
    const struct row *l = *(const struct row *const *)left,
                     *r = *(const struct row *const *)right;
    if (l->table != r->table)
        return l->table < r->table ? -1 : 1;
    return (l->id > r->id) - (l->id < r->id);
}

/* The rows of a stack, sorted; the caller frees the list. */
static const struct row **list_rows(const struct cluster *cluster, uint32_t p,
                                    uint32_t stack, uint64_t *count,
                                    size_t *row_bytes) {
    struct row_table *table = row_shard_table(cluster->ps[p % cluster->num_ps],
                                              p / cluster->num_ps, stack);
    uint64_t admitted;
    size_t pages;
    uint32_t in_page = row_table_page_rows(table);
    struct buffer *const *page = row_table_pages(table, &pages);
    *row_bytes = row_table_row_bytes(table);
    *count = row_table_rows(table, &admitted);
    const struct row **rows = malloc((*count + 1) * sizeof *rows);
    for (uint64_t r = 0; r < *count; r++)
        rows[r] = (const struct row *)((char *)buffer_data(page[r / in_page]) +
                                       r % in_page * *row_bytes);
    qsort(rows, *count, sizeof *rows, compare_rows_of_test);
    return rows;
}

static void expect_same_cluster(const struct cluster *left,
                                const struct cluster *right) {
    for (uint32_t p = 0; p < PARTITIONS; p++)
        for (uint32_t s = 0; s < STACKS; s++) {
            uint64_t l_count, r_count;
            size_t bytes;
            const struct row **l = list_rows(left, p, s, &l_count, &bytes);
            const struct row **r = list_rows(right, p, s, &r_count, &bytes);
            assert_int_equal(l_count, r_count);
            for (uint64_t i = 0; i < l_count; i++)
                assert_memory_equal(l[i], r[i], bytes);
            free(l);
            free(r);
        }
}

/* One ps's file; *DELTA becomes true if a partition has only what changed. */
static void write_file(struct history *history, const char *folder, uint32_t ps,
                       struct unit_cut cut, struct manifest *manifest,
                       bool *delta) {
    struct cluster *cluster = history->cluster;
    struct shard_rows_count counts[TABLES] = {{0}};
    struct shard_writer *writer;
    assert_ok(shard_writer_open(&writer, textf("%s/ps-%u.mdb", folder, ps), 0,
                                0, &failure));
    if (history->full_only[ps] && cut.form == CAPSTAN__SNAPSHOT__FORM__DELTA)
        cut.form = CAPSTAN__SNAPSHOT__FORM__FULL;
    for (uint32_t p = ps; p < PARTITIONS; p += cluster->num_ps) {
        cut.step = history->versions[p];
        struct snapshots_block block = {0};
        row_shard_units.cut(cluster->ps[ps], p / cluster->num_ps, &cut, &block);
        *delta |= block.rows[0].delta;
        assert_ok(shard_rows_write(writer, history->layout, p, block.rows,
                                   counts, &failure));
    }
    assert_ok(shard_writer_finish(&writer, &manifest->files[ps], &failure));
}

/* Some ps learn that the full checkpoint of STEP is a base. */
static void tell_base(struct history *history, uint64_t step) {
    for (uint32_t i = 0; i < history->cluster->num_ps; i++)
        if (!one_in(history, 3)) {
            row_shard_set_base(history->cluster->ps[i], step);
            history->full_only[i] = false;
        }
}

/* All ps learn of the base of copies later than it is there, or that there is
 * none. */
static void tell_copy_base(struct history *history) {
    struct line *copies = &history->copies;
    uint64_t known = 0;
    if (copies->whole.step && one_in(history, 3)) {
        copies->base = copies->whole;
        copies->whole.step = 0;
        known = copies->base.step;
    } else if (!one_in(history, 8)) {
        return;
    }
    for (uint32_t i = 0; i < history->cluster->num_ps; i++)
        row_shard_set_copy_base(history->cluster->ps[i], known, known);
}

/* Writes one to LINE. */
static void save(struct history *history, struct line *line,
                 Capstan__Snapshot__Form form) {
    uint64_t step = history->versions[0];
    struct cluster *cluster = history->cluster;
    struct shard_info files[MOST_PS];
    uint32_t places[1 + PARTITIONS] = {0};
    struct manifest_table tables[TABLES];
    struct manifest_rule rule = {
        .name = "Adagrad", .num_slots = 1, .slot_names = {"sum"}};
    char folder[PATH_MAX];
    struct manifest manifest = {.step = step,
                                .num_rules = 1,
                                .rules = &rule,
                                .layout = history->layout,
                                .num_files = cluster->num_ps,
                                .files = files,
                                .block_file = places,
                                .tables = tables,
                                .base_name = line->base};
    memset(tables, 0, sizeof tables);
    memset(files, 0, sizeof files);
    for (uint32_t t = 0; t < TABLES; t++)
        tables[t].num_slots = 1;
    for (uint32_t p = 0; p < PARTITIONS; p++)
        places[1 + p] = p % cluster->num_ps;
    assert_ok(checkpoint_make_folder(line->dir, step, &failure));
    checkpoint_folder(line->dir, step, folder, sizeof folder);
    for (uint32_t i = 0; i < cluster->num_ps; i++)
        write_file(history, folder, i,
                   (struct unit_cut){.id = step, .form = form}, &manifest,
                   &manifest.is_delta);
    assert_ok(manifest_write(&manifest, folder, &failure));
    bool is_copy = form == CAPSTAN__SNAPSHOT__FORM__COPY;
    if (!manifest.is_delta && !is_copy) {
        line->base = (struct manifest_name){step, manifest.hash};
        tell_base(history, step);
    }
    if (!manifest.is_delta && is_copy && !line->whole.step)
        line->whole = (struct manifest_name){step, manifest.hash};
    if (is_copy)
        tell_copy_base(history);
}

static uint64_t count_list(const struct shard_rows *list) {
    uint64_t count = 0;
    for (size_t v = 0; list && v < list->count; v++)
        count += list->values[v].count;
    return count;
}

/* Counts what the history has to have. */
static void count_lists(struct history *history,
                        struct checkpoint_reader *reader) {
    for (uint32_t p = 0; p < PARTITIONS; p++)
        for (uint32_t s = 0; s < STACKS; s++) {
            struct shard_rows_pair pair;
            struct shard_rows_cursor cursor;
            assert_ok(checkpoint_reader_rows(reader, p, s, &pair, &failure));
            history->removed += count_list(pair.removed);
            history->unchanged -= count_list(pair.rows);
            shard_rows_seek(&cursor, &pair, 0, 0);
            while (shard_rows_step(&cursor))
                history->unchanged++;
        }
}

/* A cluster of another number of ps, with the newest rows of LINE. */
static struct cluster *restore(struct history *history, struct line *line) {
    struct cluster *cluster =
        open_cluster(history, 1 + philox_below(&history->random, MOST_PS));
    struct checkpoint_reader *reader;
    struct manifest manifest;
    char folder[PATH_MAX];
    checkpoint_folder(line->dir, history->versions[0], folder, sizeof folder);
    if (manifest_read(&manifest, folder, &failure) ||
        checkpoint_reader_open(&reader, folder, &manifest, &failure))
        fail_msg("%s", failure.text);
    for (uint32_t p = 0; p < PARTITIONS; p++)
        assert_ok(row_shard_units.restore(cluster->ps[p % cluster->num_ps],
                                          p / cluster->num_ps, reader,
                                          &failure));
    line->num_deltas += manifest.is_delta;
    count_lists(history, reader);
    checkpoint_reader_close(&reader);
    manifest_clear(&manifest);
    return cluster;
}

/* Goes on with RESTORED, from LINE, or without it. A run that resumes begins
 * with the step of its checkpoint, on all partitions. */
static void go_on(struct history *history, const struct line *line,
                  struct cluster *restored) {
    bool resumes = one_in(history, 10);
    close_cluster(resumes ? history->cluster : restored);
    if (!resumes)
        return;
    history->cluster = restored;
    history->copies.whole.step = 0; /* the ps know of none */
    for (unsigned i = 0; i < MOST_PS; i++)
        history->full_only[i] = line == &history->copies;
    for (uint32_t p = 1; p < PARTITIONS; p++)
        history->versions[p] = history->versions[0];
}

static void play(const char *dir, bool apart) {
    struct history history;
    open_history(&history, dir, apart);
    history.cluster = open_cluster(&history, 2);
    for (unsigned round = 0; round < ROUNDS; round++) {
        play_round(&history);
        uint32_t kind = philox_below(&history.random, 9);
        struct line *line = kind < 4 ? &history.copies : &history.checkpoints;
        if (kind >= 7)
            continue;
        save(&history, line,
             kind < 4              ? CAPSTAN__SNAPSHOT__FORM__COPY
             : one_in(&history, 4) ? CAPSTAN__SNAPSHOT__FORM__FULL
                                   : CAPSTAN__SNAPSHOT__FORM__DELTA);
        struct cluster *restored = restore(&history, line);
        expect_same_cluster(history.cluster, restored);
        go_on(&history, line, restored);
    }
    assert_true(history.checkpoints.num_deltas > 10);
    assert_true(history.copies.num_deltas > 3);
    assert_true(history.unchanged > 100 && history.removed > 100);
    close_cluster(history.cluster);
    layout_free(&history.layout);
}

FIXTURE(checkpoint_fixture_setup_folder, checkpoint_fixture_teardown_folder);

TEST(a_delta_and_its_base_are_all_rows) {
    play(*state, false);
}

TEST(also_of_partitions_that_are_updated_apart) {
    play(*state, true);
}
