/* SPDX-License-Identifier: Apache-2.0 */
/* Weights out of a run and into one, over the wire, between real processes. */
#define STATE struct cluster_run *run

#include "tests/cluster/cluster_run.h"
#include "tests/lib/skip.h"
#include "tests/lib/test.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

static struct cluster_process *start_local(struct cluster_run *run,
                                           const char *name, const char *ps,
                                           const char *workers,
                                           const char *const *sets) {
    const char *arguments[16] = {"local", "--ps",     ps,      "--workers",
                                 workers, "job.json", "--json"};
    for (size_t used = 7; sets && *sets; sets++) {
        arguments[used++] = "--set";
        arguments[used++] = *sets;
    }
    return cluster_run_start(run, name, arguments, NULL);
}

static void run_local(struct cluster_run *run, const char *name, const char *ps,
                      const char *workers, const char *const *sets) {
    cluster_run_expect_soon(start_local(run, name, ps, workers, sets), 0);
}

/* Exports the newest checkpoint below FOLDER/checkpoint, or of another one. */
static void export_checkpoint(struct cluster_run *run, const char *checkpoint,
                              const char *file) {
    cluster_run_expect_soon(
        cluster_run_start(run, "ckpt",
                          WORDS("ckpt", "export", checkpoint, file), NULL),
        0);
}

static char *read_whole(const struct cluster_run *run, const char *name,
                        size_t *size) {
    struct stat about;
    const char *path = cluster_run_path(run, name);
    FILE *file = fopen(path, "r");
    if (!file || stat(path, &about))
        fail_msg("no file %s", path);
    char *bytes = malloc((size_t)about.st_size + 1);
    *size = fread(bytes, 1, (size_t)about.st_size, file);
    fclose(file);
    return bytes;
}

static void expect_same_files(const struct cluster_run *run, const char *a,
                              const char *b) {
    size_t size_a, size_b;
    char *bytes_a = read_whole(run, a, &size_a);
    char *bytes_b = read_whole(run, b, &size_b);
    assert_true(size_a > 4 * (64 * 16 + 16 + 16 * 10 + 10));
    assert_int_equal(size_a, size_b);
    assert_memory_equal(bytes_a, bytes_b, size_a);
    free(bytes_a);
    free(bytes_b);
}

/* Runs SCRIPT with both files as arguments by a Python that has MODULES; the
 * last thing in a test, which is skipped when none has. */
static void compare_by_python(const struct cluster_run *run,
                              const char *modules, const char *script,
                              const char *a, const char *b) {
    static const char *const pythons[] = {"python3", "/usr/bin/python3"};
    char command[4 * PATH_MAX];
    const char *path_a = cluster_run_path(run, a);
    const char *path_b = cluster_run_path(run, b);
    for (size_t i = 0; i < 2; i++) {
        snprintf(command, sizeof command, "%s -c 'import %s' 2>/dev/null",
                 pythons[i], modules);
        if (system(command))
            continue;
        snprintf(command, sizeof command, "%s -c '%s' %s %s", pythons[i],
                 script, path_a, path_b);
        assert_int_equal(system(command), 0);
        return;
    }
    skip_test("no python3 with %s: all else held, it was not read back",
              modules);
}

#define CHECK_SHAPES                                                           \
    "\nimport numpy\n"                                                         \
    "shapes = {\"layer0.weight\": (16, 64), \"layer0.bias\": (16,),\n"         \
    "    \"layer1.weight\": (10, 16), \"layer1.bias\": (10,)}\n"               \
    "assert sorted(a.keys()) == sorted(shapes), a.keys()\n"                    \
    "for n in shapes:\n"                                                       \
    "    assert a[n].shape == shapes[n] and a[n].dtype == numpy.float32\n"     \
    "    assert (a[n] == b[n]).all() and numpy.abs(a[n]).sum() > 0, n\n"

FIXTURE(cluster_run_setup, cluster_run_teardown);

TEST(the_exported_safetensors_is_the_last_checkpoint) {
    cluster_run_job(run, "{\"export\": {\"path\": \"out/m.safetensors\"}}");
    run_local(run, "run", "2", "2", NULL);
    export_checkpoint(run, "checkpoint", "same.safetensors");
    expect_same_files(run, "out/m.safetensors", "same.safetensors");
    compare_by_python(run, "safetensors.numpy",
                      "import sys\nfrom safetensors.numpy import load_file\n"
                      "a, b = map(load_file, sys.argv[1:])" CHECK_SHAPES,
                      "out/m.safetensors", "same.safetensors");
}

