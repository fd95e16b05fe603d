/* SPDX-License-Identifier: Apache-2.0 */
/* Pieces come in order over one connection: after a cut the fetch goes on with
 * the first that is missing. Their hash is computed on the way. */
#include "ps/buddy.h"

#include "core/base/time.h"
#include "proto/cluster/cluster.h"
#include "proto/messages/ps_links.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

enum {
    PIECE_BYTES = MESSAGE_GROUP_BYTES,
    PIECES_AHEAD = 8,  /* on their way to a ps that has no weights; */
    PIECES_BESIDE = 1, /* while it serves trainers */
};
static const int64_t ASK_AGAIN = TIME_S, LOOK_AGAIN = 50 * TIME_MS;

/* The files of a part, as they are to be: of a delta the base comes first. */
enum { PART_FILES = 2 };
struct part_file {
    struct copy copy;
    uint64_t hash[2];
};

struct buddy_fetch {
    struct ps_links *links; /* NULL: there is none to this ps: */
    struct ps_links_peer peer;
    uint32_t from;
    bool is_on;    /* what follows is under way */
    bool restores; /* this ps waits for it */
    uint64_t step; /* the last file's */
    struct part_file files[PART_FILES];
    unsigned at, count;     /* of these the one that comes; all */
    XXH3_state_t *state;    /* of its pieces so far */
    uint64_t got, asked;    /* pieces */
    int64_t heard, sent_at; /* when one came; when one was asked for */
};

static struct copy *coming(struct buddy_fetch *fetch) {
    return &fetch->files[fetch->at].copy;
}

static uint64_t pieces_in_copy(const struct buddy_fetch *fetch) {
    return (fetch->files[fetch->at].copy.size + PIECE_BYTES - 1) / PIECE_BYTES;
}

static uint64_t piece_bytes(uint64_t size, uint64_t piece) {
    uint64_t left = size - piece * PIECE_BYTES;
    return left < PIECE_BYTES ? left : PIECE_BYTES;
}

/* The connection stays for the next one. */
static void fetch_end(struct buddy_fetch *fetch) {
    if (fetch->is_on && coming(fetch)->fd >= 0)
        close(coming(fetch)->fd);
    fetch->is_on = false;
}

void buddy_close(struct ps *ps) {
    struct buddy_fetch *fetch = ps->fetch;
    ps->fetch = NULL;
    if (!fetch)
        return;
    fetch_end(fetch);
    ps_links_close(&fetch->links);
    XXH3_freeState(fetch->state);
    free(fetch);
}

/* In place of a connection to another ps. */
static enum status open_links_to(struct ps *ps, uint32_t from,
                                 struct failure *why) {
    struct buddy_fetch *fetch = ps->fetch;
    if (fetch->links && fetch->from == from)
        return STATUS_OK;
    ps_links_close(&fetch->links);
    fetch->from = from;
    fetch->peer = ps->plan->ps[from];
    fetch->peer.shm_key = 0; /* the file is not in shared memory */
    struct ps_links_settings links = {.process = &ps->process,
                                      .rank = ps->place,
                                      .num_ps = 1,
                                      .ps = &fetch->peer};
    return ps_links_open(&fetch->links, &links, why);
}

/* Begins with file AT. */
static enum status fetch_begin(struct buddy_fetch *fetch, unsigned at,
                               struct failure *why) {
    fetch->at = at;
    fetch->got = fetch->asked = 0;
    fetch->heard = time_now();
    coming(fetch)->fd = memfd_create("capstan-copy", MFD_CLOEXEC);
    fetch->is_on = coming(fetch)->fd >= 0;
    return fetch->is_on && !XXH3_128bits_reset(fetch->state)
               ? STATUS_OK
               : status_errno(why, FAILURE_NO_MEMORY, errno,
                              "no memory for a copy");
}

/* Begins to fetch those of FILES [COUNT, at least 1], a part's, that are not
 * here from ps FROM. */
static enum status fetch_open(struct ps *ps, uint32_t from,
                              const struct part_file *files, unsigned count,
                              bool restores, struct failure *why) {
    if (!ps->fetch)
        ps->fetch = calloc(1, sizeof *ps->fetch);
    struct buddy_fetch *fetch = ps->fetch;
    if (fetch && !fetch->state)
        fetch->state = XXH3_createState();
    if (!fetch || !fetch->state)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for a copy");
    fetch_end(fetch);
    enum status status = open_links_to(ps, from, why);
    if (status)
        return status;
    fetch->restores = restores;
    fetch->step = files[count - 1].copy.step;
    fetch->count = 0;
    for (unsigned i = 0; i < count; i++)
        if (!copies_find(ps->member->copies, files[i].copy.step,
                         files[i].copy.part, NULL))
            fetch->files[fetch->count++] = files[i];
    return fetch_begin(fetch, 0, why);
}

