/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/bench/bench_baseline.h"

#include "worker/bench/bare_zmq.h"
#include "worker/bench/plain_socket.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>

static void *serve_zmq(void *router) {
    bare_zmq_serve(router);
    return NULL;
}

/* In the child: writes the ports to WRITE_FD, then answers until it is killed.
 * It is a fork of the parent and leaves by _exit; if it fails before that, the
 * parent reads the end of the pipe. */
static void bench_baseline_serve(int write_fd, pid_t parent) {
    struct bench_baseline bench_baseline = {0};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    void *zmq = zmq_ctx_new();
    void *router = bare_zmq_listen(zmq, &bench_baseline.zmq_port);
    int listener = plain_socket_listen(&bench_baseline.plain_port);
    pthread_t thread;
    if (!router || listener < 0 ||
        pthread_create(&thread, NULL, serve_zmq, router) ||
        write(write_fd, &bench_baseline, sizeof bench_baseline) !=
            sizeof bench_baseline)
        _exit(1);
    close(write_fd);
    for (;;)
        plain_socket_serve(listener);
}

enum status bench_baseline_start(struct bench_baseline *bench_baseline,
                                 struct failure *why) {
    int pipe_fds[2];
    pid_t parent = getpid();
    *bench_baseline = (struct bench_baseline){0};
    if (pipe(pipe_fds))
        return status_errno(why, STATUS_FAILED, errno, "no pipe");
    pid_t pid = fork();
    if (pid == 0) {
        close(pipe_fds[0]);
        bench_baseline_serve(pipe_fds[1], parent);
    }
    int error = errno;
    close(pipe_fds[1]);
    ssize_t response =
        pid > 0 ? read(pipe_fds[0], bench_baseline, sizeof *bench_baseline)
                : -1;
    close(pipe_fds[0]);
    bench_baseline->pid = pid;
    if (response == sizeof *bench_baseline)
        return STATUS_OK;
    bench_baseline_stop(bench_baseline);
    return status_errno(why, STATUS_RETRY, pid < 0 ? error : 0,
                        "cannot start the baseline process");
}

void bench_baseline_stop(struct bench_baseline *bench_baseline) {
    if (bench_baseline->pid <= 0)
        return;
    kill(bench_baseline->pid, SIGKILL);
    waitpid(bench_baseline->pid, NULL, 0);
    bench_baseline->pid = 0;
}
