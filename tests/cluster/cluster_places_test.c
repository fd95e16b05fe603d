/* SPDX-License-Identifier: Apache-2.0 */
/* Places in long files: runs that go on behind the first mark of an index, in
 * plain and packed files. */
#include "tests/cluster/cluster_fixture.h"

#include "tests/lib/example_message.h"
#include "tests/lib/file_bytes.h"
#include "tests/lib/test.h"

enum { RECORDS = 72000 };

#define JOB                                                                    \
    "\"model\": {\"layers\": [1, 8, 1], \"loss\": \"mse\"}, \"epochs\": 2,"    \
    " \"train_micro_batch_size_per_gpu\": 500, \"features\": {\"x\":"          \
    " {\"type\": \"numeric\"}}, \"data\": {\"shuffle_buffer\": 1000, "

/* The same records. */
static const struct {
    const char *name, *job;
} forms[] = {{"long.csv", "{" JOB "\"format\": \"csv\", \"header\": true,"
                          " \"train\": \"long.csv\", \"test\": \"long.csv\"}}"},
             {"long.tfrecord", "{" JOB "\"format\": \"tfrecord\","
                               " \"test\": \"long.tfrecord\"}}"}};

static void write_forms(const struct cluster_run *run) {
    uint32_t seed = 5;
    FILE *csv = cluster_run_create(run, forms[0].name),
         *tfrecord = cluster_run_create(run, forms[1].name);
    fputs("x,label\n", csv);
    for (unsigned i = 0; i < RECORDS; i++) {
        struct example_message features = {.size = 0}, example = {.size = 0};
        seed = seed * 1664525 + 1013904223;
        float x = (float)((seed >> 8) % 1024) / 1024;
        float label = (float)((seed >> 20) % 10);
        fprintf(csv, "%.10g,%.0f\n", (double)x, (double)label);
        example_message_put_floats(&features, "x", &x, 1);
        example_message_put_floats(&features, "label", &label, 1);
        example_message_put_part(&example, 1, features.bytes, features.size);
        example_message_write(tfrecord, &example);
    }
    assert_int_equal(fclose(csv) | fclose(tfrecord), 0);
}

/* Trains job.json from FOLDER/data to an epoch's end, then from the checkpoint
 * of step 70 over it to that of FOLDER/whole. Each trainer has every other
 * record: after 70 rounds of 500 the next ones are 70,000 and 70,001, behind
 * the index's mark at 65,536. */
static struct cluster_process *resume_within(struct cluster_run *run,
                                             const char *dir) {
    const char *saved = textf("checkpoint.dir=%s", dir);
    CLUSTER_FIXTURE_RUN(run, 1, 2, 0, "data.train=data", saved, "epochs=1",
                        "checkpoint.every_steps=70", "checkpoint.keep=0");
    struct cluster_process *resumed = CLUSTER_FIXTURE_RUN(
        run, 2, 2, 0, "data.train=data", saved, "checkpoint.resume=70");
    cluster_fixture_expect_logged(resumed, "steps 70 to 144");
    cluster_fixture_expect_same_checkpoints(run, "whole", dir);
    return resumed;
}

TEST_WITH(cluster_run_setup, cluster_run_teardown,
          a_resumed_run_finds_its_place_also_in_packed_files) {
    static file_bytes_writer *const writers[] = {
        file_bytes_write, file_bytes_gzip, file_bytes_zstd};
    struct cluster_run *run = *state;
    const char *path;
    char dir[16];
    write_forms(run);
    const char *data = cluster_run_path(run, "data");
    for (int i = 0; i < 2 * 3; i++) {
        int form = i / 3, writer = i % 3;
        cluster_run_job(run, forms[form].job);
        if (!i)
            CLUSTER_FIXTURE_RUN(run, 1, 2, 0, "checkpoint.dir=whole");
        path = cluster_run_path(run, forms[form].name);
        file_bytes_copy(path, data, writers[writer]);
        snprintf(dir, sizeof dir, "dir-%d", i);
        struct cluster_process *resumed = resume_within(run, dir);
        if (cluster_fixture_has_logged(
                resumed, "data: cannot be entered in the middle, so it is read "
                         "from its begin to record 7000") != (writer > 0))
            fail_msg("%s by writer %d: is read again: %s", forms[form].name,
                     writer, writer ? "no" : "yes");
    }
}
