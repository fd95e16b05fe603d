/* SPDX-License-Identifier: Apache-2.0 */
/* A process that a test has started: a thread takes what it says on its pipes,
 * so that it never waits for the test; waits are for a line of it, or for its
 * end. */
#include "tests/cluster/cluster_process.h"

#include "core/base/time.h"
#include "proto/cluster/cluster.h"
#include "tests/lib/test.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { OUT, ERR, STREAMS };
enum { LONGEST_LINE = 4096, SHOWN = 8192, CMOCKA_TAKES = 1000 };

/* What came on a stream, NUL-ended; a copy goes to the file. */
struct stream {
    int pipe, file;
    char *text;
    size_t size, room;
};

struct cluster_process {
    struct cluster_process *next;
    json_t *json; /* its summary, once asked for */
    char name[64];
    pid_t pid;
    int descriptor; /* pidfd */
    bool reaped;
    int code;
    pthread_t reader;
    int stop;     /* eventfd */
    size_t found; /* of standard error: where the next await begins */
    char line[LONGEST_LINE];
    char words[SHOWN + 1];

    pthread_mutex_t mutex;
    pthread_cond_t more;
    struct stream streams[STREAMS];
    bool ended; /* all streams */
};

/* Reads what is there; false at the end. */
static bool take(struct cluster_process *process, struct stream *stream) {
    char part[4096];
    ssize_t got = read(stream->pipe, part, sizeof part);
    if (got <= 0)
        return false;
    if (write(stream->file, part, (size_t)got) != got)
        return false;
    pthread_mutex_lock(&process->mutex);
    if (stream->size + (size_t)got >= stream->room) {
        stream->room = 2 * stream->room + sizeof part + 1;
        stream->text = realloc(stream->text, stream->room);
        if (!stream->text)
            abort();
    }
    memcpy(stream->text + stream->size, part, (size_t)got);
    stream->size += (size_t)got;
    stream->text[stream->size] = 0;
    pthread_cond_broadcast(&process->more);
    pthread_mutex_unlock(&process->mutex);
    return true;
}

/* Nobody must ever wait because a test does not read. */
static void *read_streams(void *argument) {
    struct cluster_process *process = argument;
    struct pollfd items[STREAMS + 1] = {
        {process->streams[OUT].pipe, POLLIN, 0},
        {process->streams[ERR].pipe, POLLIN, 0},
        {process->stop, POLLIN, 0},
    };
    int open_streams = STREAMS;
    while (open_streams && !items[STREAMS].revents) {
        poll(items, STREAMS + 1, -1);
        for (int i = 0; i < STREAMS; i++)
            if (items[i].revents && !take(process, &process->streams[i])) {
                items[i].fd = -1;
                items[i].revents = 0;
                open_streams--;
            }
    }
    pthread_mutex_lock(&process->mutex);
    process->ended = true;
    pthread_cond_broadcast(&process->more);
    pthread_mutex_unlock(&process->mutex);
    return NULL;
}

static bool describes_cluster(const char *variable) {
    char *name = strndup(variable, strcspn(variable, "="));
    assert_non_null(name);
    bool describes = cluster_hides(name);
    free(name);
    return describes;
}

/* The list is the caller's, what it views is not. */
static char **make_environment(const char *const *more) {
    size_t count = 0, used = 0;
    while (environ[count])
        count++;
    for (size_t i = 0; more && more[i]; i++)
        count++;
    char **list = calloc(count + 1, sizeof *list);
    assert_non_null(list);
    for (size_t i = 0; environ[i]; i++)
        if (!describes_cluster(environ[i]))
            list[used++] = environ[i];
    for (size_t i = 0; more && more[i]; i++)
        list[used++] = (char *)more[i];
    return list;
}

static char **make_command(const char *program, const char *const *arguments) {
    size_t count = 0;
    while (arguments[count])
        count++;
    char **command = calloc(count + 2, sizeof *command);
    assert_non_null(command);
    command[0] = (char *)program;
    memcpy(command + 1, arguments, count * sizeof *command);
    return command;
}

/* In the child, where only system calls are safe. */
static void become(const char *folder, const char *program, char **command,
                   char **environment, const int outputs[STREAMS]) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int nothing = open("/dev/null", O_RDONLY);
    dup2(nothing, STDIN_FILENO);
    dup2(outputs[OUT], STDOUT_FILENO);
    dup2(outputs[ERR], STDERR_FILENO);
    if (!chdir(folder))
        execve(program, command, environment);
    _exit(127);
}

