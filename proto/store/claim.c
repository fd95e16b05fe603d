/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/store/claim.h"

#include "proto/store/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { RUN_DIGITS = 16, TRIES = 16 };
static const char beginning[] = ".run-"; /* checkpoint_mark's */

struct claim {
    pthread_mutex_t mutex; /* who writes asks on a thread of its own */
    int file;              /* -1: none */
    bool locked;
    bool watches; /* the chief's file, which is enough while it stands */
    char path[PATH_MAX], who[32];
    struct claim_settings settings;
};

static bool set_lock(int file, short type) {
    struct flock all = {.l_type = type, .l_whence = SEEK_SET};
    return !fcntl(file, F_OFD_SETLK, &all);
}

/* Does another open file hold a lock on FILE? */
static bool is_locked(int file) {
    struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    return !fcntl(file, F_OFD_GETLK, &all) && all.l_type != F_UNLCK;
}

/* Is FILE what its path leads to? Another may have removed it before it was
 * locked, or the whole directory since. Where that cannot be seen it is. */
static bool still_stands(const struct claim *claim) {
    struct stat own, found;
    if (!claim->watches && claim->file < 0)
        return false;
    if (stat(claim->path, &found))
        return errno != ENOENT && errno != ENOTDIR;
    return claim->watches ||
           (!fstat(claim->file, &own) && own.st_ino == found.st_ino &&
            own.st_dev == found.st_dev);
}

/* For those who are told of it; who shares a file writes beside each other. */
static void sign(const struct claim *claim) {
    char host[256] = "", text[512];
    gethostname(host, sizeof host - 1);
    int length = snprintf(text, sizeof text, "%s, pid %d on host %s\n",
                          claim->who, (int)getpid(), host);
    if (pwrite(claim->file, text, (size_t)length, 0) != length)
        return; /* then nobody is named */
}

static enum status open_own(struct claim *claim, struct failure *why) {
    for (int i = 0; i < TRIES; i++) {
        claim->file = open(claim->path, O_CREAT | O_RDWR | O_CLOEXEC, 0666);
        if (claim->file < 0)
            return status_errno(why, STATUS_FAILED, errno, "cannot write %s",
                                claim->path);
        claim->locked = set_lock(claim->file, F_RDLCK);
        if (!claim->locked) {
            log_warning(claim->settings.log,
                        "%s takes no lock (%s): a second run in the same "
                        "directory would not be noticed",
                        claim->path, strerror(errno));
            return STATUS_OK;
        }
        if (still_stands(claim)) {
            sign(claim);
            return STATUS_OK;
        }
        close(claim->file);
        claim->file = -1;
    }
    return status_fail(why, STATUS_FAILED, "%s is removed again and again",
                       claim->path);
}

/* Is NAME that of another run's file? */
static bool is_anothers(const char *name, const char *own) {
    size_t begin = sizeof beginning - 1;
    return !strncmp(name, beginning, begin) &&
           strspn(name + begin, "0123456789abcdef") == RUN_DIGITS &&
           strncmp(name, own, begin + RUN_DIGITS) != 0;
}

static void read_signature(int file, char *text, size_t size) {
    ssize_t length = pread(file, text, size - 1, 0);
    text[length > 0 ? length : 0] = 0;
    text[strcspn(text, "\n")] = 0;
    if (!*text)
        snprintf(text, size, "a process that has not told its number yet");
}

