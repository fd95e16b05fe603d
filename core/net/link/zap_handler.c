/* SPDX-License-Identifier: Apache-2.0 */
#include "core/net/link/zap_handler.h"

#include "core/base/time.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <sodium.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <zmq.h>

#define ENDPOINT "inproc://zeromq.zap.01"
#define VERSION "1.0"
static const int64_t REFUSED_WITHIN = 5 * TIME_S;

struct zap_handler {
    const struct link_keys *keys;
    void *socket;
    pthread_t thread;
    bool started;
    int wake; /* an eventfd; -1: none */
    atomic_bool ends;
};

static bool part_has_text(const struct zap_part *part, const char *text) {
    return part->size == strlen(text) && !memcmp(part->data, text, part->size);
}

bool zap_handler_admits(const struct link_keys *keys,
                        const struct zap_part *parts, size_t count,
                        struct link_party *user) {
    return count == ZAP_PARTS && part_has_text(&parts[ZAP_VERSION], VERSION) &&
           part_has_text(&parts[ZAP_MECHANISM], "CURVE") &&
           parts[ZAP_KEY].size == LINK_KEY_BYTES &&
           link_keys_find_client(keys, parts[ZAP_KEY].data, user);
}

/* Reads the next request whole: parts beyond ZAP_PARTS are counted and dropped.
 * The caller closes MESSAGES[ZAP_PARTS]. 0: there is none. */
static size_t read_request(void *socket, zmq_msg_t *messages) {
    size_t count = 0;
    bool more = true;
    for (; more; count++) {
        zmq_msg_t beyond,
            *part = count < ZAP_PARTS ? &messages[count] : &beyond;
        if (count >= ZAP_PARTS)
            zmq_msg_init(&beyond);
        if (zmq_msg_recv(part, socket, ZMQ_DONTWAIT) < 0)
            return count;
        more = zmq_msg_more(part);
        if (count >= ZAP_PARTS)
            zmq_msg_close(&beyond);
    }
    return count;
}

static void give_verdict(void *socket, const struct zap_part *id, bool admitted,
                         struct link_party user) {
    char name[64] = "";
    const char *code = admitted ? "200" : "400";
    const char *text = admitted ? "OK" : "No such key";
    if (admitted)
        link_party_text(user, name, sizeof name);
    zmq_send(socket, VERSION, strlen(VERSION), ZMQ_SNDMORE);
    zmq_send(socket, id->data, id->size, ZMQ_SNDMORE);
    zmq_send(socket, code, strlen(code), ZMQ_SNDMORE);
    zmq_send(socket, text, strlen(text), ZMQ_SNDMORE);
    zmq_send(socket, name, strlen(name), ZMQ_SNDMORE);
    zmq_send(socket, "", 0, 0);
}

/* False: there is no request. */
static bool answer_one(struct zap_handler *handler) {
    zmq_msg_t messages[ZAP_PARTS];
    struct zap_part parts[ZAP_PARTS];
    struct link_party user = {0};
    for (int i = 0; i < ZAP_PARTS; i++)
        zmq_msg_init(&messages[i]);
    size_t count = read_request(handler->socket, messages);
    for (int i = 0; i < ZAP_PARTS; i++)
        parts[i] = (struct zap_part){zmq_msg_data(&messages[i]),
                                     zmq_msg_size(&messages[i])};
    if (count)
        give_verdict(handler->socket, &parts[ZAP_ID],
                     zap_handler_admits(handler->keys, parts, count, &user),
                     user);
    for (int i = 0; i < ZAP_PARTS; i++)
        zmq_msg_close(&messages[i]);
    return count;
}

static void *answer_all(void *context) {
    struct zap_handler *handler = context;
    zmq_pollitem_t items[] = {{handler->socket, 0, ZMQ_POLLIN, 0},
                              {NULL, handler->wake, ZMQ_POLLIN, 0}};
    while (!atomic_load(&handler->ends)) {
        zmq_poll(items, 2, -1);
        while (answer_one(handler))
            ;
    }
    return NULL;
}

static enum status start_answering(struct zap_handler *handler,
                                   struct failure *why) {
    sigset_t all, before;
    handler->wake = eventfd(0, EFD_CLOEXEC);
    if (handler->wake < 0)
        return status_errno(why, FAILURE_SYSTEM_REFUSED, errno,
                            "cannot open an eventfd");
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&handler->thread, NULL, answer_all, handler);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    handler->started = !error;
    return error ? status_errno(why, FAILURE_SYSTEM_BUSY, error,
                                "cannot start a thread")
                 : STATUS_OK;
}