static void report(struct ps *ps, Capstan__BuddyReport *message) {
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    control.body_case = CAPSTAN__CONTROL__BODY_BUDDY_REPORT;
    control.buddy_report = message;
    control_client_send_reliable(ps->control_client, &control);
}

static void report_fetched(struct ps *ps, uint64_t step, const char *error) {
    Capstan__BuddyReport message = CAPSTAN__BUDDY_REPORT__INIT;
    message.step = step;
    message.fetched = true;
    message.error = (char *)error;
    report(ps, &message);
}

/* The only ps of a process that has the chief too has no place for them. */
void buddy_copied(void *context, const struct snapshots_report *copied,
                  Capstan__SnapshotReport *part) {
    struct ps *ps = context;
    struct copies *copies = ps->member->copies;
    Capstan__BuddyReport message = CAPSTAN__BUDDY_REPORT__INIT;
    if (copied->fd >= 0 && copies)
        copies_put(copies, (struct copy){copied->ordered, ps->place, copied->fd,
                                         copied->info.size, copied->id});
    else if (copied->fd >= 0)
        close(copied->fd);
    message.step = copied->ordered;
    message.part = part;
    message.base_step = copied->base;
    report(ps, &message);
}

static bool has_units_of(const struct ps *ps, const struct manifest *manifest,
                         uint32_t part) {
    uint32_t i = 0;
    while (i < ps->num_blocks && manifest->block_file[ps->ids[i]] != part)
        i++;
    return i < ps->num_blocks;
}

static struct part_file part_file(const struct manifest *manifest,
                                  uint64_t step, uint32_t part) {
    const struct shard_info *file = &manifest->files[part];
    return (struct part_file){
        .copy = {.step = step, .part = part, .fd = -1, .size = file->size},
        .hash = {file->hash[0], file->hash[1]}};
}

static enum status fetch_part(struct ps *ps, const struct manifest *manifest,
                              struct failure *why) {
    const struct plan *plan = ps->plan;
    struct part_file files[PART_FILES];
    uint64_t start = plan->run_schedule.start;
    uint32_t from = plan->buddies[ps->part];
    unsigned count = 0;
    if (from == ps->place)
        return status_fail(why, FAILURE_BAD_MESSAGE,
                           "a plan by which ps %u has a copy in memory of step "
                           "%" PRIu64 " that it has not",
                           from, start);
    if (manifest->base)
        files[count++] = part_file(manifest->base, ps->copy_base, ps->part);
    files[count++] = part_file(manifest, start, ps->part);
    return fetch_open(ps, from, files, count, true, why);
}

/* Reads what the plan restores from memory; the caller clears *OUT. */
static enum status read_restored(const struct plan *plan, struct manifest *out,
                                 struct failure *why) {
    enum status status = manifest_parse(out, plan->restore_manifest, why);
    if (!status && plan->restore_base)
        status = manifest_parse_base(out, plan->restore_base, why);
    if (!status &&
        (out->num_files != plan->num_buddies || out->is_delta != !!out->base ||
         (out->base && out->base->num_files != out->num_files) ||
         layout_units(out->layout) != layout_units(plan->layout)))
        status = status_fail(why, FAILURE_BAD_MESSAGE,
                             "a plan of %u copies in memory, with a manifest "
                             "of %u files, of other blocks, or without its "
                             "base",
                             plan->num_buddies, out->num_files);
    return status;
}

/* Goes on to the next part with units of this ps, and begins to fetch it if it
 * is not here. */
static enum status find_next_part(struct ps *ps,
                                  const struct manifest *manifest,
                                  struct failure *why) {
    struct shard_copy copy;
    while (ps->part < manifest->num_files &&
           !has_units_of(ps, manifest, ps->part))
        ps->part++;
    return ps->part == manifest->num_files || buddy_restored(ps, &copy)
               ? STATUS_OK
               : fetch_part(ps, manifest, why);
}

