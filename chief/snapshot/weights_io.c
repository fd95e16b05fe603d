/* SPDX-License-Identifier: Apache-2.0 */
/* One transfer at a time: init, which is over before the first view, or the
 * export, which starts with the last snapshot. The thread works on copies,
 * because the roster changes meanwhile. Only the chief's loop touches the run,
 * after the thread has ended. */
#include "chief/snapshot/weights_io.h"

#include "chief/snapshot/snapshot_coordinator.h"
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
        ps[i].index = run->allreduce ? 0 : run_holder(run, i)->index;
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
        .keys = run->keys,
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

/* Transfers one parameter at a time; each of its blocks is wanted, requested or
 * received. A ps gets a few requests at once. After two seconds of its silence
 * all its requests are sent again, since they may be lost with a connection; a
 * duplicate reply is dropped. If a ps with missing blocks is silent for
 * timeouts.step, the transfer fails and names it. */

/* Requests to one ps at a time; bounds its queue of replies. */
enum { MAX_IN_FLIGHT = 16 };
static const int64_t RETRY_INTERVAL = 10 * TIME_MS; /* without a connection */
static const int64_t RESEND_AFTER = 2 * TIME_S;     /* of silence */

enum block_state { PENDING, REQUESTED, RECEIVED };

struct peer {
    int64_t last_reply;   /* or when waiting began */
    int64_t last_request; /* last request */
    uint32_t in_flight;
    bool blocked; /* a request could not be sent */
};

struct weights_transfer {
    struct weights_transfer_settings settings;
    int64_t limit;
    struct process process; /* of LINKS; without a log */
    struct ps_links *links;
    struct peer *peers;             /* [num_ps] */
    zmq_pollitem_t *items;          /* CANCEL, then the links */
    enum block_state *block_states; /* [blocks of the largest parameter] */
    uint64_t seq;

    /* The current parameter. */
    Capstan__DataHeader__Kind kind; /* PULL or ASSIGN */
    uint32_t first, count, missing; /* blocks */
    uint64_t snapshot;
    float *floats;
};

static enum status weights_transfer_open_links(
    struct weights_transfer *transfer, struct failure *why) {
    const struct weights_transfer_settings *s = &transfer->settings;
    transfer->process = (struct process){.zmq = s->zmq,
                                         .address = s->address,
                                         .keys = s->keys,
                                         .run = s->run,
                                         .incarnation = s->incarnation};
    struct ps_links_settings links = {.process = &transfer->process,
                                      .num_ps = s->num_ps,
                                      .ps = s->ps,
                                      .inproc = s->inproc};
    return ps_links_open(&transfer->links, &links, why);
}

enum status weights_transfer_open(
    struct weights_transfer **out,
    const struct weights_transfer_settings *settings, struct failure *why) {
    const struct layout *layout = settings->layout;
    struct weights_transfer *transfer = calloc(1, sizeof *transfer);
    uint32_t most = 0;
    for (uint32_t p = 0; p < layout->num_parameters; p++)
        if (layout->num_blocks_of[p] > most)
            most = layout->num_blocks_of[p];
    if (transfer) {
        transfer->settings = *settings;
        transfer->limit = time_from_seconds(settings->step_timeout);
        transfer->peers = calloc(settings->num_ps, sizeof *transfer->peers);
        transfer->items = calloc(1 + (size_t)settings->num_ps * LINK_POLL_ITEMS,
                                 sizeof *transfer->items);
        transfer->block_states = calloc(most, sizeof *transfer->block_states);
    }
    enum status status;
    if (!transfer || !transfer->peers || !transfer->items ||
        !transfer->block_states)
        status = status_fail(why, FAILURE_NO_MEMORY,
                             "no memory for links to %u ps", settings->num_ps);
    else
        status = weights_transfer_open_links(transfer, why);
    if (status)
        weights_transfer_close(&transfer);
    *out = transfer;
    return status;
}

void weights_transfer_close(struct weights_transfer **where) {
    struct weights_transfer *transfer = *where;
    *where = NULL;
    if (!transfer)
        return;
    ps_links_close(&transfer->links);
    free(transfer->peers);
    free(transfer->items);
    free(transfer->block_states);
    free(transfer);
}

static size_t weights_transfer_block_bytes(
    const struct weights_transfer *transfer, uint32_t b) {
    return transfer->settings.layout->blocks[b].elements * sizeof(float);
}

static float *destination(const struct weights_transfer *transfer, uint32_t b) {
    return transfer->floats + transfer->settings.layout->blocks[b].offset;
}