static enum status open_handler(struct zap_handler *handler, void *zmq,
                                struct failure *why) {
    int none = 0;
    handler->socket = zmq_socket(zmq, ZMQ_REP);
    if (!handler->socket || zmq_bind(handler->socket, ENDPOINT))
        return status_errno(why, FAILURE_SYSTEM_REFUSED, zmq_errno(),
                            "cannot answer at %s", ENDPOINT);
    zmq_setsockopt(handler->socket, ZMQ_LINGER, &none, sizeof none);
    zmq_setsockopt(handler->socket, ZMQ_RCVHWM, &none, sizeof none);
    return start_answering(handler, why);
}

/* The sockets of the proof: a server on a name that only this process has, a
 * client, and what the client's handshake comes to. */
struct proof {
    void *server, *client, *monitor;
};

static void close_proof(struct proof *proof) {
    void *const all[] = {proof->monitor, proof->client, proof->server};
    int none = 0;
    if (proof->client)
        zmq_socket_monitor(proof->client, NULL, 0);
    for (int i = 0; i < 3; i++)
        if (all[i]) {
            zmq_setsockopt(all[i], ZMQ_LINGER, &none, sizeof none);
            zmq_close(all[i]);
        }
}

static enum status open_proof(struct proof *proof, void *zmq,
                              const struct link_keys *keys,
                              struct link_party own, struct failure *why) {
    char address[64], events[64];
    uint64_t number;
    randombytes_buf(&number, sizeof number);
    snprintf(address, sizeof address, "ipc://@capstan-proof-%016" PRIx64,
             number);
    snprintf(events, sizeof events, "inproc://proof-%016" PRIx64, number);
    proof->server = zmq_socket(zmq, ZMQ_ROUTER);
    proof->client = zmq_socket(zmq, ZMQ_DEALER);
    proof->monitor = zmq_socket(zmq, ZMQ_PAIR);
    if (!proof->server || !proof->client || !proof->monitor)
        return status_errno(why, FAILURE_SYSTEM_REFUSED, zmq_errno(),
                            "cannot open a socket");
    enum status status = link_keys_serve(keys, proof->server, own, why);
    if (!status)
        status = link_keys_connect_unknown(keys, proof->client, own, why);
    if (status)
        return status;
    if (zmq_bind(proof->server, address) ||
        zmq_socket_monitor(proof->client, events,
                           ZMQ_EVENT_HANDSHAKE_SUCCEEDED |
                               ZMQ_EVENT_HANDSHAKE_FAILED_AUTH) ||
        zmq_connect(proof->monitor, events) ||
        zmq_connect(proof->client, address))
        return status_errno(why, FAILURE_SYSTEM_REFUSED, zmq_errno(),
                            "cannot connect to %s", address);
    return STATUS_OK;
}

/* libzmq admits everybody where ZAP is not asked, without a word. */
static enum status prove_refusal(void *zmq, const struct link_keys *keys,
                                 struct link_party own, struct failure *why) {
    struct proof proof = {0};
    uint16_t event = 0;
    enum status status = open_proof(&proof, zmq, keys, own, why);
    if (!status) {
        zmq_pollitem_t item = {proof.monitor, 0, ZMQ_POLLIN, 0};
        char bytes[6];
        if (zmq_poll(&item, 1, (long)(REFUSED_WITHIN / TIME_MS)) == 1 &&
            zmq_recv(proof.monitor, bytes, sizeof bytes, 0) == sizeof bytes)
            memcpy(&event, bytes, sizeof event);
        if (event != ZMQ_EVENT_HANDSHAKE_FAILED_AUTH)
            status = status_fail(
                why, FAILURE_SYSTEM_REFUSED,
                "libzmq %s a key that nobody knows: a run with a secret needs "
                "libzmq 4.3 with CURVE and ZAP",
                event ? "admits" : "does not refuse");
    }
    close_proof(&proof);
    return status;
}

enum status zap_handler_open(struct zap_handler **out, void *zmq,
                             const struct link_keys *keys,
                             struct link_party own, struct failure *why) {
    struct zap_handler *handler = *out = calloc(1, sizeof *handler);
    if (!handler)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for keys");
    handler->keys = keys;
    handler->wake = -1;
    enum status status = open_handler(handler, zmq, why);
    if (!status)
        status = prove_refusal(zmq, keys, own, why);
    if (status)
        zap_handler_close(out);
    return status;
}

void zap_handler_close(struct zap_handler **where) {
    struct zap_handler *handler = *where;
    *where = NULL;
    if (!handler)
        return;
    if (handler->started) {
        atomic_store(&handler->ends, true);
        eventfd_write(handler->wake, 1);
        pthread_join(handler->thread, NULL);
    }
    if (handler->wake >= 0)
        close(handler->wake);
    if (handler->socket)
        zmq_close(handler->socket);
    free(handler);
}
