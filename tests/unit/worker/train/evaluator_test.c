/* SPDX-License-Identifier: Apache-2.0 */
#define STATE struct fixture *fixture

#include "worker/train/evaluator.h"

#include "core/store/checkpoint.h"
#include "core/store/dir_lock.h"
#include "core/store/manifest.h"
#include "core/store/shard_file.h"
#include "proto/job/job.h"
#include "tests/cluster/cluster_run.h"
#include "tests/lib/assert_fails.h"
#include "tests/lib/test.h"
#include "worker/data/idx_dataset.h"
#include "worker/models/model.h"

#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { IN = 64, HIDDEN = 16, OUT = 10, MAX_LINES = 8 };

struct fixture {
    struct cluster_run *run; /* its folder has the data */
    const char *dir;
    struct job *job;
    struct layout *layout;
    struct evaluator_settings settings;
    struct failure why;
    json_t *lines[MAX_LINES]; /* what the evaluator has printed */
    unsigned num_lines;
};

static void must(enum status status, const struct failure *why) {
    if (status)
        fail_msg("%s", why->text);
}

static void load_job(struct fixture *fixture, const char *changes) {
    struct job_source source = {.models = &model_schemas,
                                .path =
                                    cluster_run_path(fixture->run, "job.json")};
    job_free(&fixture->job);
    cluster_run_job(fixture->run, changes);
    must(job_load(&fixture->job, &source, NULL, &fixture->why), &fixture->why);
}

static int set_up(void **state) {
    struct fixture *fixture = calloc(1, sizeof *fixture);
    void *run;
    if (cluster_run_setup(&run))
        return -1;
    fixture->run = run;
    fixture->dir = cluster_run_path(run, "checkpoint");
    load_job(fixture, NULL);
    must(model_layout(&fixture->layout, &fixture->job->model, NULL,
                      &fixture->why),
         &fixture->why);
    fixture->settings = (struct evaluator_settings){
        .dir = fixture->dir,
        .timeout = 60,
        .json = true,
        .interrupts = eventfd(0, EFD_NONBLOCK),
    };
    *state = fixture;
    return 0;
}

static int tear_down(void **state) {
    struct fixture *fixture = *state;
    void *run = fixture->run;
    for (unsigned i = 0; i < fixture->num_lines; i++)
        json_decref(fixture->lines[i]);
    job_free(&fixture->job);
    layout_free(&fixture->layout);
    close(fixture->settings.interrupts);
    free(fixture);
    return cluster_run_teardown(&run);
}

FIXTURE(set_up, tear_down);

static void shard_path(const struct fixture *fixture, uint64_t step,
                       char path[PATH_MAX]) {
    char folder[PATH_MAX / 2];
    checkpoint_folder(fixture->dir, step, folder, sizeof folder);
    snprintf(path, PATH_MAX, "%s/ps-0.mdb", folder);
}

static void write_shard(const struct fixture *fixture, uint64_t step,
                        struct shard_info *info) {
    const struct layout *layout = fixture->layout;
    struct shard_writer *writer;
    char path[PATH_MAX];
    shard_path(fixture, step, path);
    must(shard_writer_open(&writer, path, 1 << 20, 64, &failure), &failure);
    for (uint32_t b = 0; b < layout->num_blocks; b++) {
        float floats[IN * HIDDEN];
        struct shard_key key = {.parameter = layout->blocks[b].parameter,
                                .offset = layout->blocks[b].offset};
        layout_init_block(layout, b, step, floats);
        must(shard_writer_put(writer, key, floats,
                              layout->blocks[b].elements * sizeof *floats,
                              &failure),
             &failure);
    }
    must(shard_writer_finish(&writer, info, &failure), &failure);
}

/* Weights are the initial ones of seed STEP; HOST: "" or another one. */
static void write_checkpoint(const struct fixture *fixture, uint64_t step,
                             bool final, const char *host) {
    struct shard_info file = {0};
    char folder[PATH_MAX];
    struct manifest_rule rule = {.name = "SGD"};
    uint32_t *block_file =
        calloc(fixture->layout->num_blocks, sizeof *block_file);
    must(checkpoint_make_folder(fixture->dir, step, &failure), &failure);
    checkpoint_folder(fixture->dir, step, folder, sizeof folder);
    write_shard(fixture, step, &file);
    snprintf(file.host, sizeof file.host, "%s", host);
    struct manifest manifest = {
        .run = 1,
        .step = step,
        .final = final,
        .job = fixture->job->text,
        .num_rules = 1,
        .rules = &rule,
        .layout = fixture->layout,
        .num_files = 1,
        .files = &file,
        .block_file = block_file,
    };
    must(manifest_write(&manifest, folder, &failure), &failure);
    free(block_file);
}

