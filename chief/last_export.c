/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/last_export.h"

#include "chief/run.h"
#include "core/base/background_task.h"
#include "core/base/time.h"
#include "core/store/checkpoint.h"
#include "core/store/checkpoint_reader.h"
#include "core/store/shard_file.h"
#include "core/store/tensor_file.h"

#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The thread may outlive the run: it borrows nothing of it. */
struct last_export {
    struct background_task *task; /* NULL: there is none, or it is over */
    struct manifest manifest;
    char path[4096], folder[4096];
    struct checkpoint_reader *reader;
    int cancel;
    int64_t began;
};

static void free_export(void *context) {
    struct last_export *export = context;
    manifest_clear(&export->manifest);
    free(export);
}

static enum status read_saved(void *context, uint32_t p, float *floats,
                              struct failure *why) {
    struct last_export *export = context;
    struct pollfd cancel = {.fd = export->cancel, .events = POLLIN};
    if (poll(&cancel, 1, 0) > 0)
        return status_fail(why, FAILURE_RUN_ENDED, "given up");
    return checkpoint_reader_parameter(export->reader, p, SHARD_WEIGHTS, floats,
                                       why);
}

/* Runs on the background thread. */
static enum status write_export(void *context, int cancel,
                                struct failure *why) {
    struct last_export *export = context;
    const struct layout *layout = export->manifest.layout;
    struct tensor_source source = {layout->parameters, layout->num_parameters,
                                   read_saved, export};
    enum tensor_format format;
    export->cancel = cancel;
    enum status status = checkpoint_reader_open(&export->reader, export->folder,
                                                &export->manifest, why);
    if (!status)
        status = tensor_format_of(export->path, &format, why);
    if (!status)
        status = tensor_file_write(export->path, format, &source, why);
    checkpoint_reader_close(&export->reader);
    return status;
}

static void note_export_problem(struct run *run, const char *text) {
    snprintf(run->export_problem, sizeof run->export_problem, "%.500s", text);
}

/* The chief that died may have exported them or not. */
void last_export_begin(struct run *run, struct manifest *last) {
    struct last_export *export = calloc(1, sizeof *export);
    struct failure why;
    run->last_export = export;
    run->last_step = last->step;
    if (!export) {
        note_export_problem(run, "no memory for it");
        return;
    }
    export->manifest = *last;
    export->began = time_now();
    *last = (struct manifest){0};
    if (!run->job->export_path)
        return;
    snprintf(export->path, sizeof export->path, "%s", run->job->export_path);
    checkpoint_folder(run->job->checkpoint.dir, run->last_step, export->folder,
                      sizeof export->folder);
    if (background_task_open(&export->task, write_export, export, &why))
        note_export_problem(run, why.text);
}

static void end_last_export(struct run *run, enum status status,
                            const struct failure *why) {
    if (status)
        note_export_problem(run, why->text);
    else
        log_info(run->log, "weights_exported",
                 "exported the weights of the last checkpoint, of step %" PRIu64
                 ", to %s",
                 run->last_step, run->last_export->path);
    background_task_close(&run->last_export->task);
}

bool last_export_is_done(struct run *run, uint64_t *step) {
    struct last_export *export = run->last_export;
    double limit = run->job->timeouts.step;
    enum status status;
    struct failure why;
    *step = run->last_step;
    if (!export || !export->task)
        return true;
    if (background_task_poll(export->task, &status, &why)) {
        end_last_export(run, status, &why);
        return true;
    }
    if (time_now() - export->began < time_from_seconds(limit))
        return false;
    snprintf(run->export_problem, sizeof run->export_problem,
             "it was not over within %.0f s (timeouts.step); try %.0f", limit,
             2 * limit);
    return true;
}

void last_export_close(struct run *run) {
    struct last_export *export = run->last_export;
    run->last_export = NULL;
    if (export && export->task)
        background_task_abandon(&export->task, free_export);
    else if (export)
        free_export(export);
}
