/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/bench/gpu_cluster.h"

#include "core/base/time.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    LIMIT_S = 600,   /* that a run may take */
    SAMPLE_MS = 100, /* between looks at the GPU */
    MAX_ARGUMENTS = 64,
    WORD = 1024,
    OUTPUT = 1 << 20,
};

struct command {
    char *words[MAX_ARGUMENTS];
    char texts[MAX_ARGUMENTS][WORD];
    unsigned count;
};

static void add(struct command *command, const char *word) {
    if (command->count + 1 == MAX_ARGUMENTS)
        return;
    char *text = command->texts[command->count];
    snprintf(text, WORD, "%s", word);
    command->words[command->count++] = text;
}

static void set(struct command *command, const char *key, const char *value) {
    char text[WORD];
    snprintf(text, sizeof text, "%s=%s", key, value);
    add(command, "--set");
    add(command, text);
}

static void set_number(struct command *command, const char *key,
                       uint64_t value) {
    char text[32];
    snprintf(text, sizeof text, "%llu", (unsigned long long)value);
    set(command, key, text);
}

/* In the child; what it says to people is in LOG. */
static void become(struct command *command, int output, int log) {
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    dup2(output, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
    execv(command->words[0], command->words);
    _exit(127);
}

/* What the child writes, until it closes its output or time is up. */
static bool read_all(char *text, int from, struct gpu_use *use) {
    int64_t end = time_now() + LIMIT_S * TIME_S;
    size_t used = 0;
    while (used + 1 < OUTPUT && time_now() < end) {
        struct pollfd item = {from, POLLIN, 0};
        gpu_use_sample(use);
        if (poll(&item, 1, SAMPLE_MS) <= 0)
            continue;
        ssize_t came = read(from, text + used, OUTPUT - 1 - used);
        if (came <= 0)
            break;
        used += (size_t)came;
    }
    text[used] = 0;
    return time_now() < end;
}

/* The end of what was said is the reason. */
static enum status say_failed(const struct command *command, int log,
                              bool in_time, struct failure *why) {
    char text[1024] = "";
    off_t size = lseek(log, 0, SEEK_END);
    off_t start = size > 1000 ? size - 1000 : 0;
    ssize_t count = pread(log, text, sizeof text - 1, start);
    text[count > 0 ? count : 0] = 0;
    return status_fail(
        why, FAILURE_PROGRAM_FAILED, "%s %s %s:\n%s", command->words[0],
        command->words[1],
        in_time ? "failed" : "has not ended within 600 s and was killed", text);
}

/* Runs COMMAND and reads the object it prints, the caller's. */
static enum status run(json_t **out, struct command *command,
                       struct gpu_use *use, struct failure *why) {
    int ends[2], code = 0;
    FILE *log = tmpfile();
    char *text = malloc(OUTPUT);
    *out = NULL;
    if (!log || !text || pipe2(ends, O_CLOEXEC))
        return status_errno(why, FAILURE_FILE_UNWRITABLE, errno,
                            "no place for a run");
    pid_t pid = fork();
    if (pid == 0)
        become(command, ends[1], fileno(log));
    close(ends[1]);
    bool in_time = pid > 0 && read_all(text, ends[0], use);
    close(ends[0]);
    if (pid > 0 && !in_time)
        kill(pid, SIGKILL);
    if (pid > 0)
        waitpid(pid, &code, 0);
    if (in_time && code == 0)
        *out = json_loads(text, 0, NULL);
    enum status status =
        *out ? STATUS_OK : say_failed(command, fileno(log), in_time, why);
    fclose(log);
    free(text);
    return status;
}

static double number(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

static void read_run(struct gpu_cluster_run *out, const json_t *object) {
    const json_t *times = json_object_get(object, "seconds_per_step");
    *out = (struct gpu_cluster_run){
        .step = 1 / number(object, "steps_per_second"),
        .samples = number(object, "examples_per_second") /
                   number(object, "steps_per_second"),
        .input = number(times, "input"),
        .compute = number(times, "compute"),
        .waiting = number(times, "waiting_for_weights"),
        .update = number(times, "update"),
        .bytes = number(object, "wire_bytes"),
    };
}

enum status gpu_cluster_train(struct gpu_cluster_run *out,
                              const struct gpu_cluster *cluster,
                              const char *lane, uint32_t batch, uint64_t steps,
                              struct failure *why) {
    static const char *const words[] = {"local",     "--json", "--ps",  "1",
                                        "--workers", "1",      "--lane"};
    struct command *command = calloc(1, sizeof *command);
    json_t *object;
    if (!command)
        return status_fail(why, FAILURE_TOO_LITTLE_MEMORY,
                           "no memory for a command");
    add(command, cluster->program);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        add(command, words[i]);
    add(command, lane);
    add(command, cluster->job);
    set(command, "device", cluster->device);
    set(command, "devices", "1"); /* as many as compute alone */
    set_number(command, "steps", steps);
    set_number(command, "train_micro_batch_size_per_gpu", batch);
    if (cluster->tf32)
        set(command, "tf32", "true");
    set(command, "data.drop_last", "true"); /* each step has them all */
    for (unsigned i = 0; i < cluster->num_sets; i++) {
        add(command, "--set");
        add(command, cluster->sets[i]);
    }
    enum status status = run(&object, command, cluster->use, why);
    free(command);
    if (status)
        return status;
    int64_t end = time_now();
    read_run(out, object);
    json_decref(object);
    if (!(fabs(out->samples - batch) <= 1e-3 * batch))
        return status_fail(
            why, FAILURE_PROGRAM_FAILED,
            "a step had %.6g samples and is compared with the computing of "
            "%u: leave batch sizes, gradient_accumulation_steps and "
            "data.drop_last to this program, in JOB and --set",
            out->samples, batch);
    /* Its steps are the last of what it does. */
    int64_t start = end - time_from_seconds(out->step * (double)steps);
    out->gpu_use = gpu_use_mean(cluster->use, start, end);
    return STATUS_OK;
}

enum status gpu_cluster_wire(struct gpu_cluster_wire *out,
                             const struct gpu_cluster *cluster, uint64_t bytes,
                             double seconds, struct failure *why) {
    char size[32], time[32];
    struct command command = {0};
    json_t *object;
    snprintf(size, sizeof size, "%llu", (unsigned long long)bytes);
    snprintf(time, sizeof time, "%.3f", seconds);
    const char *const words[] = {cluster->program,
                                 "bench",
                                 "--json",
                                 "--lane",
                                 "tcp",
                                 "--sizes",
                                 size,
                                 "--repeats",
                                 "3",
                                 "--seconds",
                                 time};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        add(&command, words[i]);
    enum status status = run(&object, &command, cluster->use, why);
    if (status)
        return status;
    const json_t *first = json_array_get(json_object_get(object, "sizes"), 0);
    out->one_way =
        8 * number(json_object_get(json_object_get(first, "push"), "socket"),
                   "gb_s");
    out->both_ways =
        8 *
        number(json_object_get(json_object_get(first, "push_pull"), "socket"),
               "gb_s");
    json_decref(object);
    return STATUS_OK;
}