/* Standard output goes to a file meanwhile. */
static enum status evaluate(struct fixture *fixture) {
    const char *path = cluster_run_path(fixture->run, "printed");
    fflush(stdout);
    int saved = dup(STDOUT_FILENO);
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    assert_true(saved >= 0 && file >= 0);
    dup2(file, STDOUT_FILENO);
    enum status status = evaluator_run(&fixture->settings, &fixture->why);
    fflush(stdout);
    dup2(saved, STDOUT_FILENO);
    close(saved);
    close(file);
    FILE *printed = fopen(path, "r");
    json_t *line;
    while ((line = json_loadf(printed, JSON_DISABLE_EOF_CHECK, NULL))) {
        assert_true(fixture->num_lines < MAX_LINES);
        fixture->lines[fixture->num_lines++] = line;
    }
    fclose(printed);
    return status;
}

/* y[out] = w[out, in] x + b, in double. */
static void multiply(const float *w, const float *b, const double *x, double *y,
                     unsigned out, unsigned in) {
    for (unsigned o = 0; o < out; o++) {
        y[o] = b[o];
        for (unsigned i = 0; i < in; i++)
            y[o] += (double)w[o * in + i] * x[i];
    }
}

/* The loss of one sample of LABEL; *HIT: the label has the largest output. */
static double oracle_sample(float *const *weights, const float *pixels,
                            uint32_t label, bool *hit) {
    double x[IN], h[HIDDEN], z[OUT], sum = 0;
    for (unsigned i = 0; i < IN; i++)
        x[i] = pixels[i];
    multiply(weights[0], weights[1], x, h, HIDDEN, IN);
    for (unsigned i = 0; i < HIDDEN; i++)
        h[i] = h[i] > 0 ? h[i] : 0;
    multiply(weights[2], weights[3], h, z, OUT, HIDDEN);
    *hit = true;
    for (unsigned o = 0; o < OUT; o++) {
        sum += exp(z[o]);
        *hit &= z[o] <= z[label];
    }
    return log(sum) - z[label];
}

/* What the evaluator must find for the weights of seed STEP. */
static void oracle(const struct fixture *fixture, uint64_t step,
                   double *accuracy, double *loss) {
    const struct layout *layout = fixture->layout;
    struct dataset *test;
    float *weights[4];
    for (uint32_t p = 0; p < layout->num_parameters; p++)
        weights[p] = calloc(layout->parameters[p].elements, sizeof(float));
    for (uint32_t b = 0; b < layout->num_blocks; b++)
        layout_init_block(layout, b, step,
                          weights[layout->blocks[b].parameter] +
                              layout->blocks[b].offset);
    must(idx_dataset_load(&test, fixture->job->data.test.paths[0],
                          fixture->job->data.test.paths[1], NULL, &failure),
         &failure);
    *accuracy = *loss = 0;
    for (uint32_t i = 0; i < test->count; i++) {
        float pixels[IN];
        bool hit;
        uint32_t label = (uint32_t)idx_dataset_sample(
            (const struct idx_dataset *)test, i, pixels);
        *loss += oracle_sample(weights, pixels, label, &hit) / test->count;
        *accuracy += (double)hit / test->count;
    }
    dataset_free(&test);
    for (uint32_t p = 0; p < layout->num_parameters; p++)
        free(weights[p]);
}

static void expect_line(const struct fixture *fixture, unsigned i,
                        uint64_t step, bool final) {
    double accuracy, loss;
    assert_true(i < fixture->num_lines);
    json_t *line = fixture->lines[i];
    oracle(fixture, step, &accuracy, &loss);
    assert_int_equal(json_integer_value(json_object_get(line, "step")), step);
    assert_int_equal(json_is_true(json_object_get(line, "final")), final);
    assert_true(fabs(json_real_value(json_object_get(line, "test_accuracy")) -
                     accuracy) <= 1e-9);
    assert_true(fabs(json_real_value(json_object_get(line, "test_loss")) -
                     loss) <= 1e-5);
}

static void expect_words(const struct fixture *fixture, const char *text) {
    assert_contains(fixture->why.text, text);
}

TEST(each_checkpoint_is_measured_up_to_the_final_one) {
    write_checkpoint(fixture, 20, true, "");
    write_checkpoint(fixture, 10, false, "");
    must(evaluate(fixture), &fixture->why);
    assert_int_equal(fixture->num_lines, 2);
    expect_line(fixture, 0, 10, false);
    expect_line(fixture, 1, 20, true);
}

