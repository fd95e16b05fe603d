/* SPDX-License-Identifier: Apache-2.0 */
/* One errand at a time: init, which is over before the first view, or the
 * export, which begins with the last cut. What the thread works with is copied,
 * as the roster goes on changing; the run itself is touched by the loop alone,
 * when it hears that the errand is over. */
#include "chief/snapshot/collect.h"

#include "chief/control/errand.h"
#include "chief/snapshot/cuts.h"
#include "chief/snapshot/transfer.h"
#include "proto/base/time.h"
#include "proto/store/disk.h"
#include "proto/store/tensor_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What the thread works with: nothing in it changes while it runs. */
struct collect {
    struct transfer_settings transfer;
    struct transfer_place *ps;
    const char *path;
    uint64_t snapshot; /* to export; 0: init */
    struct errand *errand;
    int64_t began;
};

/* The context of a fetch by the export. */
struct source {
    struct transfer *transfer;
    uint64_t snapshot;
};

enum status collect_check(const struct run *run, struct failure *why) {
    const char *path = run->job->export_path;
    const char *slash = path ? strrchr(path, '/') : NULL;
    char folder[4096];
    if (!slash || slash == path)
        return STATUS_OK;
    snprintf(folder, sizeof folder, "%.*s", (int)(slash - path), path);
    enum status status = disk_make_folder(folder, why);
    if (!status && access(folder, W_OK | X_OK))
        status = status_errno(why, STATUS_CONFIG, errno, "cannot write into %s",
                              folder);
    if (!status)
        return STATUS_OK;
    status_context(why, "export.path");
    return status == STATUS_RETRY ? status : (why->status = STATUS_CONFIG);
}

static enum status fetch(void *context, uint32_t index, float *floats,
                         struct failure *why) {
    const struct source *source = context;
    return transfer_read(source->transfer, index, source->snapshot, floats,
                         why);
}

static enum status write_file(const struct collect *collect,
                              struct transfer *transfer, struct failure *why) {
    const struct layout *layout = collect->transfer.layout;
    struct source wanted = {transfer, collect->snapshot};
    struct tensor_source source = {layout->parameters, layout->num_parameters,
                                   fetch, &wanted};
    enum tensor_format format;
    enum status status = tensor_format_of(collect->path, &format, why);
    if (!status)
        status = tensor_file_write(collect->path, format, &source, why);
    return status;
}

static enum status send_all(struct tensor_file *file,
                            const struct layout *layout,
                            struct transfer *transfer, struct failure *why) {
    uint64_t most = 0;
    for (uint32_t p = 0; p < layout->num_parameters; p++)
        if (layout->parameters[p].elements > most)
            most = layout->parameters[p].elements;
    float *floats = malloc(most * sizeof *floats);
    if (!floats)
        return status_fail(why, STATUS_RETRY,
                           "no memory for a tensor of %llu elements",
                           (unsigned long long)most);
    enum status status = STATUS_OK;
    for (uint32_t p = 0; !status && p < layout->num_parameters; p++) {
        status = tensor_file_read(file, &layout->parameters[p], floats, why);
        if (!status)
            status = transfer_assign(transfer, p, floats, why);
    }
    free(floats);
    return status;
}

static enum status read_file(const struct collect *collect,
                             struct transfer *transfer, struct failure *why) {
    struct tensor_file *file;
    enum status status = tensor_file_open(&file, collect->path, why);
    if (!status)
        status = send_all(file, collect->transfer.layout, transfer, why);
    tensor_file_close(&file);
    return status;
}

/* On a thread of its own. */
static enum status work(void *context, int cancel, struct failure *why) {
    const struct collect *collect = context;
    struct transfer_settings settings = collect->transfer;
    struct transfer *transfer;
    settings.cancel = cancel;
    enum status status = transfer_open(&transfer, &settings, why);
    if (!status)
        status = collect->snapshot ? write_file(collect, transfer, why)
                                   : read_file(collect, transfer, why);
    transfer_close(&transfer);
    return status;
}

