/* SPDX-License-Identifier: Apache-2.0 */
#include "core/store/dir_lock.h"

#include "core/base/fork_guard.h"
#include "core/store/checkpoint.h"
#include "core/store/file_lock.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { RUN_DIGITS = 16, TRIES = 16, SYSTEM_SIZE = 128, OWNERS_SIZE = 4096 };
static const char prefix[] = ".run-"; /* checkpoint_run_file's */

struct dir_lock {
    pthread_mutex_t mutex; /* a writer calls from a thread of its own */
    int file;              /* -1: none */
    bool locked;
    bool follows_chief; /* the chief's file is enough while it exists, */
    struct stat folder; /* in this directory */
    uint64_t dead_run;  /* whose chief's file was there; 0: none */
    char path[PATH_MAX], owner[32];
    struct dir_lock_settings settings;
};

/* True if another open file holds a lock on FILE. */
static bool is_locked(int file) {
    struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    return !fcntl(file, F_OFD_GETLK, &all) && all.l_type != F_UNLCK;
}

/* True if the path of FILE still leads to it. Another process may have removed
 * it before it was locked, or replaced the directory since. True if that is
 * unknown. */
static bool is_current(const struct dir_lock *lock) {
    struct stat own, found;
    if (!lock->follows_chief && lock->file < 0)
        return false;
    if (stat(lock->path, &found))
        return errno != ENOENT && errno != ENOTDIR;
    return lock->follows_chief ||
           (!fstat(lock->file, &own) && own.st_ino == found.st_ino &&
            own.st_dev == found.st_dev);
}

/* Opens a lock file, only its user's: whoever may read one can lock it too. A
 * link or a pipe, which anybody may leave in a shared directory, is none. -1:
 * *ERROR says why. */
