/* SPDX-License-Identifier: Apache-2.0 */
/* Slices of one track must nest. What does not, such as the gradients that wait
 * at a ps, goes to further lanes: tracks of the same name, which Perfetto shows
 * as one. A slice goes to the first lane where it begins after all others, or
 * lies within the one that is open there.
 *
 * A message has a record for each of its blocks, with the same times: they are
 * one slice with a flow for each. */
#include "chief/report/perfetto_writer.h"

#include "chief/report/perfetto.pb-c.h"
#include "core/store/atomic_file.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BUFFER = 1 << 20, OPEN_SLICES = 16, SEQUENCE = 1, MONOTONIC = 3 };
enum { NAMES_ARE_NEW = 1, USES_NAMES = 2 };
enum { SLICE_BEGIN = 1, SLICE_END, INSTANT };

/* Tracks of a process, in this order. */
enum track {
    TRACK_COMPUTE,
    TRACK_COMMUNICATION,
    TRACK_QUEUE,
    TRACK_UPDATE,
    TRACK_REPLIES,
    TRACK_CHECKPOINT,
    TRACKS
};

static const char *const track_names[TRACKS] = {
    "compute", "communication", "queue", "update", "replies", "checkpoint"};

/* A flow goes on at an event, or ends there. */
enum flow { FLOW_NONE, FLOW_ON, FLOW_END };

static const struct {
    const char *name;
    enum track track;
    enum flow flow;
} kinds[TRACE_KINDS] = {
    [TRACE_FORWARD] = {"forward", TRACK_COMPUTE, FLOW_NONE},
    [TRACE_BACKWARD] = {"backward", TRACK_COMPUTE, FLOW_NONE},
    [TRACE_INPUT] = {"input", TRACK_COMPUTE, FLOW_NONE},
    [TRACE_WAIT] = {"wait", TRACK_COMPUTE, FLOW_NONE},
    [TRACE_PUSH] = {"push", TRACK_COMMUNICATION, FLOW_ON},
    [TRACE_LOOKUP] = {"lookup", TRACK_COMMUNICATION, FLOW_NONE},
    [TRACE_ROWS] = {"rows", TRACK_COMMUNICATION, FLOW_NONE},
    [TRACE_ARRIVAL] = {"reply", TRACK_COMMUNICATION, FLOW_END},
    [TRACE_QUEUE] = {"queue", TRACK_QUEUE, FLOW_NONE},
    [TRACE_SUM] = {"sum", TRACK_UPDATE, FLOW_NONE},
    [TRACE_APPLY] = {"apply", TRACK_UPDATE, FLOW_ON},
    [TRACE_REPLY] = {"reply", TRACK_REPLIES, FLOW_ON},
    [TRACE_CHECKPOINT] = {"checkpoint", TRACK_CHECKPOINT, FLOW_NONE},
};

/* Names of arguments; of events their kind, and then: */
enum { NAME_PROCESS = TRACE_KINDS, EVENT_NAMES };
enum argument {
    ARGUMENT_STEP = 1,
    ARGUMENT_BLOCK,
    ARGUMENT_BLOCKS,
    ARGUMENT_RANK,
    ARGUMENT_RUN,
    ARGUMENT_FIRST,
    ARGUMENT_LAST,
    ARGUMENT_HOST,
    ARGUMENT_PID,
    ARGUMENT_OFFSET,
    ARGUMENT_BOUND,
    ARGUMENT_RECORDS,
    ARGUMENT_DROPPED,
    ARGUMENT_MISSING,
    ARGUMENTS
};
static const char *const argument_names[ARGUMENTS] = {
    [ARGUMENT_STEP] = "step",
    [ARGUMENT_BLOCK] = "block",
    [ARGUMENT_BLOCKS] = "blocks",
    [ARGUMENT_RANK] = "rank",
    [ARGUMENT_RUN] = "run",
    [ARGUMENT_FIRST] = "first_step",
    [ARGUMENT_LAST] = "last_step",
    [ARGUMENT_HOST] = "host",
    [ARGUMENT_PID] = "pid",
    [ARGUMENT_OFFSET] = "clock_offset_ns",
    [ARGUMENT_BOUND] = "clock_bound_ns",
    [ARGUMENT_RECORDS] = "records",
    [ARGUMENT_DROPPED] = "dropped",
    [ARGUMENT_MISSING] = "missing",
};

