/* SPDX-License-Identifier: Apache-2.0 */
/* One transfer at a time: init, which is over before the first view, or the
 * export, which starts with the last snapshot. The thread works on copies,
 * because the roster changes meanwhile. Only the chief's loop touches the run,
 * after the thread has ended. */
#include "chief/snapshot/weights_io.h"

#include "chief/snapshot/snapshot_coordinator.h"
#include "chief/snapshot/weights_transfer.h"
#include "core/base/background_task.h"
#include "core/base/byte_size.h"
#include "core/base/time.h"
#include "core/store/fs_info.h"
#include "core/store/tensor_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What the thread works with; constant while it runs. */
struct weights_io {
    struct weights_transfer_settings weights_transfer;
    struct ps_links_peer *ps;
    const char *path;
    uint64_t snapshot; /* to export; 0: the transfer is init */
    struct background_task *background_task;
    int64_t began;
};

/* Context of the export's fetch function. */
struct source {
    struct weights_transfer *weights_transfer;
    uint64_t snapshot;
};

enum status weights_io_check_export_path(const struct run *run,
                                         struct failure *why) {
    const char *path = run->job->export_path;
    const char *slash = path ? strrchr(path, '/') : NULL;
    char folder[4096];
    if (!slash || slash == path)
        return STATUS_OK; /* the current or the root directory exists */
    snprintf(folder, sizeof folder, "%.*s", (int)(slash - path), path);
    enum status status = fs_info_make_folder(folder, why);
    if (!status && access(folder, W_OK | X_OK))
        status = status_errno(why, FAILURE_OUTPUT_UNUSABLE, errno,
                              "cannot write into %s", folder);
    if (!status)
        return STATUS_OK;
    status_context(why, "export.path");
    if (status == STATUS_FAILED)
        why->code = FAILURE_OUTPUT_UNUSABLE;
    return failure_code_status(why->code);
}

static enum status weights_io_read_parameter(void *context, uint32_t index,
                                             float *floats,
                                             struct failure *why) {
    const struct source *source = context;
    return weights_transfer_read(source->weights_transfer, index,
                                 source->snapshot, floats, why);
}

static enum status weights_io_write_file(const struct weights_io *weights_io,
                                         struct weights_transfer *transfer,
                                         struct failure *why) {
    const struct layout *layout = weights_io->weights_transfer.layout;
    struct source wanted = {transfer, weights_io->snapshot};
    struct tensor_source source = {layout->parameters, layout->num_parameters,
                                   weights_io_read_parameter, &wanted};
    enum tensor_format format;
    enum status status = tensor_format_of(weights_io->path, &format, why);
    if (!status)
        status = tensor_file_write(weights_io->path, format, &source, why);
    return status;
}

static enum status weights_io_send_all(struct tensor_file *file,
                                       const struct layout *layout,
                                       struct weights_transfer *transfer,
                                       struct failure *why) {
    uint64_t most = 0;
    for (uint32_t p = 0; p < layout->num_parameters; p++)
        if (layout->parameters[p].elements > most)
            most = layout->parameters[p].elements;
    float *floats = malloc(most * sizeof *floats);
    if (!floats)
        return status_fail(why, FAILURE_NO_MEMORY,
                           "no memory for a tensor of %llu elements",
                           (unsigned long long)most);
    enum status status = STATUS_OK;
    for (uint32_t p = 0; !status && p < layout->num_parameters; p++) {
        status = tensor_file_read(file, &layout->parameters[p], floats, why);
        if (!status)
            status = weights_transfer_assign(transfer, p, floats, why);
    }
    free(floats);
    return status;
}

static enum status read_file(const struct weights_io *weights_io,
                             struct weights_transfer *transfer,
                             struct failure *why) {
    struct tensor_file *file;
    enum status status = tensor_file_open(&file, weights_io->path, why);
    if (!status)
        status = weights_io_send_all(file, weights_io->weights_transfer.layout,
                                     transfer, why);
    tensor_file_close(&file);
    return status;
}

/* Runs on the background thread. */
static enum status run_transfer(void *context, int cancel,
                                struct failure *why) {
    const struct weights_io *weights_io = context;
    struct weights_transfer_settings settings = weights_io->weights_transfer;
    struct weights_transfer *transfer;
    settings.cancel = cancel;
    enum status status = weights_transfer_open(&transfer, &settings, why);
    if (!status)
        status = weights_io->snapshot
                     ? weights_io_write_file(weights_io, transfer, why)
                     : read_file(weights_io, transfer, why);
    weights_transfer_close(&transfer);
    return status;
}

/* Copies the addresses, because the roster changes while the thread runs. */
static void list_peers(struct run *run, struct ps_links_peer *ps) {
    for (uint32_t i = 0; i < run->plan.num_holders; i++) {
        ps[i].incarnation = run_holder(run, i)->incarnation;
        run_holder_address(run, i, ps[i].address, sizeof ps[i].address);
    }
}