/* One that nobody holds is a dead run's, and goes. */
static enum status check_other(int folder, const char *dir, const char *name,
                               struct failure *why) {
    char text[512];
    int file = openat(folder, name, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return STATUS_OK; /* it has just gone, or is another user's */
    bool lives = is_locked(file);
    if (lives)
        read_signature(file, text, sizeof text);
    else
        unlinkat(folder, name, 0);
    close(file);
    return lives ? status_fail(
                       why, STATUS_CONFIG,
                       "another run is using %s: %s. Two runs cannot write "
                       "checkpoints into one directory: end that one first, or "
                       "give this one a checkpoint.dir of its own",
                       dir, text)
                 : STATUS_OK;
}

static enum status check_others(const char *dir, const char *own,
                                struct failure *why) {
    enum status status = STATUS_OK;
    const struct dirent *entry;
    DIR *folder = opendir(dir);
    if (!folder)
        return status_errno(why, STATUS_FAILED, errno, "cannot read %s", dir);
    while (!status && (entry = readdir(folder)))
        if (is_anothers(entry->d_name, own))
            status = check_other(dirfd(folder), dir, entry->d_name, why);
    closedir(folder);
    return status;
}

/* The file goes with the last who holds it. */
static void let_go(struct claim *claim) {
    if (claim->file < 0)
        return;
    if (!is_locked(claim->file) && still_stands(claim))
        unlink(claim->path);
    close(claim->file);
    claim->file = -1;
}

/* First its own, then a look at the others': of two that come together at least
 * one sees the other. */
static enum status take(struct claim *claim, struct failure *why) {
    const char *name = strrchr(claim->path, '/') + 1;
    enum status status = open_own(claim, why);
    if (!status && claim->locked)
        status = check_others(claim->settings.dir, name, why);
    if (status)
        let_go(claim);
    return status;
}

/* ENDING tells a host's own claim from the chief's. */
static struct claim *new (const struct claim_settings *settings,
                          const char *ending, struct failure *why) {
    char mark[PATH_MAX - 16];
    struct claim *claim = calloc(1, sizeof *claim);
    if (!claim) {
        status_fail(why, STATUS_RETRY, "out of memory");
        return NULL;
    }
    claim->file = -1;
    claim->settings = *settings;
    snprintf(claim->who, sizeof claim->who, "%s", settings->who);
    pthread_mutex_init(&claim->mutex, NULL);
    checkpoint_mark(settings->dir, settings->run, mark, sizeof mark);
    snprintf(claim->path, sizeof claim->path, "%s%s", mark, ending);
    return claim;
}

enum status claim_take(struct claim **out,
                       const struct claim_settings *settings,
                       struct failure *why) {
    *out = new (settings, "", why);
    enum status status = *out ? take(*out, why) : STATUS_RETRY;
    if (status)
        claim_release(out);
    return status;
}

enum status claim_take_beside(struct claim **out, bool *shares,
                              const struct claim_settings *settings,
                              struct failure *why) {
    char mark[PATH_MAX];
    checkpoint_mark(settings->dir, settings->run, mark, sizeof mark);
    *shares = !access(mark, F_OK);
    *out = new (settings, *shares ? "" : "-host", why);
    if (!*out)
        return STATUS_RETRY;
    (*out)->watches = *shares;
    if (*shares)
        return STATUS_OK;
    enum status status = checkpoint_make(settings->dir, why);
    if (!status)
        status = take(*out, why);
    if (status == STATUS_CONFIG)
        claim_release(out);
    if (!status || status == STATUS_CONFIG)
        return status;
    log_warning(settings->log, "no checkpoint can be written here: %s",
                why->text);
    return STATUS_OK;
}

/* The mutex is held. Who shared the directory claims it as its chief does: of
 * those of a run all may hold the file. */
static enum status take_anew(struct claim *claim, struct failure *why) {
    const struct claim_settings *settings = &claim->settings;
    bool was_there = claim->watches || claim->file >= 0;
    let_go(claim);
    claim->watches = false;
    enum status status = checkpoint_make(settings->dir, why);
    if (!status)
        status = take(claim, why);
    if (!status && was_there)
        log_warning(settings->log,
                    "%s was removed or replaced while the run goes on: it is "
                    "there again and locked for this run; what it held is not",
                    settings->dir);
    return status;
}

enum status claim_renew(struct claim *claim, struct failure *why) {
    pthread_mutex_lock(&claim->mutex);
    enum status status =
        still_stands(claim) ? STATUS_OK : take_anew(claim, why);
    pthread_mutex_unlock(&claim->mutex);
    return status;
}

bool claim_holds(struct claim *claim) {
    pthread_mutex_lock(&claim->mutex);
    bool holds = still_stands(claim);
    pthread_mutex_unlock(&claim->mutex);
    return holds;
}

bool claim_stands(const char *dir) {
    const struct dirent *entry;
    bool stands = false;
    DIR *folder = opendir(dir);
    while (folder && !stands && (entry = readdir(folder))) {
        if (!is_anothers(entry->d_name, ""))
            continue;
        int file = openat(dirfd(folder), entry->d_name, O_RDONLY | O_CLOEXEC);
        stands = file >= 0 && is_locked(file);
        if (file >= 0)
            close(file);
    }
    if (folder)
        closedir(folder);
    return stands;
}

void claim_release(struct claim **where) {
    struct claim *claim = *where;
    *where = NULL;
    if (!claim)
        return;
    let_go(claim);
    pthread_mutex_destroy(&claim->mutex);
    free(claim);
}