struct writer {
    struct atomic_file file;
    struct failure *why;
    enum status status;
    size_t used, capacity;
    uint8_t *bytes; /* [capacity], of which USED wait to be written */
    uint64_t *flows;
    size_t num_flows, max_flows;
    uint64_t last_uuid;
};

/* A track while its slices are written: ends of those that are open. */
struct lane {
    uint64_t uuid;
    int64_t ends[OPEN_SLICES];
    unsigned open;
};

/* Of one lane, or of several. */
struct lane_ends {
    int64_t first; /* end of an innermost open slice; TIME_NEVER: none */
    int64_t last;  /* the last that a further slice may have */
};

/* Many slices may overlap: lanes are found by a binary tree over them. */
struct lanes {
    struct lane *list; /* [capacity], a power of two; COUNT have a track */
    size_t count, capacity;
    struct lane_ends *tree; /* [2 * capacity]: 1 is the root, the children of N
                               are 2 N and 2 N + 1, lane I is CAPACITY + I */
};

static void no_memory(struct writer *writer) {
    if (!writer->status)
        writer->status = status_fail(writer->why, FAILURE_NO_MEMORY,
                                     "no memory for %s", writer->file.path);
}

static void flush(struct writer *writer) {
    if (!writer->status)
        writer->status = atomic_file_write(&writer->file, writer->bytes,
                                           writer->used, writer->why);
    writer->used = 0;
}

/* Makes room for SIZE bytes. */
static bool reserve_bytes(struct writer *writer, size_t size) {
    if (writer->used + size > writer->capacity)
        flush(writer);
    if (size > writer->capacity) {
        uint8_t *more = realloc(writer->bytes, size);
        if (!more) {
            no_memory(writer);
            return false;
        }
        writer->bytes = more;
        writer->capacity = size;
    }
    return !writer->status;
}

/* The packets of one Trace: each is written as its field. */
static void write_packet(struct writer *writer, Perfetto__TracePacket *packet) {
    enum { TAG = 1 << 3 | 2, MOST = 16 };
    packet->trusted_packet_sequence_id = SEQUENCE;
    packet->timestamp_clock_id = MONOTONIC;
    size_t size = perfetto__trace_packet__get_packed_size(packet);
    if (!reserve_bytes(writer, size + MOST))
        return;
    uint8_t *to = writer->bytes + writer->used;
    *to++ = TAG;
    size_t rest = size;
    for (; rest > 0x7f; rest >>= 7)
        *to++ = (uint8_t)((rest & 0x7f) | 0x80);
    *to++ = (uint8_t)rest;
    to += perfetto__trace_packet__pack(packet, to);
    writer->used = (size_t)(to - writer->bytes);
}

static uint64_t clock_now(clockid_t id) {
    struct timespec now;
    clock_gettime(id, &now);
    return (uint64_t)(now.tv_sec * TIME_S + now.tv_nsec);
}

/* How the times of the file, which are of the chief's monotonic clock, lie to
 * the calendar and to other traces of its host. */
static void write_clocks(struct writer *writer) {
    static const clockid_t ids[] = {CLOCK_REALTIME, CLOCK_MONOTONIC,
                                    CLOCK_BOOTTIME};
    static const uint32_t numbers[] = {1, MONOTONIC, 6};
    enum { COUNT = sizeof ids / sizeof *ids };
    Perfetto__ClockSnapshot__Clock clocks[COUNT], *list[COUNT];
    Perfetto__ClockSnapshot snapshot = PERFETTO__CLOCK_SNAPSHOT__INIT;
    Perfetto__TracePacket packet = PERFETTO__TRACE_PACKET__INIT;
    for (unsigned i = 0; i < COUNT; i++) {
        perfetto__clock_snapshot__clock__init(&clocks[i]);
        clocks[i].clock_id = numbers[i];
        clocks[i].timestamp = clock_now(ids[i]);
        list[i] = &clocks[i];
    }
    snapshot.n_clocks = COUNT;
    snapshot.clocks = list;
    snapshot.primary_trace_clock = MONOTONIC;
    packet.timestamp = clocks[1].timestamp;
    packet.data_case = PERFETTO__TRACE_PACKET__DATA_CLOCK_SNAPSHOT;
    packet.clock_snapshot = &snapshot;
    write_packet(writer, &packet);
}

