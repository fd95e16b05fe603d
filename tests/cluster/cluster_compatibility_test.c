/* SPDX-License-Identifier: Apache-2.0 */
/* What earlier programs wrote is read, and runs end in the bits that theirs
 * ended in: tests/data/one-hot has checkpoints and an event file of commit
 * fc631b584d90, and what was found in them. Its samples have one pixel of 255,
 * another in each sample of a batch, and its model has one layer: no sum of a
 * matrix product has two terms, so that no processor changes a bit. For any
 * other job: tests/same_bits.sh. */
#include "tests/cluster/cluster_fixture.h"
#include "tests/lib/event_files.h"
#include "tests/lib/test.h"

#include <glob.h>
#include <inttypes.h>
#include <xxhash.h>

#define FP16                                                                   \
    "fp16={\"enabled\": true, \"initial_scale_power\": 24,"                    \
    " \"loss_scale_window\": 4}"
#define RULE(type) "optimizer={\"type\": \"" type "\"}"
#define MOMENTUM                                                               \
    "optimizer={\"type\": \"SGD\", \"params\":"                                \
    " {\"lr\": 0.1, \"momentum\": 0.9}}"

static char recorded[8192];

/* The run's folder is a copy of tests/data/one-hot. */
static int setup(void **state) {
    char source[PATH_MAX];
    if (cluster_run_setup(state))
        return -1;
    assert_non_null(realpath("tests/data/one-hot", source));
    const char *all = textf("%s/.", source);
    const char *const copy[] = {"-r", all, ".", NULL};
    cluster_run_expect_soon(
        cluster_run_program(*state, "copy", "/bin/cp", copy, NULL), 0);
    FILE *file = fopen("tests/data/one-hot/recorded.txt", "r");
    assert_non_null(file);
    recorded[fread(recorded, 1, sizeof recorded - 1, file)] = 0;
    fclose(file);
    return 0;
}

FIXTURE(setup, cluster_run_teardown);

static void expect_recorded(const char *name, const char *value) {
    size_t length = strlen(value);
    while (length && value[length - 1] == ' ')
        length--;
    assert_contains(recorded, textf("\n%s: %.*s\n", name, (int)length, value));
}

/* XXH3-128 of the file PATH. */
static void digest(const char *path, char text[33]) {
    static char bytes[65536];
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    size_t size = fread(bytes, 1, sizeof bytes, file);
    assert_in_range(size, 1, sizeof bytes - 1);
    fclose(file);
    XXH128_hash_t hash = XXH3_128bits(bytes, size);
    snprintf(text, 33, "%016" PRIx64 "%016" PRIx64, hash.high64, hash.low64);
}

/* Of step STEP in DIR as `capstan ckpt export` writes it to FILE. */
static void expect_export(struct cluster_run *run, const char *name,
                          const char *dir, const char *step, const char *file) {
    const char *const export[] = {"ckpt", "export", "--state", "--step",
                                  step,   dir,      file,      NULL};
    char bits[33];
    cluster_fixture_tool(run, 0, export);
    digest(cluster_run_path(run, file), bits);
    expect_recorded(name, bits);
}

static void expect_bits(struct cluster_run *run, const char *name,
                        const char *dir, const char *step) {
    expect_export(run, name, dir, step, "bits.safetensors");
}

TEST(every_kind_of_run_ends_in_the_recorded_bits) {
    static const struct {
        const char *name;
        unsigned num_ps;
        const char *change;
    } cases[] = {
        {"ps", 2, RULE("Adam")},
        {"ps, bf16 on the wire", 2, "wire=bf16"},
        {"ps, bf16", 2, "bf16.enabled=true"},
        {"ps, fp16", 2, FP16},
        {"ps, clipped", 2, "gradient_clipping=0.01"},
        {"ps, accumulated", 2, "gradient_accumulation_steps=2"},
        {"ps, SGD", 2, MOMENTUM},
        {"ps, Adagrad", 2, RULE("Adagrad")},
        {"ps, RMSprop", 2, RULE("RMSprop")},
        {"ps, AdamW", 2, RULE("AdamW")},
        {"ps, Ftrl", 2, RULE("Ftrl")},
        {"all-reduce", 0, RULE("Adam")},
        {"all-reduce, bf16", 0, "bf16.enabled=true"},
        {"all-reduce, fp16", 0, FP16},
        {"all-reduce, ZeRO 2", 0, "zero_optimization.stage=2"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *dir = textf("checkpoint.dir=case-%zu", i);
        CLUSTER_FIXTURE_RUN(*state, cases[i].num_ps, 2, 0, dir,
                            "tensorboard.enabled=false", cases[i].change);
        expect_bits(*state, cases[i].name, strchr(dir, '=') + 1, "20");
    }
}

/* From step 20 to 40, and what is there of step 20 stays as it was. */
static void resume(struct cluster_run *run, const char *dir, unsigned num_ps,
                   const char *const *changes) {
    char name[64], set[64];
    const char *all[8] = {"steps=40", set};
    uint64_t steps[4];
    for (size_t i = 0; changes[i]; i++)
        all[i + 2] = changes[i];
    assert_int_equal(cluster_fixture_checkpoints(run, dir, steps, 4), 1);
    assert_int_equal(steps[0], 20);
    snprintf(name, sizeof name, "%s at 20", dir);
    expect_bits(run, name, dir, "20");
    snprintf(set, sizeof set, "checkpoint.dir=%s", dir);
    cluster_fixture_expect_logged(cluster_fixture_run(run, num_ps, 2, 0, all),
                                  "resuming from ");
    assert_int_equal(cluster_fixture_checkpoints(run, dir, steps, 4), 2);
    expect_bits(run, name, dir, "20");
    snprintf(name, sizeof name, "%s at 40", dir);
    expect_bits(run, name, dir, "40");
}

TEST(a_recorded_checkpoint_of_ps_resumes_to_the_recorded_bits) {
    expect_export(*state, "ps at 20 as npz", "ps", "20", "bits.npz");
    resume(*state, "ps", 2, (const char *[]){NULL});
}

TEST(so_does_one_of_all_reduce_in_fp16) {
    resume(*state, "allreduce", 0, WORDS(FP16, MOMENTUM));
}

static void expect_events(const char *folder) {
    static const char *const tags[] = {
        "train/loss", "train/learning_rate", "train/examples_per_second",
        "time/input", "time/compute",        "time/waiting_for_weights",
        "test/loss",  "test/accuracy"};
    for (size_t i = 0; i < sizeof tags / sizeof *tags; i++)
        expect_recorded(tags[i], event_files_text(folder, tags[i]));
}

TEST(a_recorded_event_file_is_gone_on_with_and_left_as_it_is) {
    char before[33], after[33];
    glob_t file;
    const char *folder = cluster_run_path(*state, "events");
    assert_int_equal(glob(textf("%s/*", folder), 0, NULL, &file), 0);
    assert_int_equal(file.gl_pathc, 1);
    digest(file.gl_pathv[0], before);
    expect_events(folder);
    CLUSTER_FIXTURE_RUN(*state, 2, 2, 0, "steps=40", "checkpoint.dir=ps");
    digest(file.gl_pathv[0], after);
    assert_string_equal(before, after);
    globfree(&file);
    expect_recorded("train/loss to 40", event_files_text(folder, "train/loss"));
}