enum status buddy_open(struct ps *ps, struct failure *why) {
    struct copies *copies = ps->member->copies;
    const struct plan *plan = ps->plan;
    uint64_t start = plan->run_schedule.start;
    struct manifest manifest;
    if (copies && !plan->num_buddies)
        copies_begin(copies, 0, 0);
    if (!plan->num_buddies)
        return STATUS_OK;
    if (!copies)
        return status_fail(why, FAILURE_BAD_MESSAGE,
                           "a plan with copies in memory for a process that "
                           "has the chief too");
    enum status status = read_restored(plan, &manifest, why);
    if (!status) {
        ps->copy_base = manifest.base ? manifest.base->step : 0;
        copies_begin(copies, start, ps->copy_base);
        copies_describe(copies, start, plan->restore_manifest,
                        plan->restore_base);
        status = find_next_part(ps, &manifest, why);
    }
    manifest_clear(&manifest);
    return status;
}

bool buddy_is_fetching(const struct ps *ps) {
    return ps->fetch && ps->fetch->is_on;
}

bool buddy_restored(const struct ps *ps, struct shard_copy *out) {
    struct copies *copies = ps->member->copies;
    struct copy copy = {.fd = -1}, base = {.fd = -1};
    bool is_here =
        ps->part < ps->plan->num_buddies &&
        copies_find(copies, ps->plan->run_schedule.start, ps->part, &copy) &&
        (!ps->copy_base || copies_find(copies, ps->copy_base, ps->part, &base));
    *out = (struct shard_copy){copy.fd, base.fd};
    return is_here;
}

/* A part of another ps that was fetched takes memory for nothing from now on:
 * the one that it came from has it. */
enum status buddy_end_part(struct ps *ps, struct failure *why) {
    const struct plan *plan = ps->plan;
    struct manifest manifest;
    if (ps->part >= plan->num_buddies)
        return STATUS_OK;
    if (ps->has_fetched && ps->part != ps->place) {
        copies_drop(ps->member->copies, plan->run_schedule.start, ps->part);
        copies_drop(ps->member->copies, ps->copy_base, ps->part);
    }
    ps->has_fetched = false;
    ps->part++;
    enum status status = read_restored(plan, &manifest, why);
    if (!status)
        status = find_next_part(ps, &manifest, why);
    manifest_clear(&manifest);
    if (!status && ps->part == plan->num_buddies &&
        !plan->run_schedule.buddy_steps)
        copies_begin(ps->member->copies, 0, 0);
    return status;
}

enum status buddy_give_up(const struct ps *ps, struct failure *why) {
    char part[48] = "its own part";
    if (ps->part != ps->place)
        snprintf(part, sizeof part, "the part of ps %u", ps->part);
    log_warning(ps->process.log, "copy_failed",
                "the copy in memory of step %" PRIu64
                " of %s, from its own memory: %s",
                ps->plan->run_schedule.start, part, why->text);
    why->code = FAILURE_PEER_LOST;
    return status_mark_reported(why);
}

/* From now on copies have what changed since ORDER's base, if this ps knows
 * what it was then. */
static void follow_base(struct ps *ps, const Capstan__BuddyOrder *order) {
    struct row_shard *rows = ps->server ? server_units(ps->server)->rows : NULL;
    uint64_t base =
        order->complete_base ? order->complete_base : order->complete;
    struct copy own = {0};
    if (order->whole)
        base = 0;
    if (!rows || base == ps->copies_base)
        return;
    if (base)
        (void)copies_find(ps->member->copies, base, ps->place, &own);
    row_shard_set_copy_base(rows, own.id, base);
    ps->copies_base = base;
}

/* A copy that is here already, as of a run that goes on from it, is not fetched
 * again. */
void buddy_order(struct ps *ps, const Capstan__BuddyOrder *order) {
    struct copies *copies = ps->member->copies;
    struct part_file files[PART_FILES];
    struct failure why;
    unsigned count = 0;
    if (!copies)
        return;
    copies_order(copies, order->step, order->complete, order->complete_base);
    if (*order->manifest)
        copies_describe(copies, order->complete, order->manifest,
                        *order->base_manifest ? order->base_manifest : NULL);
    follow_base(ps, order);
    if (!order->step || order->ps >= ps->plan->num_ps)
        return;
    if (!copies_find(copies, order->step, ps->place, NULL)) {
        snapshot_agent_slow_down(ps->snapshot_agent);
        report_fetched(ps, order->step,
                       "newer copies have the place of its own part");
        return;
    }
    if (order->base_step)
        files[count++] = (struct part_file){
            {order->base_step, order->ps, -1, order->base_size, 0},
            {order->base_hash_low, order->base_hash_high}};
    files[count++] =
        (struct part_file){{order->step, order->ps, -1, order->size, 0},
                           {order->hash_low, order->hash_high}};
    bool is_here = copies_find(copies, order->step, order->ps, NULL) &&
                   (!order->base_step ||
                    copies_find(copies, order->base_step, order->ps, NULL));
    if (is_here)
        report_fetched(ps, order->step, "");
    else if (fetch_open(ps, order->ps, files, count, false, &why))
        report_fetched(ps, order->step, why.text);
}

