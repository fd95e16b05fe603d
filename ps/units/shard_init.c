/* SPDX-License-Identifier: Apache-2.0 */
#include "ps/units/shard_init.h"

#include "core/store/checkpoint_reader.h"
#include "core/store/manifest.h"

#include <poll.h>
#include <stdbool.h>
#include <stdio.h>

static bool shard_init_is_cancelled(int cancel) {
    struct pollfd item = {cancel, POLLIN, 0};
    return poll(&item, 1, 0) != 0;
}

static bool shard_init_should_continue(const struct shard_init *init,
                                       uint32_t b, int cancel) {
    return b < shard_blocks(init->units.shard) &&
           !shard_init_is_cancelled(cancel);
}

static enum status restore_unit(const struct shard_init *init, uint32_t b,
                                struct checkpoint_reader *reader,
                                struct failure *why) {
    struct unit unit = units_find(&init->units, b);
    enum status status = unit.table->restore(unit.holder, unit.u, reader, why);
    return status ? status
                  : checkpoint_reader_rule_step(reader, init->ids[b],
                                                &init->rule_steps[b], why);
}

/* A file in memory, FD, has no name but that of its descriptor. */
static enum status name_copy(const struct shard_init *init,
                             struct manifest *manifest, int fd,
                             struct failure *why) {
    if (init->part >= manifest->num_files)
        return status_fail(why, FAILURE_BAD_MESSAGE,
                           "a manifest of %u files, without part %u",
                           manifest->num_files, init->part);
    struct shard_info *file = &manifest->files[init->part];
    snprintf(file->name, sizeof file->name, "%d", fd);
    return STATUS_OK;
}

static enum status name_copies(const struct shard_init *init,
                               struct manifest *manifest, struct failure *why) {
    enum status status = name_copy(init, manifest, init->copy.fd, why);
    return status || !manifest->base
               ? status
               : name_copy(init, manifest->base, init->copy.base, why);
}

/* The reader verifies every block; if a shard file lies on another host's disk,
 * its error names that host. */
static enum status restore(const struct shard_init *init, int cancel,
                           struct failure *why) {
    struct checkpoint_reader *reader = NULL;
    struct manifest manifest;
    enum status status = manifest_parse(&manifest, init->manifest, why);
    if (!status && init->base)
        status = manifest_parse_base(&manifest, init->base, why);
    if (!status && !init->folder)
        status = name_copies(init, &manifest, why);
    if (!status)
        status = checkpoint_reader_open(&reader, init->folder, &manifest, why);
    uint32_t units = units_count(&init->units);
    for (uint32_t b = 0;
         !status && b < units && !shard_init_is_cancelled(cancel); b++)
        if (init->folder || manifest.block_file[init->ids[b]] == init->part)
            status = restore_unit(init, b, reader, why);
    checkpoint_reader_close(&reader);
    manifest_clear(&manifest);
    return status;
}

enum status shard_init_run(void *context, int cancel, struct failure *why) {
    const struct shard_init *init = context;
    if (init->manifest && (init->folder || units_count(&init->units)))
        return restore(init, cancel, why);
    for (uint32_t b = 0; shard_init_should_continue(init, b, cancel); b++)
        shard_initialise_block(init->units.shard, b, init->seed);
    return STATUS_OK;
}
