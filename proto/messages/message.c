/* SPDX-License-Identifier: Apache-2.0 */
/* protobuf-c checks a message's encoding, not its values: enumerations may hold
 * any number, lists any length. All values that readers rely on are checked
 * here, once. What depends on the plan (is this block local?) its reader
 * checks. */
#include "proto/messages/message.h"

#include "core/base/trace.h"
#include "proto/cluster/cluster.h"
#include "proto/messages/histograms.h"
#include "proto/messages/process_report.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <xxhash.h>

_Static_assert(MESSAGE_MAX_BLOCKS * 5 + 512 <= MESSAGE_MAX_HEADER,
               "a header of most blocks fits");

uint64_t message_job_digest(const char *text) {
    uint64_t digest = XXH3_64bits(text, strlen(text));
    return digest ? digest : 1;
}

uint64_t message_random(void) {
    uint64_t number = 0;
    while (!number)
        if (getrandom(&number, sizeof number, 0) != sizeof number)
            number = 0;
    return number;
}

/* Is the failure code of CONTROL, if it has one, valid? The receiver ends with
 * its status. Only Stop and Interrupted may be without a failure. */
static bool has_valid_code(const Capstan__Control *control) {
    switch (control->body_case) {
    case CAPSTAN__CONTROL__BODY_FAILED:
        return failure_code_is_known(control->failed->code);
    case CAPSTAN__CONTROL__BODY_REFUSAL:
        return failure_code_is_known(control->refusal->code);
    case CAPSTAN__CONTROL__BODY_STOP:
        return !control->stop->code ||
               failure_code_is_known(control->stop->code);
    case CAPSTAN__CONTROL__BODY_INTERRUPTED:
        return !control->interrupted->code ||
               failure_code_is_known(control->interrupted->code);
    default:
        return true;
    }
}

static bool is_complete(const Capstan__Points *points) {
    size_t count = points->n_step;
    return points->n_loss_sum == count && points->n_samples == count &&
           points->n_training_s == count;
}

static bool is_span(double seconds) {
    return seconds >= 0 && isfinite(seconds);
}

static bool has_durations(const Capstan__Heartbeat *heartbeat) {
    for (size_t i = 0; i < heartbeat->n_lost; i++)
        if (!is_span(heartbeat->lost[i]->seconds))
            return false;
    return true;
}

static bool has_past(const Capstan__Past *past) {
    return !past ||
           (past->run && past->lineage && past->job && is_span(past->away));
}

static bool has_utilization(const Capstan__Heartbeat *heartbeat) {
    return heartbeat->gpu_utilization >= 0 && heartbeat->gpu_utilization <= 100;
}

_Static_assert(((uint64_t)MESSAGE_MAX_TERM << MESSAGE_TERM_SHIFT) <
                   MESSAGE_REQUESTED_SNAPSHOT,
               "ids of requested snapshots overflow");

static enum status check_rejoin(const Capstan__Rejoin *rejoin,
                                struct failure *why) {
    if (!rejoin->heartbeat || !has_durations(rejoin->heartbeat) ||
        !has_utilization(rejoin->heartbeat))
        return status_fail(why, FAILURE_BAD_MESSAGE,
                           "a member that is in a run and has no heartbeat");
    if (rejoin->term >= MESSAGE_MAX_TERM)
        return status_fail(why, FAILURE_BAD_MESSAGE,
                           "a run that chiefs have adopted %llu times (at "
                           "most %d)",
                           (unsigned long long)rejoin->term,
                           MESSAGE_MAX_TERM - 1);
    if (rejoin->generation > RENDEZVOUS_MAX_GENERATION)
        return status_fail(why, FAILURE_BAD_MESSAGE,
                           "a group of trainers in generation %u (at most %d)",
                           rejoin->generation, RENDEZVOUS_MAX_GENERATION);
    return STATUS_OK;
}

