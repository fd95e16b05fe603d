/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/launch_fixture.h"
#include "tests/lib/test.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

int launch_fixture_setup(void **state) {
    struct launch_fixture *set = calloc(1, sizeof *set);
    char path[128];
    if (!set)
        return -1;
    strcpy(set->dir, "/tmp/launch-test-XXXXXX");
    if (!mkdtemp(set->dir))
        return -1;
    snprintf(set->program, sizeof set->program, "%s/capstan", set->dir);
    snprintf(path, sizeof path, "%s/first", set->dir);
    mkfifo(path, 0600);
    *state = set;
    return 0;
}

int launch_fixture_teardown(void **state) {
    struct launch_fixture *set = *state;
    int status = system(textf("rm -rf %s", set->dir));
    free(set);
    return status;
}

void launch_fixture_set_program(struct launch_fixture *set,
                                const char *script) {
    FILE *file = fopen(set->program, "w");
    assert_non_null(file);
    fprintf(file,
            "#!/bin/sh\n"
            "cd %s\n"
            "case $TF_CONFIG in\n"
            "*'\"type\":\"chief\"'*) me=chief ;;\n"
            "*'\"type\":\"ps\"'*) me=ps ;;\n"
            "*) me=worker ;;\n"
            "esac\n"
            "%s\n",
            set->dir, script);
    fclose(file);
    chmod(set->program, 0700);
}

/* Opens NAME in the folder in the place of descriptor FD; the saved one. */
static int divert(struct launch_fixture *set, int fd, const char *name) {
    const char *path = textf("%s/%s", set->dir, name);
    int saved = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    assert_true(saved >= 0 && file >= 0);
    dup2(file, fd);
    close(file);
    return saved;
}

/* Puts the saved descriptor back and reads what was written. */
static void undo(int fd, int saved, char *text, size_t size) {
    ssize_t length = pread(fd, text, size - 1, 0);
    text[length < 0 ? 0 : length] = '\0';
    dup2(saved, fd);
    close(saved);
}

enum status launch_fixture_run_with(struct launch_fixture *set,
                                    struct launch_settings *options) {
    const struct log log = {.role = "local", .index = -1};
    char job[] = "job.json", flag[] = "--set", value[] = "seed=2 3";
    char *const arguments[] = {job, flag, value, NULL};
    options->program = set->program;
    options->run_arguments = arguments;
    options->log = &log;
    fflush(stdout);
    int error = divert(set, STDERR_FILENO, "stderr");
    int output = divert(set, STDOUT_FILENO, "stdout");
    enum status status = launch_run(options, &set->exit_code, &set->why);
    undo(STDOUT_FILENO, output, set->out, sizeof set->out);
    undo(STDERR_FILENO, error, set->log, sizeof set->log);
    return status;
}

enum status launch_fixture_run(struct launch_fixture *set, unsigned num_ps,
                               unsigned num_workers, double seconds) {
    struct launch_settings options = {.num_ps = num_ps,
                                      .num_workers = num_workers,
                                      .grace = seconds,
                                      .stop = seconds};
    return launch_fixture_run_with(set, &options);
}

void launch_fixture_expect_log(const struct launch_fixture *set,
                               const char *text) {
    assert_contains(set->log, text);
}

glob_t launch_fixture_files(const struct launch_fixture *set,
                            const char *pattern) {
    glob_t found;
    glob(textf("%s/%s", set->dir, pattern), 0, NULL, &found);
    return found;
}

size_t launch_fixture_count(const struct launch_fixture *set,
                            const char *pattern) {
    glob_t found = launch_fixture_files(set, pattern);
    size_t count = found.gl_pathc;
    globfree(&found);
    return count;
}
