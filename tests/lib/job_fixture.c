/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/job_fixture.h"

#include "tests/lib/test.h"
#include "worker/models/model.h"

#include <fcntl.h>
#include <unistd.h>

const char job_fixture_example[] =
    "{\n"
    "  \"model\": {\"type\": \"mlp\", \"layers\": [784, 512, 512, 10],"
    " \"activation\": \"relu\"},\n"
    "  \"data\": {\n"
    "    \"format\": \"idx\",\n"
    "    \"train\": [\"train-images-idx3-ubyte.gz\","
    " \"train-labels-idx1-ubyte.gz\"],\n"
    "    \"test\":  [\"t10k-images-idx3-ubyte.gz\","
    " \"t10k-labels-idx1-ubyte.gz\"],\n"
    "    \"dir\": \"/usr/share/datasets/fashion-mnist\",\n"
    "    \"shuffle\": true\n"
    "  },\n"
    "  \"seed\": 1,\n"
    "  \"epochs\": 5,\n"
    "  \"train_micro_batch_size_per_gpu\": 64,\n"
    "  \"gradient_accumulation_steps\": 1,\n"
    "  \"gradient_clipping\": 0.0,\n"
    "  \"optimizer\": {\"type\": \"SGD\", \"params\": {\"lr\": 0.05,"
    " \"momentum\": 0.9, \"weight_decay\": 0.0}},\n"
    "  \"scheduler\": {\"type\": \"WarmupDecayLR\", \"params\":"
    " {\"warmup_min_lr\": 0.0, \"warmup_max_lr\": 0.05,"
    " \"warmup_num_steps\": 100, \"total_num_steps\": 4000}},\n"
    "  \"strategy\": {\"type\": \"ps\", \"staleness\": 0},\n"
    "  \"chief\": \"coordinate\",\n"
    "  \"checkpoint\": {\"dir\": \"run/checkpoint\", \"every_steps\": 500,"
    " \"keep\": 3, \"resume\": \"auto\"},\n"
    "  \"tensorboard\": {\"enabled\": true, \"output_path\": \"run/events\","
    " \"job_name\": \"fashion\"},\n"
    "  \"export\": {\"path\": \"outputs/model.safetensors\"},\n"
    "  \"steps_per_print\": 100,\n"
    "  \"timeouts\": {\"join\": 600, \"peer\": 30, \"step\": 1800,"
    " \"grace\": 30, \"stop\": 5}\n"
    "}\n";

const char job_fixture_least[] =
    "{\"model\": {\"layers\": [4, 2]}, \"data\": {\"train\": [\"i\", \"l\"]},"
    " \"steps\": 10, \"train_micro_batch_size_per_gpu\": 8,"
    " \"optimizer\": {\"type\": \"SGD\"}}";

int job_fixture_setup(void **state) {
    struct job_fixture *fixture = calloc(1, sizeof *fixture);
    strcpy(fixture->folder, "/tmp/capstan-job-XXXXXX");
    assert_non_null(mkdtemp(fixture->folder));
    *state = fixture;
    return 0;
}

static void path_of(const struct job_fixture *fixture, const char *name,
                    char *path, size_t size) {
    snprintf(path, size, "%s/%s", fixture->folder, name);
}

int job_fixture_teardown(void **state) {
    struct job_fixture *fixture = *state;
    const char *const names[] = {"job.json", "ds.json", "log"};
    for (unsigned i = 0; i < 3; i++) {
        char path[128];
        path_of(fixture, names[i], path, sizeof path);
        unlink(path);
    }
    rmdir(fixture->folder);
    job_free(&fixture->job);
    free(fixture);
    return 0;
}

void job_fixture_write(const struct job_fixture *fixture, const char *name,
                       const char *text) {
    char path[128];
    path_of(fixture, name, path, sizeof path);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

/* Standard error, where the log goes, into FOLDER/log and back. */
static int catch_log(const struct job_fixture *fixture) {
    char path[128];
    path_of(fixture, "log", path, sizeof path);
    int kept = dup(STDERR_FILENO);
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    dup2(file, STDERR_FILENO);
    close(file);
    return kept;
}

static void release_log(struct job_fixture *fixture, int kept) {
    ssize_t got =
        pread(STDERR_FILENO, fixture->log, sizeof fixture->log - 1, 0);
    fixture->log[got > 0 ? got : 0] = 0;
    dup2(kept, STDERR_FILENO);
    close(kept);
}

enum status job_fixture_load(struct job_fixture *fixture, const char *text,
                             const char *deepspeed,
                             const char *const *overrides) {
    char path[128], theirs[128];
    path_of(fixture, "job.json", path, sizeof path);
    path_of(fixture, "ds.json", theirs, sizeof theirs);
    job_fixture_write(fixture, "job.json", text);
    if (deepspeed)
        job_fixture_write(fixture, "ds.json", deepspeed);
    struct job_source source = {.models = &model_schemas,
                                .path = path,
                                .deepspeed = deepspeed ? theirs : NULL,
                                .overrides = overrides};
    while (overrides && overrides[source.num_overrides])
        source.num_overrides++;
    struct log log;
    log_open(&log, "chief", -1);
    job_free(&fixture->job);
    memset(&fixture->why, 0, sizeof fixture->why);
    int kept = catch_log(fixture);
    enum status status = job_load(&fixture->job, &source, &log, &fixture->why);
    release_log(fixture, kept);
    return status;
}

enum status job_fixture_set(struct job_fixture *fixture, const char *setting) {
    const char *const overrides[] = {setting, NULL};
    return job_fixture_load(fixture, job_fixture_least, NULL, overrides);
}

void job_fixture_expect_loaded(const struct job_fixture *fixture,
                               enum status loaded) {
    if (loaded)
        fail_msg("%s", fixture->why.text);
}

void job_fixture_expect_refused(const struct job_fixture *fixture,
                                enum status loaded, const char *part) {
    assert_fails(loaded, &fixture->why, FAILURE_JOB_INVALID);
    assert_null(fixture->job);
    assert_contains(fixture->why.text, part);
}

void job_fixture_expect_set_refused(struct job_fixture *fixture,
                                    const char *setting, const char *part) {
    job_fixture_expect_refused(fixture, job_fixture_set(fixture, setting),
                               part);
}