static int open_lock(int folder, const char *name, int flags, int *error) {
    struct stat found;
    int file =
        openat(folder, name, flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
    *error = errno;
    if (file >= 0 && (fstat(file, &found) || !S_ISREG(found.st_mode))) {
        close(file);
        file = -1;
        *error = EINVAL;
    }
    return file;
}

/* Names the boot of this kernel and the PID namespace of this container: a pod
 * may have the host name of the one that it replaces. */
static void own_system(char system[SYSTEM_SIZE]) {
    char boot[64] = "", space[64] = "";
    int file = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (file >= 0 && read(file, boot, sizeof boot - 1) > 0)
        boot[strcspn(boot, "\n")] = 0;
    if (file >= 0)
        close(file);
    if (readlink("/proc/self/ns/pid", space, sizeof space - 1) < 0)
        *space = 0;
    snprintf(system, SYSTEM_SIZE, "%s %s", boot, space);
}

/* Appends this owner of the lock for other runs, and its system, as each
 * process that shares the file does. */
static void write_owner(const struct dir_lock *lock) {
    char host[256] = "", text[512], system[SYSTEM_SIZE];
    gethostname(host, sizeof host - 1);
    own_system(system);
    int length = snprintf(text, sizeof text, "%s, pid %d on host %s\n%s\n",
                          lock->owner, (int)getpid(), host, system);
    /* Synced, so that a file server has it if this host fails. */
    if (write(lock->file, text, (size_t)length) != length ||
        fdatasync(lock->file))
        return; /* then no owner is named */
}

static enum status open_lock_file(struct dir_lock *lock, struct failure *why) {
    int error;
    for (int i = 0; i < TRIES; i++) {
        lock->file = open_lock(AT_FDCWD, lock->path,
                               O_CREAT | O_RDWR | O_APPEND, &error);
        if (lock->file < 0)
            return status_errno(why, FAILURE_FILE_UNWRITABLE, error,
                                "cannot write %s", lock->path);
        fork_guard_add_file(lock->file);
        lock->locked = file_lock_set(lock->file, F_RDLCK);
        if (!lock->locked) {
            log_warning(lock->settings.log, "lock_unavailable",
                        "%s takes no lock (%s): a second run in the same "
                        "directory would not be noticed",
                        lock->path, strerror(errno));
            return STATUS_OK;
        }
        if (is_current(lock)) {
            write_owner(lock);
            return STATUS_OK;
        }
        fork_guard_remove_file(lock->file);
        close(lock->file);
        lock->file = -1;
    }
    return status_fail(why, FAILURE_FILE_UNWRITABLE,
                       "%s is removed again and again", lock->path);
}

/* True if NAME is the lock file of another run. */
static bool is_other_run(const char *name, const char *own) {
    size_t begin = sizeof prefix - 1;
    return !strncmp(name, prefix, begin) &&
           strspn(name + begin, "0123456789abcdef") == RUN_DIGITS &&
           strncmp(name, own, begin + RUN_DIGITS) != 0;
}

/* True if OWNER, a line of write_owner, names a process of this system that has
 * ended. */
static bool owner_has_ended(const char *owner) {
    const char *number = strstr(owner, ", pid ");
    long pid = number ? strtol(number + strlen(", pid "), NULL, 10) : 0;
    return pid > 0 && kill((pid_t)pid, 0) && errno == ESRCH;
}

/* The first owner in the TEXT of a lock file that may live. *HERE is false if
 * it is of another system. NULL: all have ended, so whoever holds a lock on the
 * file is no process of its run. Without a second line it is by an earlier
 * version. */
static const char *find_owner(char *text, bool *here) {
    char own[SYSTEM_SIZE], *owner;
    own_system(own);
    do {
        owner = strsep(&text, "\n");
        const char *system = text ? strsep(&text, "\n") : "";
        *here = *owner && (!*system || !strcmp(system, own));
        if (!*here || !*system || !owner_has_ended(owner))
            return owner;
    } while (text && *text);
    return NULL;
}

/* As find_owner, of FILE, into TEXT. NULL also if nobody holds a lock on it. */
static const char *find_holder(int file, char text[OWNERS_SIZE], bool *here) {
    if (!is_locked(file))
        return NULL;
    ssize_t length = pread(file, text, OWNERS_SIZE - 1, 0);
    text[length > 0 ? length : 0] = 0;
    return find_owner(text, here);
}

/* The lock of another system may be that of a host which has failed: a file
 * server keeps it for a lease time. Or of a container that is being stopped: so
 * it is worth a retry. So is one whose owner is not there yet. */
static enum status refuse_lock(const char *owner, bool here, const char *dir,
                               struct failure *why) {
    return status_fail(
        why, here ? FAILURE_DIRECTORY_LOCKED : FAILURE_DIRECTORY_HELD,
        "another run is using %s: %s. Two runs cannot write checkpoints into "
        "one directory: end that run first, or give this one a checkpoint.dir "
        "of its own",
        dir, *owner ? owner : "a process whose owner is not written yet");
}

/* A file that no process of its run holds belongs to a dead run and is removed.
 */
static enum status check_other(struct dir_lock *lock, int folder,
                               const char *name, struct failure *why) {
    char text[OWNERS_SIZE];
    bool here;
    int error, file = open_lock(folder, name, O_RDONLY, &error);
    if (file < 0 && error == EACCES)
        log_warning(lock->settings.log, "lock_unavailable",
                    "%s/%s is another user's: a run that holds it would not "
                    "be noticed. Runs that share a directory need one user",
                    lock->settings.dir, name);
    if (file < 0)
        return STATUS_OK; /* or it was just removed, or is no file */
    enum status status = STATUS_OK;
    const char *owner = find_holder(file, text, &here);
    if (owner)
        status = refuse_lock(owner, here, lock->settings.dir, why);
    else if (!name[sizeof prefix - 1 + RUN_DIGITS])
        lock->dead_run = strtoull(name + sizeof prefix - 1, NULL, 16);
    if (!owner && !lock->settings.keeps_dead)
        (void)unlinkat(folder, name, 0);
    close(file);
    return status;
}

static enum status check_others(struct dir_lock *lock, struct failure *why) {
    enum status status = STATUS_OK;
    const char *dir = lock->settings.dir, *own = strrchr(lock->path, '/') + 1;
    const struct dirent *entry;
    DIR *folder = opendir(dir);
    if (!folder)
        return status_errno(why, FAILURE_FILE_UNREADABLE, errno,
                            "cannot read %s", dir);
    while (!status && (entry = readdir(folder)))
        if (is_other_run(entry->d_name, own))
            status = check_other(lock, dirfd(folder), entry->d_name, why);
    closedir(folder);
    return status;
}

/* The last process that holds the file removes it. */
static void dir_lock_unlock_file(struct dir_lock *lock) {
    if (lock->file < 0)
        return;
    if (!is_locked(lock->file) && is_current(lock))
        unlink(lock->path);
    fork_guard_remove_file(lock->file);
    close(lock->file);
    lock->file = -1;
}

/* Locks its own file first and then looks for others: of two runs that start
 * together at least one sees the other. */
static enum status acquire(struct dir_lock *lock, struct failure *why) {
    enum status status = open_lock_file(lock, why);
    if (!status && lock->locked)
        status = check_others(lock, why);
    if (status)
        dir_lock_unlock_file(lock);
    return status;
}

/* ENDING distinguishes a host's own lock file from the chief's. */
static struct dir_lock *new (const struct dir_lock_settings *settings,
                             const char *ending, struct failure *why) {
    char run_file[PATH_MAX - 16];
    struct dir_lock *lock = calloc(1, sizeof *lock);
    if (!lock) {
        status_fail(why, FAILURE_NO_MEMORY, "out of memory");
        return NULL;
    }
    lock->file = -1;
    lock->settings = *settings;
    snprintf(lock->owner, sizeof lock->owner, "%s", settings->owner);
    pthread_mutex_init(&lock->mutex, NULL);
    checkpoint_run_file(settings->dir, settings->run, run_file,
                        sizeof run_file);
    snprintf(lock->path, sizeof lock->path, "%s%s", run_file, ending);
    return lock;
}

enum status dir_lock_acquire(struct dir_lock **out,
                             const struct dir_lock_settings *settings,
                             struct failure *why) {
    *out = new (settings, "", why);
    enum status status = *out ? acquire(*out, why) : STATUS_RETRY;
    if (status)
        dir_lock_release(out);
    return status;
}

enum status dir_lock_join(struct dir_lock **out, bool *shares,
                          const struct dir_lock_settings *settings,
                          struct failure *why) {
    char run_file[PATH_MAX];
    checkpoint_run_file(settings->dir, settings->run, run_file,
                        sizeof run_file);
    *shares = !access(run_file, F_OK);
    *out = new (settings, *shares ? "" : "-host", why);
    if (!*out)
        return STATUS_RETRY;
    (*out)->follows_chief = *shares;
    if (*shares && !stat(settings->dir, &(*out)->folder))
        return STATUS_OK;
    enum status status = checkpoint_make_dir(settings->dir, why);
    if (!status)
        status = acquire(*out, why);
    bool is_taken = status == STATUS_CONFIG ||
                    (status && why->code == FAILURE_DIRECTORY_HELD);
    if (is_taken)
        dir_lock_release(out);
    if (!status || is_taken)
        return status;
    log_warning(settings->log, "directory_unwritable",
                "no checkpoint can be written here: %s", why->text);
    return STATUS_OK;
}

/* Else it was removed or replaced with all that was in it. */
static bool is_same_folder(const struct dir_lock *lock) {
    struct stat found;
    return !stat(lock->settings.dir, &found) &&
           found.st_ino == lock->folder.st_ino &&
           found.st_dev == lock->folder.st_dev;
}

/* Call with the mutex held. A process that shared the chief's directory locks
 * it as the chief does: all processes of a run may hold the file. */
static enum status reacquire(struct dir_lock *lock, struct failure *why) {
    const struct dir_lock_settings *settings = &lock->settings;
    bool was_there = lock->follows_chief || lock->file >= 0;
    /* The chief makes its file again, or its run is over, or goes back: then
     * no other file is to keep the next one out. */
    if (lock->follows_chief && is_same_folder(lock))
        return check_others(lock, why);
    dir_lock_unlock_file(lock);
    lock->follows_chief = false;
    enum status status = checkpoint_make_dir(settings->dir, why);
    if (!status)
        status = acquire(lock, why);
    if (!status && was_there)
        log_warning(
            settings->log, "directory_replaced",
            "%s was removed or replaced during the run: it exists again and is "
            "locked for this run; its earlier contents are gone",
            settings->dir);
    return status;
}

enum status dir_lock_renew(struct dir_lock *lock, struct failure *why) {
    pthread_mutex_lock(&lock->mutex);
    enum status status = is_current(lock) ? STATUS_OK : reacquire(lock, why);
    pthread_mutex_unlock(&lock->mutex);
    return status;
}

bool dir_lock_is_held(struct dir_lock *dir_lock) {
    pthread_mutex_lock(&dir_lock->mutex);
    bool held = is_current(dir_lock);
    pthread_mutex_unlock(&dir_lock->mutex);
    return held;
}

enum status dir_lock_settle(struct dir_lock *lock, uint64_t run,
                            struct failure *why) {
    if (!lock)
        return STATUS_OK;
    struct dir_lock before = *lock;
    pthread_mutex_lock(&lock->mutex);
    lock->settings.keeps_dead = false;
    lock->settings.run = run;
    checkpoint_run_file(lock->settings.dir, run, lock->path, sizeof lock->path);
    enum status status = STATUS_OK;
    if (strcmp(lock->path, before.path) != 0) {
        lock->file = -1;
        status = open_lock_file(lock, why);
        dir_lock_unlock_file(&before);
    }
    if (!status && lock->locked)
        status = check_others(lock, why);
    pthread_mutex_unlock(&lock->mutex);
    return status;
}

uint64_t dir_lock_dead_run(const struct dir_lock *lock) {
    return lock ? lock->dead_run : 0;
}

bool dir_lock_is_locked(const char *dir) {
    const struct dirent *entry;
    char text[OWNERS_SIZE];
    bool here, locked_by_run = false;
    int error;
    DIR *folder = opendir(dir);
    while (folder && !locked_by_run && (entry = readdir(folder))) {
        if (!is_other_run(entry->d_name, ""))
            continue;
        int file = open_lock(dirfd(folder), entry->d_name, O_RDONLY, &error);
        locked_by_run = file >= 0 && find_holder(file, text, &here);
        if (file >= 0)
            close(file);
    }
    if (folder)
        closedir(folder);
    return locked_by_run;
}

void dir_lock_release(struct dir_lock **where) {
    struct dir_lock *lock = *where;
    *where = NULL;
    if (!lock)
        return;
    dir_lock_unlock_file(lock);
    pthread_mutex_destroy(&lock->mutex);
    free(lock);
}