/* As refused or as a piece of SIZE bytes of COPY. */
static void answer(struct ps *ps, const struct link_frame *frame,
                   const Capstan__DataHeader *header, const struct copy *copy) {
    Capstan__DataHeader reply = CAPSTAN__DATA_HEADER__INIT;
    unsigned char space[256];
    struct link_payload payload;
    uint64_t size = copy ? piece_bytes(copy->size, header->seq) : 0;
    link_no_payload(&payload);
    reply.kind = copy ? CAPSTAN__DATA_HEADER__KIND__PIECE
                      : CAPSTAN__DATA_HEADER__KIND__REFUSED;
    reply.run = ps->process.run;
    reply.incarnation = ps->process.incarnation;
    reply.seq = header->seq;
    reply.step = header->step;
    reply.tensor = header->tensor;
    if (!copy)
        reply.text = "a copy in memory that this ps has no longer";
    if (size && !link_reserve(ps->link, frame->peer, &payload, size))
        return; /* it asks again */
    if (size && pread(copy->fd, link_reserved(&payload), size,
                      (off_t)(header->seq * PIECE_BYTES)) != (ssize_t)size) {
        link_drop(&payload);
        return;
    }
    size_t bytes = message_write_data(&reply, space);
    link_commit(ps->link, frame->peer, space, bytes, &payload);
}

/* Another ps greets this one before it asks, and may do both before this one
 * has its plan. */
bool buddy_answer(struct ps *ps, struct link_frame *frame,
                  const Capstan__DataHeader *header) {
    const struct plan *plan = ps->plan;
    if (header->kind == CAPSTAN__DATA_HEADER__KIND__PROBE && !ps->server) {
        ps_links_answer_probe(ps->link, &ps->process, false, frame, header);
        return true;
    }
    if (header->kind != CAPSTAN__DATA_HEADER__KIND__FETCH)
        return false;
    if (!plan || !ps->member->copies || header->run != ps->process.run ||
        header->rank >= plan->num_ps ||
        header->incarnation != plan->ps[header->rank].incarnation ||
        !link_is_from(ps->link, frame,
                      cluster_party(CLUSTER_PS, plan->ps[header->rank].index)))
        return true;
    struct copy copy;
    bool found =
        copies_find(ps->member->copies, header->step, header->tensor, &copy);
    if (!found || header->seq < (copy.size + PIECE_BYTES - 1) / PIECE_BYTES)
        answer(ps, frame, header, found ? &copy : NULL);
    return true;
}

int buddy_poll_items(struct ps *ps, zmq_pollitem_t *items, int64_t *deadline) {
    if (!buddy_is_fetching(ps))
        return 0;
    int64_t look = time_now() + LOOK_AGAIN;
    *deadline = look < *deadline ? look : *deadline;
    return link_poll_items(ps_links_all(ps->fetch->links)[0], items);
}

static enum status lost_text(struct buddy_fetch *fetch, struct failure *why,
                             const char *text) {
    return status_fail(why, FAILURE_PEER_LOST,
                       "the copy in memory of step %" PRIu64
                       " of the part of ps %u, from ps %u at %s: %s",
                       coming(fetch)->step, coming(fetch)->part, fetch->from,
                       fetch->peer.address, text);
}

