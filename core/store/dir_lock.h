/* SPDX-License-Identifier: Apache-2.0 */
/* Locks a checkpoint directory for the run that writes into it. The lock is a
 * file with the run's number in its name, under a kernel lock, which ends when
 * the process ends. So each of two runs detects the other, and files of a dead
 * run are recognized. Readers take no lock.
 *
 * On NFS the server keeps the locks: they work between hosts if its lock
 * manager runs, and a host that vanishes may keep its locks for a lease
 * time. */
#ifndef CAPSTAN_DIR_LOCK_H
#define CAPSTAN_DIR_LOCK_H

#include "core/base/log.h"
#include "core/base/status.h"

#include <stdbool.h>
#include <stdint.h>

struct dir_lock;

/* The run that locks a directory; all but `owner` is borrowed until the
 * release. */
struct dir_lock_settings {
    const char *dir;
    uint64_t run;
    const char *owner; /* "ps 1": shown to a later run that is refused */
    bool keeps_dead; /* a dead chief's file stays until dir_lock_settle: its run
                        may go on */
    const struct log *log;
};

/* For a chief: locks the directory, which must exist. Only lock files in it are
 * touched. STATUS_CONFIG: a live process of another run holds it; WHY names its
 * pid and host. STATUS_RETRY: the same, on another host, which may have failed,
 * or in another container. STATUS_FAILED: it cannot be written to. If the file
 * system has no locks, the log says so and the directory is not protected. Two
 * runs that lock at the same moment may both be refused. */
enum status dir_lock_acquire(struct dir_lock **out,
                             const struct dir_lock_settings *settings,
                             struct failure *why) MUST_CHECK;

/* For a process that writes beside the run's chief. *SHARES is true if the
 * chief's file is there; then no lock is needed. Else the directory is this
 * host's own: it is made, and locked together with other local processes of the
 * run. If it cannot be written to, the log says so, as each checkpoint will. */
enum status dir_lock_join(struct dir_lock **out, bool *shares,
                          const struct dir_lock_settings *settings,
                          struct failure *why) MUST_CHECK;

/* Call it before a checkpoint is written, on any thread. If the directory was
 * removed or replaced, it is made and locked again, which the log says. Fails
 * as dir_lock_acquire; STATUS_CONFIG, STATUS_RETRY: another run has it now. */
enum status dir_lock_renew(struct dir_lock *lock,
                           struct failure *why) MUST_CHECK;

/* True if the directory is the one that was locked. Else nothing in it belongs
 * to the run or may be removed. On any thread. */
bool dir_lock_is_held(struct dir_lock *lock);

/* The run of a chief that has ended without releasing the directory of LOCK,
 * which may be NULL, before that was locked; 0: there was none. */
uint64_t dir_lock_dead_run(const struct dir_lock *lock);

/* LOCK, which may be NULL, is that of RUN from now on, its own run or one whose
 * chief is dead. The files of other dead runs are removed. Fails as
 * dir_lock_acquire. */
enum status dir_lock_settle(struct dir_lock *lock, uint64_t run,
                            struct failure *why) MUST_CHECK;

/* For a reader of DIR: true if a live process of a run holds its lock. False if
 * that is unknown. */
bool dir_lock_is_locked(const char *dir);

/* Releases DIR and clears *LOCK, which may be NULL. */
void dir_lock_release(struct dir_lock **lock);

#endif