static void write_descriptor(struct writer *writer,
                             Perfetto__TrackDescriptor *descriptor) {
    Perfetto__InternedName names[EVENT_NAMES + ARGUMENTS];
    Perfetto__InternedName *events[EVENT_NAMES], *arguments[ARGUMENTS];
    Perfetto__InternedData data = PERFETTO__INTERNED_DATA__INIT;
    Perfetto__TracePacket packet = PERFETTO__TRACE_PACKET__INIT;
    packet.data_case = PERFETTO__TRACE_PACKET__DATA_TRACK_DESCRIPTOR;
    packet.track_descriptor = descriptor;
    descriptor->uuid = ++writer->last_uuid;
    if (descriptor->uuid == 1) { /* the first packet has all names */
        for (uint64_t i = 1; i < EVENT_NAMES + ARGUMENTS - 1; i++) {
            bool event = i < EVENT_NAMES;
            perfetto__interned_name__init(&names[i]);
            names[i].iid = event ? i : i - EVENT_NAMES + 1;
            names[i].name = (char *)(!event ? argument_names[names[i].iid]
                                     : i == NAME_PROCESS ? "process"
                                                         : kinds[i].name);
            if (event)
                events[data.n_event_names++] = &names[i];
            else
                arguments[data.n_debug_annotation_names++] = &names[i];
        }
        data.event_names = events;
        data.debug_annotation_names = arguments;
        packet.interned_data = &data;
        packet.sequence_flags = NAMES_ARE_NEW;
    }
    write_packet(writer, &packet);
}

/* Arguments of one event. */
struct arguments {
    Perfetto__DebugAnnotation items[ARGUMENTS], *list[ARGUMENTS];
    size_t count;
};

static Perfetto__DebugAnnotation *annotate(struct arguments *arguments,
                                           enum argument name) {
    Perfetto__DebugAnnotation *item = &arguments->items[arguments->count];
    perfetto__debug_annotation__init(item);
    item->name_iid = name;
    arguments->list[arguments->count++] = item;
    return item;
}

static void annotate_number(struct arguments *arguments, enum argument name,
                            uint64_t number) {
    Perfetto__DebugAnnotation *item = annotate(arguments, name);
    item->value_case = PERFETTO__DEBUG_ANNOTATION__VALUE_UINT_VALUE;
    item->uint_value = number;
}

static void annotate_text(struct arguments *arguments, enum argument name,
                          const char *text) {
    Perfetto__DebugAnnotation *item = annotate(arguments, name);
    item->value_case = PERFETTO__DEBUG_ANNOTATION__VALUE_STRING_VALUE;
    item->string_value = (char *)text;
}

static void write_track_event(struct writer *writer, int64_t at,
                              Perfetto__TrackEvent *event,
                              struct arguments *arguments) {
    Perfetto__TracePacket packet = PERFETTO__TRACE_PACKET__INIT;
    if (arguments) {
        event->n_debug_annotations = arguments->count;
        event->debug_annotations = arguments->list;
    }
    packet.timestamp = (uint64_t)at;
    packet.data_case = PERFETTO__TRACE_PACKET__DATA_TRACK_EVENT;
    packet.track_event = event;
    packet.sequence_flags = USES_NAMES;
    write_packet(writer, &packet);
}

static void write_end(struct writer *writer, struct lane *lane) {
    Perfetto__TrackEvent event = PERFETTO__TRACK_EVENT__INIT;
    event.type = SLICE_END;
    event.track_uuid = lane->uuid;
    write_track_event(writer, lane->ends[--lane->open], &event, NULL);
}