static enum status take_copied_piece(struct buddy_fetch *fetch,
                                     const Capstan__DataHeader *header,
                                     const struct link_frame *frame,
                                     int64_t now, struct failure *why) {
    struct link_bytes piece = frame->payload;
    const struct copy *copy = coming(fetch);
    if (header->step != copy->step || header->tensor != copy->part)
        return STATUS_OK; /* of the fetch before */
    if (header->kind == CAPSTAN__DATA_HEADER__KIND__REFUSED)
        return lost_text(fetch, why, header->text);
    if (header->kind != CAPSTAN__DATA_HEADER__KIND__PIECE ||
        header->seq != fetch->got || fetch->got == pieces_in_copy(fetch))
        return STATUS_OK; /* it was asked for twice */
    if (piece.size != piece_bytes(copy->size, header->seq))
        return lost_text(fetch, why, "a piece of another size");
    if (pwrite(copy->fd, piece.data, piece.size,
               (off_t)(header->seq * PIECE_BYTES)) != (ssize_t)piece.size)
        return status_errno(why, FAILURE_TOO_LITTLE_MEMORY, errno,
                            "no memory for a copy of %" PRIu64 " bytes",
                            copy->size);
    XXH3_128bits_update(fetch->state, piece.data, piece.size);
    fetch->got++;
    fetch->heard = now;
    return STATUS_OK;
}

static void ask_ahead(struct buddy_fetch *fetch, int64_t now) {
    uint64_t ahead = fetch->restores ? PIECES_AHEAD : PIECES_BESIDE;
    if (now - fetch->heard > ASK_AGAIN && now - fetch->sent_at > ASK_AGAIN)
        fetch->asked = fetch->got;
    while (fetch->asked < pieces_in_copy(fetch) &&
           fetch->asked < fetch->got + ahead) {
        Capstan__DataHeader header = CAPSTAN__DATA_HEADER__INIT;
        header.kind = CAPSTAN__DATA_HEADER__KIND__FETCH;
        header.seq = fetch->asked;
        header.step = coming(fetch)->step;
        header.tensor = coming(fetch)->part;
        if (!ps_links_send(fetch->links, 0, &header, NULL))
            break;
        fetch->asked++;
        fetch->sent_at = now;
    }
}

static enum status fetch_pieces(struct ps *ps, int64_t now,
                                struct failure *why) {
    struct buddy_fetch *fetch = ps->fetch;
    Capstan__DataHeader *header;
    struct link_frame frame;
    struct failure unresolved = {.text = "it has said nothing"};
    enum status status = STATUS_OK;
    ps_links_connect(fetch->links, 0, now, fetch->heard, &unresolved);
    while (!status && ps_links_receive(fetch->links, 0, &header, &frame)) {
        status = take_copied_piece(fetch, header, &frame, now, why);
        link_release(&frame);
    }
    if (status)
        return status;
    ask_ahead(fetch, now);
    /* If the other is dead the chief says so first. */
    double limit = (fetch->restores ? 2 : 1) * ps->job->timeouts.peer;
    if (now - fetch->heard > time_from_seconds(limit)) {
        char text[sizeof unresolved.text + 64];
        snprintf(text, sizeof text, "%s for %g s (timeouts.peer)",
                 unresolved.text, limit);
        return lost_text(fetch, why, text);
    }
    if (fetch->got < pieces_in_copy(fetch))
        return STATUS_OK;
    XXH128_hash_t hash = XXH3_128bits_digest(fetch->state);
    const uint64_t *whole = fetch->files[fetch->at].hash;
    if (hash.low64 != whole[0] || hash.high64 != whole[1])
        return lost_text(fetch, why, "it is damaged");
    return STATUS_OK;
}

static bool is_fetched(const struct buddy_fetch *fetch) {
    return fetch->got == pieces_in_copy(fetch);
}

enum status buddy_step(struct ps *ps, int64_t now, struct failure *why) {
    struct failure failed;
    if (!buddy_is_fetching(ps))
        return STATUS_OK;
    struct buddy_fetch *fetch = ps->fetch;
    bool restores = fetch->restores;
    uint64_t step = fetch->step;
    enum status status = fetch_pieces(ps, now, &failed);
    if (!status && !is_fetched(fetch))
        return STATUS_OK;
    if (!status) {
        copies_put(ps->member->copies, *coming(fetch));
        coming(fetch)->fd = -1;
        ps->has_fetched = restores;
    }
    if (!status && fetch->at + 1 < fetch->count) {
        status = fetch_begin(fetch, fetch->at + 1, &failed);
        if (!status)
            return STATUS_OK;
    }
    fetch_end(fetch);
    if (!restores)
        report_fetched(ps, step, status ? failed.text : "");
    if (!restores || !status)
        return STATUS_OK;
    log_warning(ps->process.log, "copy_failed", "%s", failed.text);
    *why = failed;
    return status_mark_reported(why); /* the run goes back once more */
}
