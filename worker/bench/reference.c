/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/bench/reference.h"

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

/* In the child: ports into TELL, then answers until it is killed. It is a copy
 * of the parent and leaves with _exit: the parent, told nothing, reads the end
 * of the pipe. */
static void serve(int tell, pid_t parent) {
    struct reference reference = {0};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    void *zmq = zmq_ctx_new();
    void *router = bare_zmq_listen(zmq, &reference.zmq_port);
    int listener = plain_socket_listen(&reference.plain_port);
    pthread_t thread;
    if (!router || listener < 0 ||
        pthread_create(&thread, NULL, serve_zmq, router) ||
        write(tell, &reference, sizeof reference) != sizeof reference)
        _exit(1);
    close(tell);
    for (;;)
        plain_socket_serve(listener);
}

enum status reference_start(struct reference *reference, struct failure *why) {
    int ends[2];
    pid_t parent = getpid();
    *reference = (struct reference){0};
    if (pipe(ends))
        return status_errno(why, STATUS_FAILED, errno, "no pipe");
    pid_t pid = fork();
    if (pid == 0) {
        close(ends[0]);
        serve(ends[1], parent);
    }
    int error = errno;
    close(ends[1]);
    ssize_t told = pid > 0 ? read(ends[0], reference, sizeof *reference) : -1;
    close(ends[0]);
    reference->pid = pid;
    if (told == sizeof *reference)
        return STATUS_OK;
    reference_stop(reference);
    return status_errno(why, STATUS_RETRY, pid < 0 ? error : 0,
                        "cannot start what the lane is compared with");
}

void reference_stop(struct reference *reference) {
    if (reference->pid <= 0)
        return;
    kill(reference->pid, SIGKILL);
    waitpid(reference->pid, NULL, 0);
    reference->pid = 0;
}