static void update_tree(struct lanes *lanes, size_t i) {
    const struct lane *lane = &lanes->list[i];
    struct lane_ends *tree = lanes->tree;
    int64_t end = lane->open ? lane->ends[lane->open - 1] : TIME_NEVER;
    size_t node = lanes->capacity + i;
    tree[node].first = end;
    tree[node].last = lane->open < OPEN_SLICES ? end : -1;
    while (node /= 2) {
        const struct lane_ends *left = &tree[2 * node], *right = left + 1;
        tree[node].first =
            left->first < right->first ? left->first : right->first;
        tree[node].last = left->last > right->last ? left->last : right->last;
    }
}

/* New lanes are without a track, and take any slice. False: no memory. */
static bool add_lanes(struct writer *writer, struct lanes *lanes) {
    size_t capacity = lanes->capacity ? lanes->capacity * 2 : 8;
    struct lane *list = realloc(lanes->list, capacity * sizeof *list);
    if (list)
        lanes->list = list;
    struct lane_ends *tree =
        realloc(lanes->tree, 2 * capacity * sizeof *lanes->tree);
    if (tree)
        lanes->tree = tree;
    if (!list || !tree) {
        no_memory(writer);
        return false;
    }
    for (size_t i = 0; i < 2 * capacity; i++)
        tree[i] = (struct lane_ends){TIME_NEVER, TIME_NEVER};
    for (size_t i = lanes->capacity; i < capacity; i++)
        list[i] = (struct lane){.open = 0};
    lanes->capacity = capacity;
    for (size_t i = 0; i < lanes->count; i++)
        update_tree(lanes, i);
    return true;
}

/* Ends the slices that are over at NOW. */
static void end_slices(struct writer *writer, struct lanes *lanes,
                       int64_t now) {
    while (lanes->capacity && lanes->tree[1].first <= now) {
        size_t node = 1;
        while (node < lanes->capacity)
            node = 2 * node +
                   (lanes->tree[2 * node].first > lanes->tree[node].first);
        write_end(writer, &lanes->list[node - lanes->capacity]);
        update_tree(lanes, node - lanes->capacity);
    }
}

/* The first lane that takes a slice until END, once those that are over are
 * ended; NULL: no memory. */
static struct lane *find_lane(struct writer *writer, struct lanes *lanes,
                              const char *name, uint64_t parent, int64_t end) {
    if ((!lanes->capacity || lanes->tree[1].last < end) &&
        !add_lanes(writer, lanes))
        return NULL;
    size_t node = 1;
    while (node < lanes->capacity)
        node = 2 * node + (lanes->tree[2 * node].last < end);
    struct lane *lane = &lanes->list[node - lanes->capacity];
    if (node - lanes->capacity == lanes->count) {
        Perfetto__TrackDescriptor track = PERFETTO__TRACK_DESCRIPTOR__INIT;
        track.name = (char *)name;
        track.parent_uuid = parent;
        write_descriptor(writer, &track);
        lane->uuid = track.uuid;
        lanes->count++;
    }
    return lane;
}

/* The bits of a flow's three numbers mixed (splitmix64), so that two flows of a
 * trace hardly ever have the same; not 0. */