/* Whole records of known kinds, whose times can be added. */
static bool has_records(const Capstan__Trace *trace) {
    const int64_t most = INT64_MAX / 8;
    struct trace_record record;
    if (trace->records.len % sizeof record || trace->offset < -most ||
        trace->offset > most || trace->bound > (uint64_t)most)
        return false;
    for (size_t at = 0; at < trace->records.len; at += sizeof record) {
        memcpy(&record, trace->records.data + at, sizeof record);
        if (record.kind <= TRACE_NONE || record.kind >= TRACE_KINDS ||
            record.start < 0 || record.start > most || record.duration < 0 ||
            record.duration > most)
            return false;
    }
    return true;
}

static enum status check_control(const Capstan__Control *control,
                                 struct failure *why) {
    if (control->version != MESSAGE_VERSION)
        return status_fail(
            why, FAILURE_VERSION_MISMATCH,
            "a message of protocol version %u (this is %d): run the "
            "same release of capstan everywhere",
            control->version, MESSAGE_VERSION);
    if (!has_valid_code(control))
        return status_fail(why, FAILURE_BAD_MESSAGE, "no known failure code");
    if (control->body_case == CAPSTAN__CONTROL__BODY_WELCOME &&
        !control->welcome->trainers)
        return status_fail(why, FAILURE_BAD_MESSAGE, "a run without trainers");
    if (control->body_case == CAPSTAN__CONTROL__BODY_WELCOME &&
        control->welcome->num_beyond >= control->welcome->trainers)
        return status_fail(why, FAILURE_BAD_MESSAGE,
                           "a run of %u trainers, of which %u are beyond the "
                           "list; expected less",
                           control->welcome->trainers,
                           control->welcome->num_beyond);
    if (control->body_case == CAPSTAN__CONTROL__BODY_WELCOME &&
        !is_span(control->welcome->chief_within))
        return status_fail(why, FAILURE_BAD_MESSAGE,
                           "a chief that is awaited for a time that is none");
    if (control->body_case == CAPSTAN__CONTROL__BODY_JOIN &&
        !has_past(control->join->past))
        return status_fail(why, FAILURE_BAD_MESSAGE,
                           "a join after a run that is none");
    if (control->body_case == CAPSTAN__CONTROL__BODY_JOIN &&
        control->join->rejoin)
        return check_rejoin(control->join->rejoin, why);
    if (control->body_case == CAPSTAN__CONTROL__BODY_POINTS &&
        !is_complete(control->points))
        return status_fail(why, FAILURE_BAD_MESSAGE,
                           "points with lists of different lengths");
    if (control->body_case == CAPSTAN__CONTROL__BODY_HEARTBEAT &&
        !has_durations(control->heartbeat))
        return status_fail(why, FAILURE_BAD_MESSAGE,
                           "a ps out of reach for a time that is none");
    if (control->body_case == CAPSTAN__CONTROL__BODY_HEARTBEAT &&
        !has_utilization(control->heartbeat))
        return status_fail(why, FAILURE_BAD_MESSAGE,
                           "GPUs used at %g %%, which is not from 0 to 100",
                           control->heartbeat->gpu_utilization);
    if (control->body_case == CAPSTAN__CONTROL__BODY_TRACE &&
        !has_records(control->trace))
        return status_fail(why, FAILURE_BAD_MESSAGE,
                           "records of steps that are none");
    if (control->body_case == CAPSTAN__CONTROL__BODY_HISTOGRAMS &&
        !histograms_check(control->histograms))
        return status_fail(why, FAILURE_BAD_MESSAGE,
                           "histograms that are none");
    if (control->body_case == CAPSTAN__CONTROL__BODY_REPORT)
        return process_report_check(control->report, why);
    return STATUS_OK;
}

uint32_t message_group_bytes(double link_gbits) {
    const double least = 64 << 10, most = MESSAGE_GROUP_BYTES;
    double bytes = least * ceil(link_gbits * 1e9 / 8 * 0.5e-3 / least);
    return (uint32_t)(bytes > 0 && bytes < most ? bytes : most);
}

enum status message_read_control(Capstan__Control **out, const void *bytes,
                                 size_t size, struct failure *why) {
    Capstan__Control *control =
        capstan__control__unpack(NULL, size, (const uint8_t *)bytes);
    if (!control)
        return status_fail(why, FAILURE_BAD_MESSAGE,
                           "%zu bytes that are not a control message", size);
    enum status status = check_control(control, why);
    if (status)
        capstan__control__free_unpacked(control, NULL);
    else
        *out = control;
    return status;
}

