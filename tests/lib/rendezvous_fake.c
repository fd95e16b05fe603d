/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/rendezvous_fake.h"

#include "core/base/time.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static bool wait_change(struct rendezvous_fake *rendezvous, int64_t until) {
    struct timespec end = {until / TIME_S, until % TIME_S};
    return !pthread_cond_timedwait(&rendezvous->changed, &rendezvous->lock,
                                   &end);
}

static enum status note_set(void *context, const char *key, const void *value,
                            size_t size, struct failure *why) {
    struct rendezvous_fake *rendezvous = context;
    struct rendezvous_fake_entry *note =
        &rendezvous->entries[rendezvous->num_entries];
    pthread_mutex_lock(&rendezvous->lock);
    bool fits = rendezvous->num_entries < RENDEZVOUS_FAKE_ENTRIES &&
                size <= sizeof note->value;
    if (fits) {
        note = &rendezvous->entries[rendezvous->num_entries++];
        snprintf(note->key, sizeof note->key, "%s", key);
        memcpy(note->value, value, size);
        note->size = size;
        pthread_cond_broadcast(&rendezvous->changed);
    }
    pthread_mutex_unlock(&rendezvous->lock);
    return fits ? STATUS_OK
                : status_fail(why, FAILURE_BAD_MESSAGE, "board is full");
}

static const struct rendezvous_fake_entry *find(
    const struct rendezvous_fake *rendezvous, const char *key) {
    for (uint32_t i = 0; i < rendezvous->num_entries; i++)
        if (!strcmp(rendezvous->entries[i].key, key))
            return &rendezvous->entries[i];
    return NULL;
}

static enum status note_get(void *context, const char *key, int64_t until,
                            void **value, size_t *size, struct failure *why) {
    struct rendezvous_fake *rendezvous = context;
    const struct rendezvous_fake_entry *note;
    pthread_mutex_lock(&rendezvous->lock);
    while (!(note = find(rendezvous, key)) && wait_change(rendezvous, until))
        ;
    if (note) {
        *size = note->size;
        *value = malloc(note->size + 1);
        memcpy(*value, note->value, note->size);
    }
    pthread_mutex_unlock(&rendezvous->lock);
    return note ? STATUS_OK
                : status_fail(why, FAILURE_PEER_SILENT, "no %s on the board",
                              key);
}

struct rendezvous_fake *rendezvous_fake_open(void) {
    struct rendezvous_fake *rendezvous =
        mmap(NULL, sizeof *rendezvous, PROT_READ | PROT_WRITE,
             MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_mutexattr_t lock;
    pthread_condattr_t changed;
    pthread_mutexattr_init(&lock);
    pthread_mutexattr_setpshared(&lock, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&rendezvous->lock, &lock);
    pthread_condattr_init(&changed);
    pthread_condattr_setpshared(&changed, PTHREAD_PROCESS_SHARED);
    pthread_condattr_setclock(&changed, CLOCK_MONOTONIC);
    pthread_cond_init(&rendezvous->changed, &changed);
    rendezvous->store = (struct collective_store){
        .context = rendezvous, .set = note_set, .get = note_get};
    return rendezvous;
}

void rendezvous_fake_close(struct rendezvous_fake **rendezvous) {
    if (!*rendezvous)
        return;
    for (uint32_t i = 0; i < RENDEZVOUS_FAKE_RANKS; i++)
        if ((*rendezvous)->pids[i]) {
            kill((*rendezvous)->pids[i], SIGKILL);
            rendezvous_fake_await_exit(*rendezvous, i);
        }
    munmap(*rendezvous, sizeof **rendezvous);
    *rendezvous = NULL;
}

void rendezvous_fake_start(struct rendezvous_fake *rendezvous, uint32_t rank,
                           void (*fixture)(struct rendezvous_fake *rendezvous,
                                           uint32_t rank, const void *context),
                           const void *context) {
    fflush(NULL);
    pid_t pid = fork();
    if (pid) {
        rendezvous->pids[rank] = pid;
        return;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(RENDEZVOUS_FAKE_SECONDS);
    fixture(rendezvous, rank, context);
    fflush(NULL);
    _exit(0);
}

void rendezvous_fake_arrive(struct rendezvous_fake *rendezvous) {
    pthread_mutex_lock(&rendezvous->lock);
    rendezvous->arrived++;
    pthread_cond_broadcast(&rendezvous->changed);
    pthread_mutex_unlock(&rendezvous->lock);
}

bool rendezvous_fake_await_arrivals(struct rendezvous_fake *rendezvous,
                                    uint32_t count) {
    int64_t until = time_now() + RENDEZVOUS_FAKE_SECONDS * TIME_S;
    pthread_mutex_lock(&rendezvous->lock);
    while (rendezvous->arrived < count && wait_change(rendezvous, until))
        ;
    bool come = rendezvous->arrived >= count;
    pthread_mutex_unlock(&rendezvous->lock);
    return come;
}

int rendezvous_fake_await_exit(struct rendezvous_fake *rendezvous,
                               uint32_t rank) {
    int how = 0;
    waitpid(rendezvous->pids[rank], &how, 0);
    rendezvous->pids[rank] = 0;
    return WIFEXITED(how) ? WEXITSTATUS(how) : -WTERMSIG(how);
}
