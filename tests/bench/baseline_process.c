/* SPDX-License-Identifier: Apache-2.0 */
/* capstan-bench.so: a plain socket and bare libzmq, beside which `capstan
 * bench` measures. A child process of this host answers both; it ends with this
 * one. */
#include "commands/measure/baselines.h"
#include "tests/bench/bare_zmq.h"
#include "tests/bench/plain_socket.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>

extern const struct baselines_ops capstan_baselines;

struct ports {
    uint16_t plain, zmq;
};

struct baseline_process {
    struct baselines baselines;
    pid_t pid;
    struct ports ports;
    /* Opened by the first iteration: */
    struct plain_socket *plain;
    void *zmq;
    struct bare_zmq *bare;
};

static void *serve_zmq(void *router) {
    bare_zmq_serve(router);
    return NULL;
}

/* In the child: writes the ports to WRITE_FD, then answers until it is killed.
 * It is a fork of the parent and leaves by _exit; if it fails before that, the
 * parent reads the end of the pipe. */
static void baseline_process_serve(int write_fd, pid_t parent) {
    struct ports ports = {0};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    void *zmq = zmq_ctx_new();
    void *router = bare_zmq_listen(zmq, &ports.zmq);
    int listener = plain_socket_listen(&ports.plain);
    pthread_t thread;
    if (!router || listener < 0 ||
        pthread_create(&thread, NULL, serve_zmq, router) ||
        write(write_fd, &ports, sizeof ports) != sizeof ports)
        _exit(1);
    close(write_fd);
    for (;;)
        plain_socket_serve(listener);
}

static enum status baseline_process_start(struct baseline_process *process,
                                          struct failure *why) {
    int pipe_fds[2];
    pid_t parent = getpid();
    if (pipe(pipe_fds))
        return status_errno(why, FAILURE_SYSTEM_REFUSED, errno, "no pipe");
    process->pid = fork();
    if (process->pid == 0) {
        close(pipe_fds[0]);
        baseline_process_serve(pipe_fds[1], parent);
    }
    int error = errno;
    close(pipe_fds[1]);
    ssize_t response = process->pid > 0 ? read(pipe_fds[0], &process->ports,
                                               sizeof process->ports)
                                        : -1;
    close(pipe_fds[0]);
    return response == sizeof process->ports
               ? STATUS_OK
               : status_errno(why, FAILURE_SYSTEM_BUSY,
                              process->pid < 0 ? error : 0,
                              "cannot start the baseline process");
}

static void baseline_process_close(struct baselines **where) {
    struct baseline_process *process = (struct baseline_process *)*where;
    *where = NULL;
    if (!process)
        return;
    plain_socket_close(&process->plain);
    bare_zmq_close(&process->bare);
    if (process->zmq)
        zmq_ctx_term(process->zmq);
    if (process->pid > 0) {
        kill(process->pid, SIGKILL);
        waitpid(process->pid, NULL, 0);
    }
    free(process);
}

static enum status baseline_process_open(struct baselines **out,
                                         struct failure *why) {
    struct baseline_process *process = calloc(1, sizeof *process);
    *out = NULL;
    if (!process)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for baselines");
    process->baselines.ops = &capstan_baselines;
    enum status status = baseline_process_start(process, why);
    *out = &process->baselines;
    if (status)
        baseline_process_close(out);
    return status;
}

static enum status baseline_process_connect(struct baseline_process *process,
                                            struct failure *why) {
    enum status status =
        plain_socket_open(&process->plain, process->ports.plain, why);
    if (status)
        return status;
    process->zmq = zmq_ctx_new();
    return process->zmq ? bare_zmq_open(&process->bare, process->zmq,
                                        process->ports.zmq, why)
                        : status_errno(why, FAILURE_SYSTEM_REFUSED, errno,
                                       "cannot start ZeroMQ");
}

static enum status baseline_process_run(struct baselines *baselines,
                                        enum baseline baseline,
                                        struct bench_iteration *iteration,
                                        struct failure *why) {
    struct baseline_process *process = (struct baseline_process *)baselines;
    enum status status = STATUS_OK;
    if (!process->bare)
        status = baseline_process_connect(process, why);
    if (status)
        return status;
    return baseline == BASELINE_SOCKET
               ? plain_socket_run(process->plain, iteration, why)
               : bare_zmq_run(process->bare, iteration, why);
}

/* Needs nothing but libzmq, without which it could not be opened. */
static enum status baseline_process_check(struct failure *why) {
    (void)why;
    return STATUS_OK;
}

#define TEXT(number) #number
#define DOTTED(major, minor, patch) TEXT(major) "." TEXT(minor) "." TEXT(patch)

__attribute__((visibility("default")))
const struct baselines_ops capstan_baselines = {
    .head = {.abi = BASELINES_ABI,
             .name = "bench",
             .version = DOTTED(ZMQ_VERSION_MAJOR, ZMQ_VERSION_MINOR,
                               ZMQ_VERSION_PATCH),
             .check = baseline_process_check},
    .open = baseline_process_open,
    .close = baseline_process_close,
    .run = baseline_process_run,
};
