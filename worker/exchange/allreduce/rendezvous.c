/* SPDX-License-Identifier: Apache-2.0 */
/* Path of a value: the reducer's thread puts it into `outgoing`; the
 * communication thread sends it to the chief; the chief sends it to all ranks,
 * including the sender; and it arrives in `entries`, where it stays, as ranks
 * may read it late and more than once. */
#include "worker/exchange/allreduce/rendezvous.h"

#include "core/base/time.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct entry {
    struct entry *next;
    size_t size;
    char key[RENDEZVOUS_MAX_KEY + 1];
    unsigned char value[];
};

struct rendezvous {
    struct collective_store store;
    rendezvous_send *send_message;
    void *context;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int descriptor;
    bool cancelled;
    struct entry *outgoing, *entries; /* to be sent; received */
};

static struct entry *make_entry(const char *key, const void *value,
                                size_t size) {
    struct entry *entry = malloc(sizeof *entry + size);
    if (!entry)
        return NULL;
    entry->next = NULL;
    entry->size = size;
    strcpy(entry->key, key);
    memcpy(entry->value, value, size);
    return entry;
}

static enum status rendezvous_check(const char *key, size_t size,
                                    struct failure *why) {
    if (!key[0] || strlen(key) > RENDEZVOUS_MAX_KEY ||
        size > RENDEZVOUS_MAX_VALUE)
        return status_fail(
            why, FAILURE_BAD_MESSAGE,
            "a value of %zu bytes under a key of %zu (at most %d "
            "and 1..%d)",
            size, strlen(key), RENDEZVOUS_MAX_VALUE, RENDEZVOUS_MAX_KEY);
    return STATUS_OK;
}

static enum status rendezvous_set(void *context, const char *key,
                                  const void *value, size_t size,
                                  struct failure *why) {
    struct rendezvous *rendezvous = context;
    enum status status = rendezvous_check(key, size, why);
    if (status)
        return status;
    struct entry *entry = make_entry(key, value, size);
    if (!entry)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for %zu bytes",
                           size);
    pthread_mutex_lock(&rendezvous->mutex);
    entry->next = rendezvous->outgoing;
    rendezvous->outgoing = entry;
    pthread_mutex_unlock(&rendezvous->mutex);
    eventfd_write(rendezvous->descriptor, 1);
    return STATUS_OK;
}

/* The mutex is held. */
static const struct entry *rendezvous_find(const struct rendezvous *rendezvous,
                                           const char *key) {
    const struct entry *entry = rendezvous->entries;
    while (entry && strcmp(entry->key, key))
        entry = entry->next;
    return entry;
}

static enum status copy_out(const struct entry *entry, void **value,
                            size_t *size, struct failure *why) {
    *value = malloc(entry->size + 1);
    *size = entry->size;
    if (!*value)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for %zu bytes",
                           entry->size);
    memcpy(*value, entry->value, entry->size);
    return STATUS_OK;
}

static enum status rendezvous_get(void *context, const char *key, int64_t until,
                                  void **value, size_t *size,
                                  struct failure *why) {
    struct rendezvous *rendezvous = context;
    const struct entry *entry;
    struct timespec deadline = {until / TIME_S, until % TIME_S};
    int error = 0;
    pthread_mutex_lock(&rendezvous->mutex);
    while (!(entry = rendezvous_find(rendezvous, key)) &&
           !rendezvous->cancelled && !error)
        error = pthread_cond_timedwait(&rendezvous->changed, &rendezvous->mutex,
                                       &deadline);
    bool cancelled = rendezvous->cancelled;
    enum status status =
        entry       ? copy_out(entry, value, size, why)
        : cancelled ? status_fail(why, FAILURE_RUN_ENDED, "the run has ended")
                    : status_fail(why, FAILURE_PEER_SILENT,
                                  "no value for %s within timeouts.step", key);
    pthread_mutex_unlock(&rendezvous->mutex);
    return status;
}

static bool rendezvous_is_cancelled(void *context) {
    struct rendezvous *rendezvous = context;
    pthread_mutex_lock(&rendezvous->mutex);
    bool cancelled = rendezvous->cancelled;
    pthread_mutex_unlock(&rendezvous->mutex);
    return cancelled;
}