static void open_stream(const struct cluster_run *run,
                        struct cluster_process *process, int which,
                        int *output) {
    static const char *const endings[] = {"out", "err"};
    struct stream *stream = &process->streams[which];
    int ends[2];
    stream->file = open(
        cluster_run_path(run, textf("%s.%s", process->name, endings[which])),
        O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    assert_true(stream->file >= 0);
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    stream->pipe = ends[0];
    stream->text = calloc(1, 1);
    stream->room = 1;
    *output = ends[1];
}

static struct cluster_process *add_process(struct cluster_run *run,
                                           const char *name) {
    struct cluster_process *process = calloc(1, sizeof *process);
    pthread_condattr_t attributes;
    assert_non_null(process);
    snprintf(process->name, sizeof process->name, "%s", name);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&process->more, &attributes);
    pthread_condattr_destroy(&attributes);
    pthread_mutex_init(&process->mutex, NULL);
    process->stop = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    process->next = run->processes;
    run->processes = process;
    return process;
}

static void find_capstan(char program[PATH_MAX]) {
    const char *given = getenv("CAPSTAN");
    if (!realpath(given ? given : "build/capstan", program))
        fail_msg("no program %s: build it, or set CAPSTAN",
                 given ? given : "build/capstan");
}

struct cluster_process *cluster_run_start(struct cluster_run *run,
                                          const char *name,
                                          const char *const *arguments,
                                          const char *const *environment) {
    char program[PATH_MAX];
    find_capstan(program);
    return cluster_run_program(run, name, program, arguments, environment);
}

struct cluster_process *cluster_run_program(struct cluster_run *run,
                                            const char *name,
                                            const char *program,
                                            const char *const *arguments,
                                            const char *const *environment) {
    struct cluster_process *process = add_process(run, name);
    char capstan[PATH_MAX];
    int outputs[STREAMS];
    find_capstan(capstan);
    setenv("CAPSTAN", capstan, 1);
    for (int i = 0; i < STREAMS; i++)
        open_stream(run, process, i, &outputs[i]);
    char **command = make_command(program, arguments);
    char **variables = make_environment(environment);
    process->pid = fork();
    assert_true(process->pid >= 0);
    if (process->pid == 0 && run->network && setns(run->network, CLONE_NEWNET))
        _exit(126);
    if (process->pid == 0)
        become(run->folder, program, command, variables, outputs);
    process->descriptor = pidfd_open(process->pid, 0);
    assert_true(process->descriptor >= 0);
    for (int i = 0; i < STREAMS; i++)
        close(outputs[i]);
    free(command);
    free(variables);
    assert_int_equal(
        pthread_create(&process->reader, NULL, read_streams, process), 0);
    return process;
}

/* Prints the end of what it has said, for who looks for the reason, in parts as
 * long as cmocka's messages may be. */
static void show_words(struct cluster_process *process) {
    const struct stream *errors = &process->streams[ERR];
    pthread_mutex_lock(&process->mutex);
    size_t start = errors->size > SHOWN ? errors->size - SHOWN : 0;
    snprintf(process->words, sizeof process->words, "%s", errors->text + start);
    pthread_mutex_unlock(&process->mutex);
    print_error("%s said:\n", process->name);
    size_t part, left = strlen(process->words);
    for (const char *at = process->words; left; at += part, left -= part) {
        part = left < CMOCKA_TAKES ? left : CMOCKA_TAKES;
        print_error("%.*s", (int)part, at);
    }
}

/* The mutex is held. */
static bool find_line(struct cluster_process *process, const char *text) {
    const struct stream *errors = &process->streams[ERR];
    const char *line = errors->text + process->found;
    for (const char *end; (end = strchr(line, '\n')); line = end + 1) {
        size_t length = (size_t)(end - line);
        snprintf(process->line, sizeof process->line, "%.*s", (int)length,
                 line);
        if (!strstr(process->line, text))
            continue;
        process->found = (size_t)(end + 1 - errors->text);
        return true;
    }
    return false;
}

enum { SLICE_MS = 100 };

static int slices_in(double seconds) {
    return 1 + (int)(1000 * seconds / SLICE_MS);
}

/* Waits for more of PROCESS, whose mutex is held, and counts a slice that has
 * passed without in LEFT: a machine that stands still as a whole, and the
 * process with it, is late by no more than one. False: none is left. */
static bool wait_a_slice(struct cluster_process *process, int *left) {
    int64_t end = time_now() + SLICE_MS * TIME_MS;
    const struct timespec deadline = {end / TIME_S, end % TIME_S};
    if (pthread_cond_timedwait(&process->more, &process->mutex, &deadline))
        --*left;
    return *left > 0;
}