static enum status weights_io_start(struct run *run, const char *path,
                                    uint64_t snapshot, struct failure *why) {
    struct weights_io *weights_io = calloc(1, sizeof *weights_io);
    run->weights_io = weights_io;
    if (weights_io)
        weights_io->ps = calloc(run->plan.num_holders, sizeof *weights_io->ps);
    if (!weights_io || !weights_io->ps)
        return status_fail(why, FAILURE_NO_MEMORY,
                           "no memory for links to %u ps",
                           run->plan.num_holders);
    list_peers(run, weights_io->ps);
    weights_io->path = path;
    weights_io->snapshot = snapshot;
    weights_io->began = time_now();
    weights_io->weights_transfer = (struct weights_transfer_settings){
        .zmq = run->zmq,
        .address = run->address,
        .run = run->id,
        .incarnation = run->incarnation,
        .layout = run->plan.layout,
        .ps_of_block = run->plan.ps_of_block,
        .ps = weights_io->ps,
        .num_ps = run->plan.num_holders,
        .inproc = run->ps_inproc,
        .step_timeout = run->job->timeouts.step,
    };
    return background_task_open(&weights_io->background_task, run_transfer,
                                weights_io, why);
}

/* A failed export does not stop the run, since its checkpoint holds the
 * weights; it only sets the exit code. */
static void end_export(struct run *run, uint64_t id, enum status status,
                       const struct failure *why) {
    const char *path = run->job->export_path;
    char size[16];
    byte_size_text(run->plan.layout->elements * sizeof(float), size,
                   sizeof size);
    if (status) {
        log_error(run->log, "export_failed",
                  "the weights were not exported to %s: %s", path, why->text);
        snprintf(run->export_problem, sizeof run->export_problem, "%.500s",
                 why->text);
    } else {
        log_info(run->log, "weights_exported",
                 "exported %u tensor%s, %s, to %s in %.2f s%s",
                 run->plan.layout->num_parameters,
                 log_plural(run->plan.layout->num_parameters), size, path,
                 time_to_seconds(time_now() - run->weights_io->began),
                 run->plan.layout->num_tables
                     ? "; rows of tables: capstan ckpt export --table"
                     : "");
    }
    weights_io_close(run);
    snapshot_coordinator_release(run, id);
}

static void end_init(struct run *run, enum status status,
                     const struct failure *why) {
    if (status) {
        run_stop(run, why->code, "the weights to start from: %s (init)",
                 why->text);
        weights_io_close(run);
        return;
    }
    log_info(run->log, "weights_loaded", "starting from the weights of %s",
             run->job->init);
    weights_io_close(run);
    run->plan.init_done = true;
}

static void begin_export(struct run *run, uint64_t id) {
    struct failure why;
    enum status status = weights_io_start(run, run->job->export_path, id, &why);
    if (status)
        end_export(run, id, status, &why);
}

static void begin_init(struct run *run) {
    struct failure why;
    enum status status = weights_io_start(run, run->job->init, 0, &why);
    if (status)
        end_init(run, status, &why);
}
/* Takes the held snapshot that is to be exported; false: there is none. */
static bool take_export(struct run *run, uint64_t *id) {
    for (uint32_t i = 0; i < run->snapshots.count; i++) {
        struct run_snapshot *snapshot = &run->snapshots.items[i];
        if (snapshot->progress.stage != SNAPSHOT_ROUND_HELD ||
            !snapshot->export || snapshot->exporting)
            continue;
        snapshot->exporting = true;
        *id = snapshot->id;
        return true;
    }
    return false;
}

void weights_io_step(struct run *run) {
    struct weights_io *weights_io = run->weights_io;
    enum status status;
    struct failure why;
    uint64_t id;
    if (!weights_io && run->plan.init_wanted) {
        run->plan.init_wanted = false;
        begin_init(run);
    } else if (!weights_io && take_export(run, &id)) {
        begin_export(run, id);
    }
    if (!weights_io)
        return;
    if (run->phase >= RUN_STOPPING)
        background_task_cancel(weights_io->background_task);
    else if (background_task_poll(weights_io->background_task, &status, &why)) {
        if (weights_io->snapshot)
            end_export(run, weights_io->snapshot, status, &why);
        else
            end_init(run, status, &why);
    }
}

int weights_io_descriptor(const struct run *run) {
    return run->weights_io
               ? background_task_descriptor(run->weights_io->background_task)
               : -1;
}

void weights_io_close(struct run *run) {
    struct weights_io *weights_io = run->weights_io;
    run->weights_io = NULL;
    if (!weights_io)
        return;
    background_task_close(&weights_io->background_task);
    free(weights_io->ps);
    free(weights_io);
}
