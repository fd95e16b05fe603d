/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/cluster/cluster_run.h"

#include "commands/launch/port.h"
#include "tests/cluster/cluster_process.h"
#include "tests/lib/checkpoint_fixture.h"
#include "tests/lib/test.h"

#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { SIDE = 8, CLASSES = 10, TRAIN = 600, TEST = 200 };
static const double ROOM = 1 << 29; /* bytes */

/* Bright pixels in a place that the label names, and noise. */
static void write_sample(FILE *images, FILE *labels, uint32_t *seed) {
    unsigned label = 0;
    for (unsigned i = 0; i <= SIDE * SIDE; i++) {
        *seed = *seed * 1664525 + 1013904223;
        unsigned noise = *seed >> 26;
        if (i == 0)
            label = (*seed >> 16) % CLASSES;
        else
            fputc((int)(i % CLASSES == label ? 160 + noise : noise), images);
    }
    fputc((int)label, labels);
}

static void write_number(FILE *file, uint32_t number) {
    for (int shift = 24; shift >= 0; shift -= 8)
        fputc((int)(number >> shift & 0xff), file);
}

FILE *cluster_run_create(const struct cluster_run *run, const char *name) {
    const char *path = cluster_run_path(run, name);
    FILE *file = fopen(path, "w");
    if (!file)
        fail_msg("cannot create %s", path);
    return file;
}

void cluster_run_script(const struct cluster_run *run, const char *name,
                        const char *text) {
    FILE *file = cluster_run_create(run, name);
    fprintf(file, "#!/bin/sh\n%s\n", text);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(chmod(cluster_run_path(run, name), 0755), 0);
}

static void write_set(const struct cluster_run *run, const char *set,
                      uint32_t count, uint32_t seed) {
    char name[64];
    snprintf(name, sizeof name, "%s-images", set);
    FILE *images = cluster_run_create(run, name);
    snprintf(name, sizeof name, "%s-labels", set);
    FILE *labels = cluster_run_create(run, name);
    write_number(images, 0x803);
    write_number(images, count);
    write_number(images, SIDE);
    write_number(images, SIDE);
    write_number(labels, 0x801);
    write_number(labels, count);
    for (uint32_t i = 0; i < count; i++)
        write_sample(images, labels, &seed);
    fclose(images);
    fclose(labels);
}

static bool make_in_memory(char path[PATH_MAX]) {
    static const char memory[] = "/dev/shm";
    struct statvfs room;
    if (statvfs(memory, &room) ||
        (double)room.f_bavail * (double)room.f_frsize < ROOM)
        return false;
    snprintf(path, PATH_MAX, "%s/capstan-test-XXXXXX", memory);
    return mkdtemp(path);
}

static int setup(void **state, bool in_memory) {
    struct cluster_run *run = calloc(1, sizeof *run);
    if (!run)
        return -1;
    run->in_memory = in_memory;
    if (!in_memory || !make_in_memory(run->folder))
        checkpoint_fixture_folder(run->folder);
    write_set(run, "train", TRAIN, 1);
    write_set(run, "test", TEST, 2);
    *state = run;
    return 0;
}

int cluster_run_setup(void **state) {
    return setup(state, false);
}

int cluster_run_setup_in_memory(void **state) {
    return setup(state, true);
}

const char *cluster_run_path(const struct cluster_run *run, const char *name) {
    return textf("%s/%s", run->folder, name);
}

void cluster_run_job(const struct cluster_run *run, const char *changes) {
    json_error_t error;
    json_t *job = json_pack(
        "{s:{s:s, s:[i, i, i]}, s:{s:s, s:[s, s], s:[s, s]}, s:i, s:i, s:i,"
        " s:{s:s, s:{s:f}}, s:{s:s}}",
        "model", "type", "mlp", "layers", SIDE * SIDE, 16, CLASSES, "data",
        "format", "idx", "train", "train-images", "train-labels", "test",
        "test-images", "test-labels", "seed", 1, "epochs", 3,
        "train_micro_batch_size_per_gpu", 10, "optimizer", "type", "SGD",
        "params", "lr", 0.1, "checkpoint", "dir", "checkpoint");
    json_t *more = changes ? json_loads(changes, 0, &error) : json_object();
    if (!more)
        fail_msg("%s: %s", error.text, changes);
    if (json_object_get(more, "steps"))
        json_object_del(job, "epochs");
    if (json_object_get(json_object_get(more, "model"), "type"))
        json_object_del(job, "model");
    json_object_update_recursive(job, more);
    json_decref(more);
    assert_int_equal(
        json_dump_file(job, cluster_run_path(run, "job.json"), JSON_INDENT(2)),
        0);
    json_decref(job);
}

static void describe_task(struct cluster_run *run, const char *type) {
    uint16_t port;
    assert_ok(port_reserve(&port, &run->port_sockets[run->num_port_sockets],
                           &failure));
    run->num_port_sockets++;
    const char *address = textf("127.0.0.1:%u", port);
    if (!json_object_get(run->cluster, type))
        json_object_set_new(run->cluster, type, json_array());
    json_array_append_new(json_object_get(run->cluster, type),
                          json_string(address));
}

void cluster_run_describe(struct cluster_run *run, unsigned num_chiefs,
                          unsigned num_ps, unsigned num_workers) {
    assert_null(run->cluster);
    run->cluster = json_object();
    run->port_sockets = calloc(num_chiefs + num_ps + num_workers, sizeof(int));
    assert_non_null(run->port_sockets);
    for (unsigned i = 0; i < num_chiefs; i++)
        describe_task(run, "chief");
    for (unsigned i = 0; i < num_ps; i++)
        describe_task(run, "ps");
    for (unsigned i = 0; i < num_workers; i++)
        describe_task(run, "worker");
}

struct cluster_process *cluster_run_task(struct cluster_run *run,
                                         const char *type, unsigned index,
                                         const char *const *arguments) {
    return cluster_run_task_program(run, type, index, NULL, arguments);
}

struct cluster_process *cluster_run_task_program(struct cluster_run *run,
                                                 const char *type,
                                                 unsigned index,
                                                 const char *program,
                                                 const char *const *arguments) {
    const char *all[32] = {"run"};
    for (size_t i = 0; arguments && arguments[i]; i++) {
        assert_true(i + 2 < sizeof all / sizeof *all);
        all[i + 1] = arguments[i];
    }
    json_t *config = json_pack("{s:O, s:{s:s, s:i}}", "cluster", run->cluster,
                               "task", "type", type, "index", (int)index);
    char *text = json_dumps(config, JSON_COMPACT);
    const char *variable = textf("TF_CONFIG=%s", text);
    free(text);
    json_decref(config);
    const char *name = textf("%s-%u", type, index);
    const char *environment[] = {variable, NULL};
    return program
               ? cluster_run_program(run, name, program, arguments, environment)
               : cluster_run_start(run, name, all, environment);
}

int cluster_run_teardown(void **state) {
    struct cluster_run *run = *state;
    while (run->processes)
        run->processes = cluster_process_end(run->processes);
    for (unsigned i = 0; i < run->num_port_sockets; i++)
        close(run->port_sockets[i]);
    free(run->port_sockets);
    json_decref(run->cluster);
    checkpoint_fixture_remove(run->folder);
    free(run);
    return 0;
}