/* Copied: the roster changes while the thread runs. */
static void list_places(struct run *run, struct transfer_place *ps) {
    for (uint32_t i = 0; i < run->num_holders; i++) {
        ps[i].incarnation = run_holder(run, i)->incarnation;
        run_holder_address(run, i, ps[i].address, sizeof ps[i].address);
    }
}

static enum status start(struct run *run, const char *path, uint64_t snapshot,
                         struct failure *why) {
    struct collect *collect = calloc(1, sizeof *collect);
    run->collect = collect;
    if (collect)
        collect->ps = calloc(run->num_holders, sizeof *collect->ps);
    if (!collect || !collect->ps)
        return status_fail(why, STATUS_RETRY, "no memory to talk to %u ps",
                           run->num_holders);
    list_places(run, collect->ps);
    collect->path = path;
    collect->snapshot = snapshot;
    collect->began = time_now();
    collect->transfer = (struct transfer_settings){
        .zmq = run->zmq,
        .run = run->id,
        .incarnation = run->incarnation,
        .layout = run->layout,
        .ps_of_block = run->ps_of_block,
        .ps = collect->ps,
        .num_ps = run->num_holders,
        .inside = run->ps_inside,
        .step_timeout = run->job->timeouts.step,
    };
    return errand_open(&collect->errand, work, collect, why);
}

/* A failed export does not end the run, whose checkpoint holds the weights; it
 * is its exit code. */
static void end_export(struct run *run, uint64_t id, enum status status,
                       const struct failure *why) {
    const char *path = run->job->export_path;
    if (status) {
        log_error(run->log, "the weights were not exported to %s: %s", path,
                  why->text);
        snprintf(run->export_problem, sizeof run->export_problem, "%.500s",
                 why->text);
    } else {
        log_info(run->log, "exported %u tensors, %.1f MB, to %s in %.2f s",
                 run->layout->num_parameters,
                 (double)run->layout->elements * sizeof(float) / 1e6, path,
                 time_to_seconds(time_now() - run->collect->began));
    }
    collect_close(run);
    cuts_release(run, id);
}

static void end_init(struct run *run, enum status status,
                     const struct failure *why) {
    if (status) {
        run_stop(run, status, "the weights to start from: %s (init)",
                 why->text);
        collect_close(run);
        return;
    }
    log_info(run->log, "starting from the weights of %s", run->job->init);
    collect_close(run);
    run->init_done = true;
}

static void begin_export(struct run *run, uint64_t id) {
    struct failure why;
    enum status status = start(run, run->job->export_path, id, &why);
    if (status)
        end_export(run, id, status, &why);
}

static void begin_init(struct run *run) {
    struct failure why;
    enum status status = start(run, run->job->init, 0, &why);
    if (status)
        end_init(run, status, &why);
}

/* One errand at a time: init is over before the first view, export begins with
 * the last cut. */
void collect_step(struct run *run) {
    struct collect *collect = run->collect;
    enum status status;
    struct failure why;
    uint64_t id;
    if (!collect && run->init_wanted) {
        run->init_wanted = false;
        begin_init(run);
    } else if (!collect && cuts_take_export(run, &id)) {
        begin_export(run, id);
    }
    if (!collect)
        return;
    if (run->phase >= RUN_STOPPING)
        errand_cancel(collect->errand);
    else if (errand_over(collect->errand, &status, &why)) {
        if (collect->snapshot)
            end_export(run, collect->snapshot, status, &why);
        else
            end_init(run, status, &why);
    }
}

int collect_descriptor(const struct run *run) {
    return run->collect ? errand_descriptor(run->collect->errand) : -1;
}

void collect_close(struct run *run) {
    struct collect *collect = run->collect;
    run->collect = NULL;
    if (!collect)
        return;
    errand_close(&collect->errand);
    free(collect->ps);
    free(collect);
}