static bool weights_transfer_fill(const struct weights_transfer *transfer,
                                  struct link *link, uint32_t b,
                                  struct link_payload *payload) {
    link_no_payload(payload);
    if (transfer->kind != CAPSTAN__DATA_HEADER__KIND__ASSIGN)
        return true;
    if (!link_reserve(link, 0, payload,
                      weights_transfer_block_bytes(transfer, b)))
        return false;
    memcpy(link_reserved(payload), destination(transfer, b), payload->bytes);
    return true;
}

static bool weights_transfer_send_request(struct weights_transfer *transfer,
                                          uint32_t b) {
    Capstan__DataHeader header = CAPSTAN__DATA_HEADER__INIT;
    struct link_payload payload;
    uint32_t p = transfer->settings.ps_of_block[b];
    header.kind = transfer->kind;
    header.seq = ++transfer->seq;
    header.snapshot = transfer->snapshot;
    header.n_blocks = 1;
    header.blocks = &b;
    return weights_transfer_fill(transfer, ps_links_all(transfer->links)[p], b,
                                 &payload) &&
           ps_links_send(transfer->links, p, &header, &payload);
}

/* Requests to a silent ps may have been lost with a connection. */
static void expire_requests(struct weights_transfer *transfer, uint32_t p,
                            int64_t now) {
    struct peer *peer = &transfer->peers[p];
    if (!peer->in_flight || now - peer->last_reply < RESEND_AFTER ||
        now - peer->last_request < RESEND_AFTER)
        return;
    for (uint32_t i = 0; i < transfer->count; i++)
        if (transfer->settings.ps_of_block[transfer->first + i] == p &&
            transfer->block_states[i] == REQUESTED)
            transfer->block_states[i] = PENDING;
    peer->in_flight = 0;
}

static void send_requests(struct weights_transfer *transfer, int64_t now) {
    for (uint32_t p = 0; p < transfer->settings.num_ps; p++) {
        expire_requests(transfer, p, now);
        transfer->peers[p].blocked = false;
    }
    for (uint32_t i = 0; i < transfer->count; i++) {
        uint32_t b = transfer->first + i;
        struct peer *peer = &transfer->peers[transfer->settings.ps_of_block[b]];
        if (transfer->block_states[i] != PENDING || peer->blocked ||
            peer->in_flight == MAX_IN_FLIGHT)
            continue;
        peer->blocked = !weights_transfer_send_request(transfer, b);
        if (peer->blocked)
            continue;
        transfer->block_states[i] = REQUESTED;
        peer->last_request = now;
        peer->in_flight++;
    }
}

/* Is it a block of this parameter and ps, with the right size if it carries
 * weights? */
static bool weights_transfer_is_valid(const struct weights_transfer *transfer,
                                      uint32_t p,
                                      const Capstan__DataHeader *header,
                                      size_t payload) {
    const struct weights_transfer_settings *s = &transfer->settings;
    if (header->kind == CAPSTAN__DATA_HEADER__KIND__REFUSED)
        return true;
    if (header->n_blocks != 1 || header->blocks[0] < transfer->first ||
        header->blocks[0] - transfer->first >= transfer->count ||
        s->ps_of_block[header->blocks[0]] != p)
        return false;
    if (transfer->kind == CAPSTAN__DATA_HEADER__KIND__ASSIGN)
        return header->kind == CAPSTAN__DATA_HEADER__KIND__ASSIGNED;
    return header->kind == CAPSTAN__DATA_HEADER__KIND__WEIGHTS &&
           header->encoding == CAPSTAN__DATA_HEADER__ENCODING__FLOAT32 &&
           header->snapshot == transfer->snapshot &&
           payload == weights_transfer_block_bytes(transfer, header->blocks[0]);
}

static enum status weights_transfer_take(struct weights_transfer *transfer,
                                         uint32_t p,
                                         const Capstan__DataHeader *header,
                                         const void *payload,
                                         struct failure *why) {
    if (header->kind == CAPSTAN__DATA_HEADER__KIND__REFUSED)
        return status_fail(why, FAILURE_PEER_REFUSED, "ps %u at %s refused: %s",
                           transfer->settings.ps[p].index,
                           transfer->settings.ps[p].address, header->text);
    uint32_t b = header->blocks[0];
    enum block_state *block_state =
        &transfer->block_states[b - transfer->first];
    if (*block_state == RECEIVED) /* a duplicate */
        return STATUS_OK;
    if (transfer->kind == CAPSTAN__DATA_HEADER__KIND__PULL)
        memcpy(destination(transfer, b), payload,
               weights_transfer_block_bytes(transfer, b));
    if (*block_state == REQUESTED)
        transfer->peers[p].in_flight--;
    *block_state = RECEIVED;
    transfer->missing--;
    return STATUS_OK;
}