/* The archive has times in it, so only its arrays are compared. */
TEST(the_exported_npz_is_the_last_checkpoint) {
    cluster_run_job(run, "{\"export\": {\"path\": \"out/m.npz\"},"
                         " \"strategy\": {\"type\": \"ps\","
                         "                \"staleness\": \"inf\"}}");
    run_local(run, "run", "2", "2", NULL);
    export_checkpoint(run, "checkpoint", "same.npz");
    expect_same_files(run, "out/m.npz", "same.npz");
    compare_by_python(run, "numpy",
                      "import numpy, sys\n"
                      "a, b = map(numpy.load, sys.argv[1:])" CHECK_SHAPES,
                      "out/m.npz", "same.npz");
}

TEST(one_process_exports_its_own_weights) {
    cluster_run_job(run, "{\"export\": {\"path\": \"m.safetensors\"}}");
    cluster_run_expect_soon(
        cluster_run_start(run, "alone", WORDS("run", "job.json"), NULL), 0);
    export_checkpoint(run, "checkpoint", "same.safetensors");
    expect_same_files(run, "m.safetensors", "same.safetensors");
}

TEST(a_run_starts_from_an_exported_file) {
    static const char *const again[] = {"init=m.safetensors", "steps=0",
                                        "checkpoint.dir=other", NULL};
    cluster_run_job(run, "{\"export\": {\"path\": \"m.safetensors\"}}");
    run_local(run, "first", "2", "2", NULL);
    export_checkpoint(run, "checkpoint", "first.safetensors");
    run_local(run, "second", "3", "1", again);
    export_checkpoint(run, "other/", "second.safetensors");
    expect_same_files(run, "first.safetensors", "second.safetensors");
    assert_int_equal(
        access(cluster_run_path(run, "other/step-000000000/manifest.json"),
               F_OK),
        0);
}

TEST(a_checkpoint_takes_precedence_over_init) {
    static const char *const again[] = {"init=none.safetensors", NULL};
    cluster_run_job(run, "{\"export\": {\"path\": \"m.safetensors\"}}");
    run_local(run, "first", "1", "1", NULL);
    struct cluster_process *second =
        start_local(run, "second", "1", "1", again);
    cluster_run_await_soon(second, "init is ignored");
    cluster_run_expect_soon(second, 0);
}

static void expect_words(const struct cluster_process *process,
                         const char *text) {
    assert_contains(cluster_run_errors(process), text);
}

TEST(weights_of_another_shape_are_named) {
    static const char *const other[] = {"init=m.safetensors",
                                        "model.layers=[64,12,10]",
                                        "checkpoint.dir=other", NULL};
    cluster_run_job(run, "{\"export\": {\"path\": \"m.safetensors\"}}");
    run_local(run, "first", "1", "1", NULL);
    struct cluster_process *second =
        start_local(run, "second", "2", "1", other);
    cluster_run_expect_soon(second, 2);
    expect_words(second, "tensor \"layer0.weight\" has shape [16,64], the "
                         "model [12,64]");
}

TEST(a_missing_tensor_is_named) {
    static const char *const other[] = {"init=m.safetensors",
                                        "model.layers=[64,16,10,10]",
                                        "checkpoint.dir=other", NULL};
    cluster_run_job(run, "{\"export\": {\"path\": \"m.safetensors\"}}");
    run_local(run, "first", "1", "1", NULL);
    struct cluster_process *second =
        start_local(run, "second", "2", "1", other);
    cluster_run_expect_soon(second, 2);
    expect_words(second, "has no tensor \"layer2.");
    expect_words(second, "; it has 4: \"layer0.weight\", \"layer0.bias\", "
                         "\"layer1.weight\", \"layer1.bias\". ");
}

/* The run was not for nothing: its last checkpoint is there. */
TEST(a_failed_export_is_reported_and_fails_the_run) {
    const char *path = cluster_run_path(run, "m.safetensors");
    assert_int_equal(mkdir(path, 0700), 0);
    cluster_run_job(run, "{\"export\": {\"path\": \"m.safetensors\"}}");
    struct cluster_process *local = start_local(run, "run", "2", "1", NULL);
    cluster_run_expect_soon(local, 1);
    expect_words(local, "the weights were not exported to ");
    expect_words(local, "m.safetensors: ");
    export_checkpoint(run, "checkpoint", "whole.safetensors");
}

TEST(an_unwritable_folder_is_reported_at_the_start) {
    cluster_run_job(run, "{\"export\": {\"path\": \"/proc/no/m.npz\"}}");
    struct cluster_process *chief =
        cluster_run_start(run, "alone", WORDS("run", "job.json"), NULL);
    cluster_run_expect_soon(chief, 2);
    expect_words(chief, "export.path: cannot make the folder /proc/no: ");
}
