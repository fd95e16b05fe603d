/* Who writes into a checkpoint directory now. A file there has the number of
 * the run in its name and a lock of the kernel's on it, which ends with the
 * process however that dies; so of two runs each sees that the other lives, and
 * what a dead one has left is known for what it is. Readers take no claim.
 *
 * On NFS the server keeps the locks: they hold between hosts where its lock
 * manager runs, and a host that vanishes may keep its own for a lease's time.
 */
#ifndef CAPSTAN_CLAIM_H
#define CAPSTAN_CLAIM_H

#include "proto/base/log.h"
#include "proto/base/status.h"

#include <stdbool.h>
#include <stdint.h>

struct claim;

/* For a chief: claims DIR, which exists, for RUN. WHO ("ps 1") stands in what a
 * later claimant is told. Nothing of DIR but files of claims is touched.
 * STATUS_CONFIG: another run's process lives; WHY names its pid and host.
 * STATUS_FAILED: DIR cannot be written into. Where the file system takes no
 * locks, LOG is told and the claim stands for nothing. Two that come at the
 * same moment may both be refused. */
enum status claim_take(struct claim **out, const char *dir, uint64_t run,
                       const char *who, const struct log *log,
                       struct failure *why) MUST_CHECK;

/* For who writes into DIR beside the chief of RUN: *SHARES when the chief's
 * file is there, which then is enough. Else DIR is this host's own; it is made,
 * and claimed together with others of RUN here. A DIR that cannot be written
 * into is LOG's affair: each checkpoint will say so again. */
enum status claim_take_beside(struct claim **out, bool *shares, const char *dir,
                              uint64_t run, const char *who,
                              const struct log *log,
                              struct failure *why) MUST_CHECK;

/* For a reader of DIR: does a run's process that lives hold a claim on it? Not
 * where that cannot be told. */
bool claim_stands(const char *dir);

/* Lets DIR go and clears *CLAIM, which may be NULL. */
void claim_release(struct claim **claim);

#endif
