/* Backends of collectives: plugins beside the binary, and which one a group of
 * ranks takes. */
#ifndef CAPSTAN_COLLECTIVES_H
#define CAPSTAN_COLLECTIVES_H

#include "proto/base/log.h"
#include "proto/base/status.h"
#include "proto/conf/job.h"
#include "worker/collective.h"

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

/* Writes the path of capstan-NAME.so beside the running binary. */
void collectives_path(char path[PATH_MAX], const char *name);

/* Opens the plugin at PATH, which stays open until the process ends.
 * STATUS_FAILED: it is not there, does not load, or has another ABI. */
enum status collectives_load(const struct collective_ops **out,
                             const char *path, struct failure *why) MUST_CHECK;

/* The backend NAME, beside the binary, which has been asked whether it can work
 * here. STATUS_FAILED says what is missing. */
enum status collectives_find(const struct collective_ops **out,
                             const char *name, struct failure *why) MUST_CHECK;

/* What a rank tells the others before they choose. */
struct collectives_rank {
    bool gloo, nccl;  /* works there */
    uint32_t devices; /* that NCCL sees there */
    uint32_t device;  /* which of them is this rank's: its local rank */
    char missing[256];
};

/* The backend for ranks that told RANKS, by what the job WANTS: NCCL by auto
 * when each has a device of its own. REASON (SIZE bytes) says why. The same
 * everywhere. NULL: REASON says which rank lacks what. */
const char *collectives_pick(enum job_backend wants,
                             const struct collectives_rank *ranks,
                             uint32_t num_ranks, char *reason, size_t size);

/* All ranks together, through settings->store: picks, and says why.
 * STATUS_RETRY names a rank that did not come within settings->timeout. */
enum status collectives_choose(const struct collective_ops **out,
                               enum job_backend wants,
                               const struct collective_settings *settings,
                               const struct log *log,
                               struct failure *why) MUST_CHECK;

#endif