enum status message_check_view(const Capstan__View *view, uint32_t ranks,
                               struct failure *why) {
    if (view->n_slots != ranks)
        return status_fail(why, FAILURE_BAD_MESSAGE,
                           "a view of %zu trainers (the plan has %u)",
                           view->n_slots, ranks);
    for (size_t r = 0; r < view->n_slots; r++) {
        const Capstan__Slot *slot = view->slots[r];
        if (slot->incarnation && !slot->from_clock)
            return status_fail(why, FAILURE_BAD_MESSAGE,
                               "a view in which trainer %zu begins at clock 0 "
                               "(the first is 1)",
                               r);
        if (slot->role >= CLUSTER_ROLES)
            return status_fail(why, FAILURE_BAD_MESSAGE,
                               "a view in which trainer %zu has role %u (at "
                               "most %d)",
                               r, slot->role, CLUSTER_ROLES - 1);
    }
    return STATUS_OK;
}

Capstan__Control *message_copy_control(const Capstan__Control *control) {
    size_t size = capstan__control__get_packed_size(control);
    uint8_t *bytes = malloc(size + 1);
    Capstan__Control *copy = NULL;
    if (bytes) {
        capstan__control__pack(control, bytes);
        copy = capstan__control__unpack(NULL, size, bytes);
    }
    free(bytes);
    return copy;
}

void message_free_control(Capstan__Control **control) {
    if (*control)
        capstan__control__free_unpacked(*control, NULL);
    *control = NULL;
}

/* A bump allocator, emptied before the next header. It returns NULL when full,
 * so that a header with too many entries is refused. */
static void *arena_allocate(void *context, size_t size) {
    struct message_arena *arena = context;
    size_t rounded = (size + 15) & ~(size_t)15;
    if (rounded < size || rounded > sizeof arena->memory - arena->used)
        return NULL;
    void *memory = arena->memory + arena->used;
    arena->used += rounded;
    return memory;
}

static void arena_free(void *context, void *memory) {
    (void)context;
    (void)memory;
}

static enum status message_check_data(const Capstan__DataHeader *header,
                                      struct failure *why) {
    if (header->version != MESSAGE_VERSION)
        return status_fail(why, FAILURE_VERSION_MISMATCH,
                           "a message of protocol version %u (this is %d)",
                           header->version, MESSAGE_VERSION);
    if (header->kind <= CAPSTAN__DATA_HEADER__KIND__NONE ||
        header->kind > CAPSTAN__DATA_HEADER__KIND__PIECE)
        return status_fail(why, FAILURE_BAD_MESSAGE, "an unknown kind %d",
                           (int)header->kind);
    if (header->encoding > CAPSTAN__DATA_HEADER__ENCODING__ZERO ||
        (int)header->encoding < 0)
        return status_fail(why, FAILURE_BAD_MESSAGE, "an unknown encoding %d",
                           (int)header->encoding);
    if (!(header->loss_scale >= 0 && isfinite(header->loss_scale)))
        return status_fail(why, FAILURE_BAD_MESSAGE, "a loss scale of %g",
                           header->loss_scale);
    if (header->n_blocks > MESSAGE_MAX_BLOCKS)
        return status_fail(why, FAILURE_BAD_MESSAGE,
                           "%zu blocks in one message", header->n_blocks);
    return STATUS_OK;
}

enum status message_read_data(Capstan__DataHeader **out,
                              struct message_arena *arena, const void *bytes,
                              size_t size, struct failure *why) {
    ProtobufCAllocator allocator = {arena_allocate, arena_free, arena};
    arena->used = 0;
    Capstan__DataHeader *header =
        capstan__data_header__unpack(&allocator, size, (const uint8_t *)bytes);
    if (!header)
        return status_fail(why, FAILURE_BAD_MESSAGE,
                           "%zu bytes that are not a data header", size);
    *out = header;
    return message_check_data(header, why);
}

size_t message_write_data(Capstan__DataHeader *header, void *space) {
    header->version = MESSAGE_VERSION;
    return capstan__data_header__pack(header, space);
}