enum status rendezvous_open(struct rendezvous **out,
                            rendezvous_send *send_message, void *context,
                            struct failure *why) {
    struct rendezvous *rendezvous = calloc(1, sizeof *rendezvous);
    pthread_condattr_t clock;
    *out = NULL;
    if (!rendezvous)
        return status_fail(why, FAILURE_NO_MEMORY,
                           "no memory for a rendezvous");
    rendezvous->send_message = send_message;
    rendezvous->context = context;
    rendezvous->store = (struct collective_store){
        rendezvous, rendezvous_set, rendezvous_get, rendezvous_is_cancelled};
    pthread_mutex_init(&rendezvous->mutex, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&rendezvous->changed, &clock);
    pthread_condattr_destroy(&clock);
    rendezvous->descriptor = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (rendezvous->descriptor < 0) {
        int error = errno;
        rendezvous_close(&rendezvous);
        return status_errno(why, FAILURE_SYSTEM_REFUSED, error,
                            "cannot open an eventfd");
    }
    *out = rendezvous;
    return STATUS_OK;
}

static void free_entries(struct entry *entry) {
    while (entry) {
        struct entry *next = entry->next;
        free(entry);
        entry = next;
    }
}

void rendezvous_close(struct rendezvous **where) {
    struct rendezvous *rendezvous = *where;
    *where = NULL;
    if (!rendezvous)
        return;
    free_entries(rendezvous->outgoing);
    free_entries(rendezvous->entries);
    if (rendezvous->descriptor >= 0)
        close(rendezvous->descriptor);
    pthread_mutex_destroy(&rendezvous->mutex);
    pthread_cond_destroy(&rendezvous->changed);
    free(rendezvous);
}

const struct collective_store *rendezvous_store(
    const struct rendezvous *rendezvous) {
    return &rendezvous->store;
}

void rendezvous_cancel(struct rendezvous *rendezvous) {
    pthread_mutex_lock(&rendezvous->mutex);
    rendezvous->cancelled = true;
    pthread_cond_broadcast(&rendezvous->changed);
    pthread_mutex_unlock(&rendezvous->mutex);
}

/* The first value of a key stays. */
enum status rendezvous_receive(struct rendezvous *rendezvous,
                               const Capstan__Rendezvous *message,
                               struct failure *why) {
    enum status status =
        rendezvous_check(message->key, message->value.len, why);
    if (status)
        return status;
    struct entry *entry =
        make_entry(message->key, message->value.data, message->value.len);
    if (!entry)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for %zu bytes",
                           message->value.len);
    pthread_mutex_lock(&rendezvous->mutex);
    if (rendezvous_find(rendezvous, entry->key)) {
        free(entry);
    } else {
        entry->next = rendezvous->entries;
        rendezvous->entries = entry;
        pthread_cond_broadcast(&rendezvous->changed);
    }
    pthread_mutex_unlock(&rendezvous->mutex);
    return STATUS_OK;
}

static void send_entry(struct rendezvous *rendezvous, struct entry *entry) {
    Capstan__Rendezvous message = CAPSTAN__RENDEZVOUS__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    message.key = entry->key;
    message.value = (ProtobufCBinaryData){entry->size, entry->value};
    control.body_case = CAPSTAN__CONTROL__BODY_RENDEZVOUS;
    control.rendezvous = &message;
    rendezvous->send_message(rendezvous->context, &control);
}

void rendezvous_step(struct rendezvous *rendezvous) {
    eventfd_t count;
    if (eventfd_read(rendezvous->descriptor, &count))
        return;
    pthread_mutex_lock(&rendezvous->mutex);
    struct entry *outgoing = rendezvous->outgoing;
    rendezvous->outgoing = NULL;
    pthread_mutex_unlock(&rendezvous->mutex);
    for (struct entry *entry = outgoing; entry; entry = entry->next)
        send_entry(rendezvous, entry);
    free_entries(outgoing);
}

int rendezvous_descriptor(const struct rendezvous *rendezvous) {
    return rendezvous->descriptor;
}