static uint64_t mix(uint64_t value) {
    value += UINT64_C(0x9e3779b97f4a7c15);
    value = (value ^ value >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    value = (value ^ value >> 27) * UINT64_C(0x94d049bb133111eb);
    return value ^ value >> 31;
}

static uint64_t flow_of(uint32_t rank, uint32_t block, uint64_t step) {
    return mix(mix((uint64_t)rank << 32 | block) ^ step) | 1;
}

static void add_flow(struct writer *writer, uint64_t flow) {
    if (writer->num_flows == writer->max_flows) {
        size_t most = writer->max_flows * 2 + 64;
        uint64_t *flows = realloc(writer->flows, most * sizeof *flows);
        if (!flows) {
            no_memory(writer);
            return;
        }
        writer->flows = flows;
        writer->max_flows = most;
    }
    writer->flows[writer->num_flows++] = flow;
}

/* Of a ps: updates are of several ranks, checkpoints of none. */
static bool of_one_rank(unsigned kind) {
    return kind == TRACE_QUEUE || kind == TRACE_REPLY || kind == TRACE_LOOKUP;
}

/* Of COUNT records of one slice, which are sorted: an update has one for each
 * rank. */
static size_t blocks_of_slice(const struct trace_record *records,
                              size_t count) {
    size_t blocks = 1;
    for (size_t i = 1; i < count; i++)
        blocks += records[i].block != records[i - 1].block;
    return blocks;
}

/* COUNT records of one message or update as one slice. */
static void write_slice(struct writer *writer,
                        const struct perfetto_process *process,
                        struct lane *lane, const struct trace_record *records,
                        size_t count) {
    Perfetto__TrackEvent event = PERFETTO__TRACK_EVENT__INIT;
    struct arguments arguments = {.count = 0};
    enum flow flow = kinds[records->kind].flow;
    writer->num_flows = 0;
    for (size_t i = 0; i < count && flow; i++)
        add_flow(writer,
                 flow_of(process->trainer ? process->rank : records[i].rank,
                         records[i].block, records[i].step));
    if (writer->status)
        return;
    event.type = SLICE_BEGIN;
    event.name_iid = records->kind;
    event.track_uuid = lane->uuid;
    if (flow == FLOW_ON) {
        event.n_flow_ids = writer->num_flows;
        event.flow_ids = writer->flows;
    } else if (flow == FLOW_END) {
        event.n_terminating_flow_ids = writer->num_flows;
        event.terminating_flow_ids = writer->flows;
    }
    annotate_number(&arguments, ARGUMENT_STEP, records->step);
    annotate_number(&arguments, ARGUMENT_BLOCK, records->block);
    size_t blocks = blocks_of_slice(records, count);
    if (blocks > 1)
        annotate_number(&arguments, ARGUMENT_BLOCKS, blocks);
    if (!process->trainer && of_one_rank(records->kind))
        annotate_number(&arguments, ARGUMENT_RANK, records->rank);
    write_track_event(writer, records->start, &event, &arguments);
    lane->ends[lane->open++] = records->start + records->duration;
}

static int by_track_and_time(const void *left, const void *right) {
    const struct trace_record *a = left, *b = right;
    enum track tracks[2] = {kinds[a->kind].track, kinds[b->kind].track};
    if (tracks[0] != tracks[1])
        return tracks[0] < tracks[1] ? -1 : 1;
    if (a->start != b->start)
        return a->start < b->start ? -1 : 1;
    if (a->duration != b->duration)
        return a->duration > b->duration ? -1 : 1;
    if (a->kind != b->kind)
        return a->kind < b->kind ? -1 : 1;
    return (a->block > b->block) - (a->block < b->block);
}

/* How many records from FIRST on, of COUNT, are one slice. */
static size_t same_slice(const struct trace_record *first, size_t count) {
    size_t same = 1;
    while (same < count && first->kind != TRACE_QUEUE &&
           first[same].kind == first->kind &&
           first[same].start == first->start &&
           first[same].duration == first->duration)
        same++;
    return same;
}

/* The slices of one track, from record AT on; returns the first record behind
 * them. */
static size_t write_track(struct writer *writer,
                          const struct perfetto_process *process,
                          uint64_t parent, size_t at) {
    struct lanes lanes = {.count = 0};
    enum track track = kinds[process->records[at].kind].track;
    while (!writer->status && at < process->count &&
           kinds[process->records[at].kind].track == track) {
        const struct trace_record *record = &process->records[at];
        size_t count = same_slice(record, process->count - at);
        end_slices(writer, &lanes, record->start);
        struct lane *lane = find_lane(writer, &lanes, track_names[track],
                                      parent, record->start + record->duration);
        if (lane) {
            write_slice(writer, process, lane, record, count);
            update_tree(&lanes, (size_t)(lane - lanes.list));
        }
        at += count;
    }
    end_slices(writer, &lanes, TIME_NEVER - 1);
    free(lanes.list);
    free(lanes.tree);
    return at;
}

/* What is known about PROCESS, at its first record. */
static void write_process_facts(struct writer *writer,
                                const struct perfetto_trace *trace,
                                const struct perfetto_process *process,
                                uint64_t uuid, int64_t at) {
    Perfetto__TrackEvent event = PERFETTO__TRACK_EVENT__INIT;
    struct arguments arguments = {.count = 0};
    char run[20];
    snprintf(run, sizeof run, "%016llx", (unsigned long long)trace->run);
    event.type = INSTANT;
    event.name_iid = NAME_PROCESS;
    event.track_uuid = uuid;
    annotate_text(&arguments, ARGUMENT_RUN, run);
    annotate_number(&arguments, ARGUMENT_FIRST, trace->first);
    annotate_number(&arguments, ARGUMENT_LAST, trace->last);
    annotate_text(&arguments, ARGUMENT_HOST, process->host);
    annotate_number(&arguments, ARGUMENT_PID, process->pid);
    if (process->trainer)
        annotate_number(&arguments, ARGUMENT_RANK, process->rank);
    if (process->has_offset) {
        Perfetto__DebugAnnotation *offset =
            annotate(&arguments, ARGUMENT_OFFSET);
        offset->value_case = PERFETTO__DEBUG_ANNOTATION__VALUE_INT_VALUE;
        offset->int_value = process->offset;
        annotate_number(&arguments, ARGUMENT_BOUND, process->bound);
    }
    annotate_number(&arguments, ARGUMENT_RECORDS, process->count);
    annotate_number(&arguments, ARGUMENT_DROPPED, process->dropped);
    if (process->missing)
        annotate_text(&arguments, ARGUMENT_MISSING, process->missing);
    write_track_event(writer, at, &event, &arguments);
}

static int64_t first_start(const struct perfetto_process *process) {
    int64_t first = TIME_NEVER;
    for (size_t i = 0; i < process->count; i++)
        if (process->records[i].start < first)
            first = process->records[i].start;
    return first;
}

/* Processes of several hosts may have one pid, and roles of one process do: in
 * the file they are numbered, and the pid is an argument. */
static void write_process(struct writer *writer,
                          const struct perfetto_trace *trace, size_t number,
                          int64_t begin) {
    const struct perfetto_process *process = &trace->processes[number];
    Perfetto__ProcessDescriptor descriptor = PERFETTO__PROCESS_DESCRIPTOR__INIT;
    Perfetto__TrackDescriptor track = PERFETTO__TRACK_DESCRIPTOR__INIT;
    descriptor.pid = (int32_t)number + 1;
    descriptor.process_name = (char *)process->name;
    track.process = &descriptor;
    write_descriptor(writer, &track);
    int64_t first = first_start(process);
    write_process_facts(writer, trace, process, track.uuid,
                        first == TIME_NEVER ? begin : first);
    if (process->count)
        qsort(process->records, process->count, sizeof *process->records,
              by_track_and_time);
    for (size_t at = 0; !writer->status && at < process->count;)
        at = write_track(writer, process, track.uuid, at);
}

/* When the first of all records begins; without any, now. */
static int64_t trace_start(const struct perfetto_trace *trace) {
    int64_t begin = TIME_NEVER;
    for (size_t i = 0; i < trace->num_processes; i++) {
        int64_t first = first_start(&trace->processes[i]);
        begin = first < begin ? first : begin;
    }
    return begin == TIME_NEVER ? time_now() : begin;
}

enum status perfetto_write(const char *path, const struct perfetto_trace *trace,
                           struct failure *why) {
    struct writer writer = {.why = why};
    enum status status = atomic_file_create(&writer.file, path, 0, why);
    if (status)
        return status;
    int64_t begin = trace_start(trace);
    if (reserve_bytes(&writer, BUFFER))
        write_clocks(&writer);
    for (size_t i = 0; !writer.status && i < trace->num_processes; i++)
        write_process(&writer, trace, i, begin);
    flush(&writer);
    free(writer.bytes);
    free(writer.flows);
    return atomic_file_finish(&writer.file, writer.status, why);
}