static enum status weights_transfer_receive(struct weights_transfer *transfer,
                                            uint32_t p, int64_t now,
                                            struct failure *why) {
    struct link_frame frame;
    Capstan__DataHeader *header;
    enum status status = STATUS_OK;
    while (!status && ps_links_receive(transfer->links, p, &header, &frame)) {
        if (weights_transfer_is_valid(transfer, p, header,
                                      frame.payload.size)) {
            transfer->peers[p].last_reply = now;
            status = weights_transfer_take(transfer, p, header,
                                           frame.payload.data, why);
        }
        link_release(&frame);
    }
    return status;
}

/* Fails if a ps with a missing block is silent for too long. */
static enum status weights_transfer_check_silence(
    const struct weights_transfer *transfer, int64_t now, struct failure *why) {
    for (uint32_t i = 0; i < transfer->count; i++) {
        uint32_t p = transfer->settings.ps_of_block[transfer->first + i];
        int64_t silent = now - transfer->peers[p].last_reply;
        if (transfer->block_states[i] != RECEIVED && silent > transfer->limit)
            return status_fail(
                why, FAILURE_PEER_SILENT,
                "ps %u at %s has not answered for %.0f s (timeouts.step): if "
                "it really takes that long, set it to %.0f",
                transfer->settings.ps[p].index,
                transfer->settings.ps[p].address, time_to_seconds(silent),
                2 * time_to_seconds(transfer->limit));
    }
    return STATUS_OK;
}

static enum status wait_for_replies(struct weights_transfer *transfer,
                                    int64_t now, struct failure *why) {
    uint32_t num_ps = transfer->settings.num_ps;
    int64_t wait =
        transfer->limit < RESEND_AFTER ? transfer->limit : RESEND_AFTER;
    int count = 1;
    transfer->items[0] =
        (zmq_pollitem_t){NULL, transfer->settings.cancel, ZMQ_POLLIN, 0};
    for (uint32_t p = 0; p < num_ps; p++) {
        if (transfer->peers[p].blocked)
            wait = RETRY_INTERVAL;
        count += link_poll_items(ps_links_all(transfer->links)[p],
                                 transfer->items + count);
    }
    zmq_poll(transfer->items, count, time_poll_ms(now, now + wait));
    if (transfer->items[0].revents)
        return status_fail(why, FAILURE_RUN_ENDED,
                           "the run ended during the transfer");
    return STATUS_OK;
}

static void weights_transfer_begin(struct weights_transfer *transfer,
                                   uint32_t parameter) {
    const struct layout *layout = transfer->settings.layout;
    int64_t now = time_now();
    transfer->first = layout->first_block[parameter];
    transfer->count = transfer->missing = layout->num_blocks_of[parameter];
    for (uint32_t i = 0; i < transfer->count; i++)
        transfer->block_states[i] = PENDING;
    for (uint32_t p = 0; p < transfer->settings.num_ps; p++) {
        transfer->peers[p].last_reply = now;
        transfer->peers[p].in_flight = 0;
    }
}

static enum status weights_transfer_complete(struct weights_transfer *transfer,
                                             struct failure *why) {
    enum status status = STATUS_OK;
    while (!status && transfer->missing) {
        int64_t now = time_now();
        for (uint32_t p = 0; !status && p < transfer->settings.num_ps; p++) {
            struct failure reason;
            status = ps_links_connect(transfer->links, p, now,
                                      transfer->peers[p].last_reply, &reason);
            /* The deadline covers a name that cannot be found. */
            if (status && reason.code != FAILURE_ADDRESS_UNRESOLVED) {
                *why = reason;
                return status;
            }
            status = weights_transfer_receive(transfer, p, now, why);
        }
        if (!status)
            status = weights_transfer_check_silence(transfer, now, why);
        if (status || !transfer->missing)
            break;
        send_requests(transfer, now);
        status = wait_for_replies(transfer, now, why);
    }
    return status;
}

enum status weights_transfer_read(struct weights_transfer *transfer,
                                  uint32_t parameter, uint64_t snapshot,
                                  float *floats, struct failure *why) {
    transfer->kind = CAPSTAN__DATA_HEADER__KIND__PULL;
    transfer->snapshot = snapshot;
    transfer->floats = floats;
    weights_transfer_begin(transfer, parameter);
    return weights_transfer_complete(transfer, why);
}

enum status weights_transfer_assign(struct weights_transfer *transfer,
                                    uint32_t parameter, const float *floats,
                                    struct failure *why) {
    transfer->kind = CAPSTAN__DATA_HEADER__KIND__ASSIGN;
    transfer->snapshot = 0;
    transfer->floats = (float *)floats; /* only read when assigning */
    weights_transfer_begin(transfer, parameter);
    return weights_transfer_complete(transfer, why);
}