const char *cluster_run_await_or_end(struct cluster_process *process,
                                     const char *text, double seconds) {
    int left = slices_in(seconds);
    pthread_mutex_lock(&process->mutex);
    bool found = find_line(process, text), late = false;
    while (!found && !process->ended && !late) {
        late = !wait_a_slice(process, &left);
        found = find_line(process, text);
    }
    pthread_mutex_unlock(&process->mutex);
    if (late && !found) {
        show_words(process);
        fail_msg("%s: no line with \"%s\" in time", process->name, text);
    }
    return found ? process->line : NULL;
}

const char *cluster_run_await(struct cluster_process *process, const char *text,
                              double seconds) {
    const char *line = cluster_run_await_or_end(process, text, seconds);
    if (!line) {
        show_words(process);
        fail_msg("%s: no line with \"%s\" before it ended", process->name,
                 text);
    }
    return line;
}

void cluster_run_await_both(struct cluster_process *process, const char *one,
                            const char *other, double seconds) {
    size_t start = process->found, end;
    cluster_run_await(process, one, seconds);
    end = process->found;
    process->found = start;
    cluster_run_await(process, other, seconds);
    if (process->found < end)
        process->found = end;
}

void cluster_run_signal(const struct cluster_process *process, int number) {
    if (!process->reaped)
        kill(process->pid, number);
}

int cluster_run_pid(const struct cluster_process *process) {
    return process->pid;
}

static void reap(struct cluster_process *process) {
    int status;
    if (process->reaped || waitpid(process->pid, &status, 0) != process->pid)
        return;
    process->reaped = true;
    process->code =
        WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/* Reads on to the end of what an ended process has written: with a deadline of
 * its own, as it may have ended in the last moment of that of its end. */
static bool await_streams(struct cluster_process *process) {
    int left = slices_in(CLUSTER_RUN_DEADLINE);
    pthread_mutex_lock(&process->mutex);
    while (!process->ended && wait_a_slice(process, &left))
        continue;
    bool ended = process->ended;
    pthread_mutex_unlock(&process->mutex);
    return ended;
}

int cluster_run_exit(struct cluster_process *process, double seconds) {
    struct pollfd item = {process->descriptor, POLLIN, 0};
    if (process->reaped)
        return process->code;
    int left = slices_in(seconds), ready;
    while (!(ready = poll(&item, 1, SLICE_MS)) && --left > 0)
        continue;
    if (ready != 1) {
        show_words(process);
        fail_msg("%s did not end within %g s", process->name, seconds);
    }
    reap(process);
    if (!await_streams(process)) {
        show_words(process);
        fail_msg("%s ended, but left a process with its output", process->name);
    }
    return process->code;
}

void cluster_run_expect(struct cluster_process *process, int code,
                        double seconds) {
    int found = cluster_run_exit(process, seconds);
    if (found != code) {
        show_words(process);
        fail_msg("%s ended with %d, not %d", process->name, found, code);
    }
}

void cluster_run_interrupt(struct cluster_process *process, const char *text) {
    cluster_run_await(process, text, CLUSTER_RUN_DEADLINE);
    cluster_run_signal(process, SIGINT);
    cluster_run_expect(process, 130, CLUSTER_RUN_DEADLINE);
    assert_string_equal(cluster_run_output(process), "");
}

const char *cluster_run_output(const struct cluster_process *process) {
    return process->streams[OUT].text;
}

const char *cluster_run_errors(const struct cluster_process *process) {
    return process->streams[ERR].text;
}

const json_t *cluster_run_json(struct cluster_process *process) {
    const struct stream *output = &process->streams[OUT];
    size_t end = output->size;
    while (end && output->text[end - 1] == '\n')
        end--;
    size_t start = end;
    while (start && output->text[start - 1] != '\n')
        start--;
    if (process->json)
        return process->json;
    process->json = json_loadb(output->text + start, end - start, 0, NULL);
    if (!json_is_object(process->json))
        fail_msg("%s wrote no JSON object last, but:\n%s", process->name,
                 output->text);
    return process->json;
}

struct cluster_process *cluster_process_end(struct cluster_process *process) {
    struct cluster_process *next = process->next;
    cluster_run_signal(process, SIGKILL);
    if (process->pid > 0)
        reap(process);
    if (process->reader) {
        eventfd_write(process->stop, 1);
        pthread_join(process->reader, NULL);
        close(process->descriptor);
    }
    for (int i = 0; i < STREAMS; i++) {
        if (process->streams[i].text) {
            close(process->streams[i].pipe);
            close(process->streams[i].file);
        }
        free(process->streams[i].text);
    }
    json_decref(process->json);
    close(process->stop);
    pthread_mutex_destroy(&process->mutex);
    pthread_cond_destroy(&process->more);
    free(process);
    return next;
}
