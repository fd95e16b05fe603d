/* SPDX-License-Identifier: Apache-2.0 */
/* A word goes from the reducer's thread to `said`, from there with the
 * communication thread to the chief, which sends it to all ranks, the one that
 * said it among them, and so to `heard`, where it stays: ranks may ask for it
 * late, and more than once. */
#include "worker/exchange/allreduce/meeting.h"

#include "proto/base/time.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct word {
    struct word *next;
    size_t size;
    char key[MEETING_MAX_KEY + 1];
    unsigned char value[];
};

struct meeting {
    struct collective_store store;
    meeting_tell *tell;
    void *context;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int descriptor;
    bool cancelled;
    struct word *said, *heard; /* to be told; known */
};

static struct word *make(const char *key, const void *value, size_t size) {
    struct word *word = malloc(sizeof *word + size);
    if (!word)
        return NULL;
    word->next = NULL;
    word->size = size;
    strcpy(word->key, key);
    memcpy(word->value, value, size);
    return word;
}

static enum status check(const char *key, size_t size, struct failure *why) {
    if (!key[0] || strlen(key) > MEETING_MAX_KEY || size > MEETING_MAX_VALUE)
        return status_fail(why, STATUS_FAILED,
                           "a word of %zu bytes under a key of %zu (at most %d "
                           "and 1..%d)",
                           size, strlen(key), MEETING_MAX_VALUE,
                           MEETING_MAX_KEY);
    return STATUS_OK;
}

static enum status set(void *context, const char *key, const void *value,
                       size_t size, struct failure *why) {
    struct meeting *meeting = context;
    enum status status = check(key, size, why);
    if (status)
        return status;
    struct word *word = make(key, value, size);
    if (!word)
        return status_fail(why, STATUS_RETRY, "no memory for %zu bytes", size);
    pthread_mutex_lock(&meeting->mutex);
    word->next = meeting->said;
    meeting->said = word;
    pthread_mutex_unlock(&meeting->mutex);
    eventfd_write(meeting->descriptor, 1);
    return STATUS_OK;
}

/* The mutex is held. */
static const struct word *find(const struct meeting *meeting, const char *key) {
    const struct word *word = meeting->heard;
    while (word && strcmp(word->key, key))
        word = word->next;
    return word;
}

static enum status copy_out(const struct word *word, void **value, size_t *size,
                            struct failure *why) {
    *value = malloc(word->size + 1);
    *size = word->size;
    if (!*value)
        return status_fail(why, STATUS_RETRY, "no memory for %zu bytes",
                           word->size);
    memcpy(*value, word->value, word->size);
    return STATUS_OK;
}

static enum status get(void *context, const char *key, int64_t until,
                       void **value, size_t *size, struct failure *why) {
    struct meeting *meeting = context;
    const struct word *word;
    struct timespec when = {until / TIME_S, until % TIME_S};
    int error = 0;
    pthread_mutex_lock(&meeting->mutex);
    while (!(word = find(meeting, key)) && !meeting->cancelled && !error)
        error =
            pthread_cond_timedwait(&meeting->changed, &meeting->mutex, &when);
    bool cancelled = meeting->cancelled;
    enum status status =
        word        ? copy_out(word, value, size, why)
        : cancelled ? status_fail(why, STATUS_RETRY, "the run has ended")
                    : status_fail(why, STATUS_RETRY,
                                  "no word of %s within timeouts.step", key);
    pthread_mutex_unlock(&meeting->mutex);
    return status;
}

static bool given_up(void *context) {
    struct meeting *meeting = context;
    pthread_mutex_lock(&meeting->mutex);
    bool cancelled = meeting->cancelled;
    pthread_mutex_unlock(&meeting->mutex);
    return cancelled;
}

enum status meeting_open(struct meeting **out, meeting_tell *tell,
                         void *context, struct failure *why) {
    struct meeting *meeting = calloc(1, sizeof *meeting);
    pthread_condattr_t clock;
    *out = NULL;
    if (!meeting)
        return status_fail(why, STATUS_RETRY, "no memory for a meeting");
    meeting->tell = tell;
    meeting->context = context;
    meeting->store = (struct collective_store){meeting, set, get, given_up};
    pthread_mutex_init(&meeting->mutex, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&meeting->changed, &clock);
    pthread_condattr_destroy(&clock);
    meeting->descriptor = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (meeting->descriptor < 0) {
        int error = errno;
        meeting_close(&meeting);
        return status_errno(why, STATUS_FAILED, error,
                            "cannot open an eventfd");
    }
    *out = meeting;
    return STATUS_OK;
}

static void free_words(struct word *word) {
    while (word) {
        struct word *next = word->next;
        free(word);
        word = next;
    }
}

void meeting_close(struct meeting **where) {
    struct meeting *meeting = *where;
    *where = NULL;
    if (!meeting)
        return;
    free_words(meeting->said);
    free_words(meeting->heard);
    if (meeting->descriptor >= 0)
        close(meeting->descriptor);
    pthread_mutex_destroy(&meeting->mutex);
    pthread_cond_destroy(&meeting->changed);
    free(meeting);
}

const struct collective_store *meeting_store(const struct meeting *meeting) {
    return &meeting->store;
}

void meeting_cancel(struct meeting *meeting) {
    pthread_mutex_lock(&meeting->mutex);
    meeting->cancelled = true;
    pthread_cond_broadcast(&meeting->changed);
    pthread_mutex_unlock(&meeting->mutex);
}

/* The first word under a key stays. */
enum status meeting_take(struct meeting *meeting,
                         const Capstan__Meeting *message, struct failure *why) {
    enum status status = check(message->key, message->value.len, why);
    if (status)
        return status;
    struct word *word =
        make(message->key, message->value.data, message->value.len);
    if (!word)
        return status_fail(why, STATUS_RETRY, "no memory for %zu bytes",
                           message->value.len);
    pthread_mutex_lock(&meeting->mutex);
    if (find(meeting, word->key)) {
        free(word);
    } else {
        word->next = meeting->heard;
        meeting->heard = word;
        pthread_cond_broadcast(&meeting->changed);
    }
    pthread_mutex_unlock(&meeting->mutex);
    return STATUS_OK;
}

static void pass(struct meeting *meeting, struct word *word) {
    Capstan__Meeting message = CAPSTAN__MEETING__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    message.key = word->key;
    message.value = (ProtobufCBinaryData){word->size, word->value};
    control.body_case = CAPSTAN__CONTROL__BODY_MEETING;
    control.meeting = &message;
    meeting->tell(meeting->context, &control);
}

void meeting_step(struct meeting *meeting) {
    eventfd_t count;
    if (eventfd_read(meeting->descriptor, &count))
        return;
    pthread_mutex_lock(&meeting->mutex);
    struct word *said = meeting->said;
    meeting->said = NULL;
    pthread_mutex_unlock(&meeting->mutex);
    for (struct word *word = said; word; word = word->next)
        pass(meeting, word);
    free_words(said);
}

int meeting_descriptor(const struct meeting *meeting) {
    return meeting->descriptor;
}
