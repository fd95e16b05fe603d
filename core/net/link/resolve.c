/* SPDX-License-Identifier: Apache-2.0 */
#include "core/net/link/resolve.h"

#include <netdb.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* Reference-counted by the thread and the caller, so that neither waits for a
 * name server that does not answer. */
struct resolve {
    atomic_int references;
    atomic_int state;
    char host[256], text[300];
    uint16_t port;
    char number[64], (*hosts)[256]; /* for resolve_match: which of the hosts has
                                       the number? */
    unsigned num_hosts;
};

static void resolve_release(struct resolve *resolve) {
    if (atomic_fetch_sub(&resolve->references, 1) > 1)
        return;
    free(resolve->hosts);
    free(resolve);
}

static bool write_number(const struct addrinfo *found, char *text,
                         size_t size) {
    return !getnameinfo(found->ai_addr, found->ai_addrlen, text,
                        (socklen_t)size, NULL, 0, NI_NUMERICHOST);
}

static void write_address(struct resolve *resolve,
                          const struct addrinfo *found) {
    char number[128];
    if (!write_number(found, number, sizeof number))
        number[0] = 0;
    snprintf(resolve->text, sizeof resolve->text,
             found->ai_family == AF_INET6 ? "[%s]:%u" : "%s:%u", number,
             resolve->port);
}

static void *look_up_host(void *argument) {
    struct resolve *resolve = argument;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    int error = getaddrinfo(resolve->host, NULL, &hints, &found);
    if (error)
        snprintf(resolve->text, sizeof resolve->text, "%s",
                 gai_strerror(error));
    else
        write_address(resolve, found);
    if (found)
        freeaddrinfo(found);
    atomic_store(&resolve->state, error ? RESOLVE_FAILED : RESOLVE_FOUND);
    resolve_release(resolve);
    return NULL;
}

static bool has_address(const char *host, const char *number) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    char text[128];
    bool has = false;
    if (getaddrinfo(host, NULL, &hints, &found))
        return false;
    for (const struct addrinfo *each = found; each && !has;
         each = each->ai_next)
        has = write_number(each, text, sizeof text) && !strcmp(text, number);
    freeaddrinfo(found);
    return has;
}

static void *match_hosts(void *argument) {
    struct resolve *resolve = argument;
    unsigned i = 0;
    while (i < resolve->num_hosts &&
           !has_address(resolve->hosts[i], resolve->number))
        i++;
    bool found = i < resolve->num_hosts;
    snprintf(resolve->text, sizeof resolve->text, "%s",
             found ? resolve->hosts[i] : "no listed host has this address");
    atomic_store(&resolve->state, found ? RESOLVE_FOUND : RESOLVE_FAILED);
    resolve_release(resolve);
    return NULL;
}

/* Starts a thread that runs WORK on RESOLVE (taken), which then has two
 * references. */
static struct resolve *resolve_start_thread(struct resolve *resolve,
                                            void *work(void *)) {
    pthread_t thread;
    atomic_init(&resolve->references, 2);
    if (pthread_create(&thread, NULL, work, resolve)) {
        atomic_store(&resolve->references, 1);
        resolve_end(&resolve);
        return NULL;
    }
    pthread_detach(thread);
    return resolve;
}

struct resolve *resolve_start(const char *host, uint16_t port) {
    struct resolve *resolve = calloc(1, sizeof *resolve);
    if (!resolve)
        return NULL;
    snprintf(resolve->host, sizeof resolve->host, "%s", host);
    resolve->port = port;
    return resolve_start_thread(resolve, look_up_host);
}

struct resolve *resolve_match(const char *number, const char *const *hosts,
                              unsigned count) {
    struct resolve *resolve = calloc(1, sizeof *resolve);
    if (!resolve)
        return NULL;
    resolve->hosts = calloc(count + 1, sizeof *resolve->hosts);
    resolve->num_hosts = resolve->hosts ? count : 0;
    for (unsigned i = 0; i < resolve->num_hosts; i++)
        snprintf(resolve->hosts[i], sizeof resolve->hosts[i], "%s", hosts[i]);
    snprintf(resolve->number, sizeof resolve->number, "%s", number);
    return resolve_start_thread(resolve, match_hosts);
}

enum resolve_state resolve_poll(struct resolve *resolve, char *text,
                                size_t size) {
    enum resolve_state state = atomic_load(&resolve->state);
    if (state != RESOLVE_WAITING)
        snprintf(text, size, "%s", resolve->text);
    return state;
}

void resolve_end(struct resolve **where) {
    if (*where)
        resolve_release(*where);
    *where = NULL;
}

bool resolve_split(const char *address, char *host, size_t size,
                   uint16_t *port) {
    const char *colon = strrchr(address, ':');
    size_t length = colon ? (size_t)(colon - address) : 0;
    unsigned long number = colon ? strtoul(colon + 1, NULL, 10) : 0;
    bool bracket = address[0] == '[' && length > 2;
    if (!length || length >= size || !number || number > UINT16_MAX ||
        (address[0] == '[' && address[length - 1] != ']'))
        return false;
    *port = (uint16_t)number;
    snprintf(host, size, "%.*s", (int)length - 2 * bracket, address + bracket);
    return true;
}
