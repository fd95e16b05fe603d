/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/cluster/cluster_clicks.h"

#include "tests/cluster/cluster_fixture.h"
#include "tests/lib/test.h"

/* Numbers in [0, below). */
static unsigned draw(uint32_t *seed, unsigned below) {
    *seed = *seed * 1664525 + 1013904223;
    return (*seed >> 8) % below;
}

static void write_clicks(const struct cluster_run *run, const char *name,
                         unsigned rows, uint32_t seed) {
    FILE *file = cluster_run_create(run, name);
    fputs("label,user,item,weight\n", file);
    for (unsigned i = 0; i < rows; i++) {
        unsigned user = draw(&seed, CLUSTER_CLICKS_USERS);
        unsigned item = draw(&seed, CLUSTER_CLICKS_ITEMS);
        bool click = (user + item) % 2 == 0;
        fprintf(file, "%d,u%u,i%u,0.%u\n", draw(&seed, 50) ? click : !click,
                user, item, draw(&seed, 10));
    }
    fclose(file);
}

void cluster_clicks_write(const struct cluster_run *run) {
    write_clicks(run, "train.csv", CLUSTER_CLICKS_TRAIN, 1);
    write_clicks(run, "test.csv", CLUSTER_CLICKS_TEST, 2);
}

char *cluster_clicks_exported(struct cluster_run *run, const char *dir,
                              const char *table) {
    cluster_fixture_tool(
        run, 0,
        WORDS("ckpt", "export", textf("--table=%s", table), dir, "rows.csv"));
    FILE *file = fopen(cluster_run_path(run, "rows.csv"), "r");
    assert_non_null(file);
    char *text = calloc(1, 1 << 20);
    assert_non_null(text);
    assert_in_range(fread(text, 1, (1 << 20) - 1, file), 100, (1 << 20) - 2);
    fclose(file);
    return text;
}

void cluster_clicks_expect_same_rows(struct cluster_run *run, const char *a,
                                     const char *b, const char *table) {
    char *left = cluster_clicks_exported(run, a, table),
         *right = cluster_clicks_exported(run, b, table);
    if (strcmp(left, right))
        fail_msg("rows of %s differ between %s and %s", table, a, b);
    free(left);
    free(right);
}
