/* SPDX-License-Identifier: Apache-2.0 */
/* Who writes into a checkpoint directory now. A file there has the number of
 * the run in its name and a lock of the kernel's on it, which ends with the
 * process however that dies; so of two runs each sees that the other lives, and
 * what a dead one has left is known for what it is. Readers take no claim.
 *
 * On NFS the server keeps the locks: they hold between hosts where its lock
 * manager runs, and a host that vanishes may keep its own for a lease's time.
 */
#ifndef CAPSTAN_DIR_LOCK_H
#define CAPSTAN_DIR_LOCK_H

#include "proto/base/log.h"
#include "proto/base/status.h"

#include <stdbool.h>
#include <stdint.h>

struct dir_lock;

/* Who wants a directory for a run; all but WHO is borrowed until the release.
 */
struct dir_lock_settings {
    const char *dir;
    uint64_t run;
    const char *owner; /* "ps 1": what a later claimant is told */
    const struct log *log;
};

/* For a chief: claims the directory, which exists. Nothing of it but files of
 * claims is touched.
 * STATUS_CONFIG: another run's process lives; WHY names its pid and host.
 * STATUS_FAILED: it cannot be written into. Where the file system takes no
 * locks, the log is told and the claim stands for nothing. Two that come at the
 * same moment may both be refused. */
enum status dir_lock_acquire(struct dir_lock **out,
                             const struct dir_lock_settings *settings,
                             struct failure *why) MUST_CHECK;

/* For who writes beside the run's chief: *SHARES when the chief's file is
 * there, which then is enough. Else the directory is this host's own; it is
 * made, and claimed together with others of the run here. One that cannot be
 * written into is the log's affair: each checkpoint will say so again. */
enum status dir_lock_join(struct dir_lock **out, bool *shares,
                          const struct dir_lock_settings *settings,
                          struct failure *why) MUST_CHECK;

/* Before a checkpoint is written, on any thread: a directory that was removed
 * or replaced meanwhile is made anew and claimed for the run again, which the
 * log is told. Fails as dir_lock_acquire: STATUS_CONFIG, it is another run's
 * now. */
enum status dir_lock_renew(struct dir_lock *dir_lock,
                           struct failure *why) MUST_CHECK;

/* Is the directory the one that was claimed? Else nothing in it is the run's,
 * to be removed. On any thread. */
bool dir_lock_is_held(struct dir_lock *dir_lock);

/* For a reader of DIR: does a run's process that lives hold a claim on it? Not
 * where that cannot be told. */
bool dir_lock_is_locked(const char *dir);

/* Lets DIR go and clears *CLAIM, which may be NULL. */
void dir_lock_release(struct dir_lock **dir_lock);

#endif
