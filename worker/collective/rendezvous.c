/* SPDX-License-Identifier: Apache-2.0 */
/* Path of a value: a thread of a group puts it into `outgoing`; the
 * communication thread sends it to the chief; the chief sends it to all ranks,
 * including the sender; and it arrives in `entries`, where it stays, as ranks
 * may read it late and more than once. */
#include "worker/collective/rendezvous.h"

#include "core/base/waiter.h"

#include <errno.h>
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
    struct waiter waiter;
    int descriptor;
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
    waiter_enter(&rendezvous->waiter);
    entry->next = rendezvous->outgoing;
    rendezvous->outgoing = entry;
    waiter_leave(&rendezvous->waiter);
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
    waiter_enter(&rendezvous->waiter);
    while (!(entry = rendezvous_find(rendezvous, key)) &&
           waiter_wait(&rendezvous->waiter, until, NULL))
        ;
    enum status status =
        entry ? copy_out(entry, value, size, why)
        : rendezvous->waiter.cancelled
            ? status_fail(why, FAILURE_RUN_ENDED, "the run has ended")
            : status_fail(why, FAILURE_PEER_SILENT,
                          "no value for %s within timeouts.step", key);
    waiter_leave(&rendezvous->waiter);
    return status;
}

static bool rendezvous_is_cancelled(void *context) {
    struct rendezvous *rendezvous = context;
    return waiter_is_cancelled(&rendezvous->waiter);
}

enum status rendezvous_open(struct rendezvous **out,
                            rendezvous_send *send_message, void *context,
                            struct failure *why) {
    struct rendezvous *rendezvous = calloc(1, sizeof *rendezvous);
    *out = NULL;
    if (!rendezvous)
        return status_fail(why, FAILURE_NO_MEMORY,
                           "no memory for a rendezvous");
    rendezvous->send_message = send_message;
    rendezvous->context = context;
    rendezvous->store = (struct collective_store){
        rendezvous, rendezvous_set, rendezvous_get, rendezvous_is_cancelled};
    waiter_open(&rendezvous->waiter);
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
    waiter_close(&rendezvous->waiter);
    free(rendezvous);
}

const struct collective_store *rendezvous_store(
    const struct rendezvous *rendezvous) {
    return &rendezvous->store;
}

void rendezvous_cancel(struct rendezvous *rendezvous) {
    waiter_cancel(&rendezvous->waiter);
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
    waiter_enter(&rendezvous->waiter);
    if (rendezvous_find(rendezvous, entry->key)) {
        free(entry);
    } else {
        entry->next = rendezvous->entries;
        rendezvous->entries = entry;
    }
    waiter_leave_changed(&rendezvous->waiter);
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
    waiter_enter(&rendezvous->waiter);
    struct entry *outgoing = rendezvous->outgoing;
    rendezvous->outgoing = NULL;
    waiter_leave(&rendezvous->waiter);
    for (struct entry *entry = outgoing; entry; entry = entry->next)
        send_entry(rendezvous, entry);
    free_entries(outgoing);
}

int rendezvous_descriptor(const struct rendezvous *rendezvous) {
    return rendezvous->descriptor;
}