/* A run of more epochs went on from it. */
TEST(a_final_checkpoint_followed_by_another_is_not_the_end) {
    fixture->settings.timeout = 0.1;
    load_job(fixture, "{\"checkpoint\": {\"every_seconds\": 0.05}}");
    write_checkpoint(fixture, 10, true, "");
    write_checkpoint(fixture, 20, false, "");
    assert_fails(evaluate(fixture), &fixture->why, FAILURE_NO_NEW_CHECKPOINT);
    expect_words(fixture, fixture->dir);
    assert_int_equal(fixture->num_lines, 2);
}

/* It goes on from the final checkpoint that it found, and will write others. */
TEST(a_final_checkpoint_is_not_the_end_while_a_run_uses_the_folder) {
    struct dir_lock *lock;
    fixture->settings.timeout = 0.1;
    load_job(fixture, "{\"checkpoint\": {\"every_seconds\": 0.05}}");
    write_checkpoint(fixture, 10, true, "");
    struct dir_lock_settings settings = {
        .dir = fixture->dir, .run = 2, .owner = "the chief"};
    must(dir_lock_acquire(&lock, &settings, &fixture->why), &fixture->why);
    assert_fails(evaluate(fixture), &fixture->why, FAILURE_NO_NEW_CHECKPOINT);
    assert_int_equal(fixture->num_lines, 1);
    dir_lock_release(&lock);
    must(evaluate(fixture), &fixture->why);
}

static void damage(const struct fixture *fixture, uint64_t step) {
    char path[PATH_MAX], byte;
    shard_path(fixture, step, path);
    int file = open(path, O_RDWR);
    assert_true(file >= 0);
    assert_int_equal(pread(file, &byte, 1, 5000), 1);
    byte ^= 1;
    assert_int_equal(pwrite(file, &byte, 1, 5000), 1);
    close(file);
}

TEST(a_damaged_checkpoint_is_skipped) {
    write_checkpoint(fixture, 10, false, "");
    write_checkpoint(fixture, 20, true, "");
    damage(fixture, 10);
    must(evaluate(fixture), &fixture->why);
    assert_int_equal(fixture->num_lines, 1);
    expect_line(fixture, 0, 20, true);
}

TEST(a_damaged_final_checkpoint_is_a_failure) {
    write_checkpoint(fixture, 10, true, "");
    damage(fixture, 10);
    assert_fails(evaluate(fixture), &fixture->why, FAILURE_CHECKPOINT_DAMAGED);
    expect_words(fixture, "the final checkpoint: ");
    expect_words(fixture, "ps-0.mdb");
}

TEST(a_host_that_holds_the_files_is_named) {
    char path[PATH_MAX];
    write_checkpoint(fixture, 10, true, "host-b");
    shard_path(fixture, 10, path);
    assert_int_equal(unlink(path), 0);
    assert_fails(evaluate(fixture), &fixture->why,
                 FAILURE_DIRECTORY_NOT_SHARED);
    expect_words(fixture, "on the disk of host host-b alone");
}

TEST(a_job_without_a_test_set_is_reported) {
    load_job(fixture, "{\"data\": {\"test\": null}}");
    write_checkpoint(fixture, 10, true, "");
    assert_fails(evaluate(fixture), &fixture->why, FAILURE_JOB_UNFIT);
    expect_words(fixture, "data.test");
}

/* Of two hosts the data need not lie in the same place. */
TEST(missing_data_is_reported_with_its_path) {
    write_checkpoint(fixture, 10, true, "");
    assert_int_equal(unlink(fixture->job->data.test.paths[1]), 0);
    assert_fails(evaluate(fixture), &fixture->why, FAILURE_DATA_UNREADABLE);
    expect_words(fixture, "data.test: /");
    expect_words(fixture, fixture->job->data.test.paths[1]);
}

TEST(the_evaluator_waits_for_its_folder) {
    fixture->settings.timeout = 0.1;
    assert_fails(evaluate(fixture), &fixture->why, FAILURE_NO_NEW_CHECKPOINT);
    expect_words(fixture, fixture->dir);
}

TEST(a_missing_folder_option_is_named) {
    fixture->settings.dir = NULL;
    assert_fails(evaluate(fixture), &fixture->why, FAILURE_USAGE);
    expect_words(fixture, "--checkpoint-dir");
}

TEST(a_signal_ends_the_evaluator) {
    eventfd_write(fixture->settings.interrupts, SIGTERM);
    assert_fails(evaluate(fixture), &fixture->why, FAILURE_TERMINATED);
    eventfd_write(fixture->settings.interrupts, SIGINT);
    write_checkpoint(fixture, 10, true, "");
    assert_fails(evaluate(fixture), &fixture->why, FAILURE_INTERRUPTED);
}
