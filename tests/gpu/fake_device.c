/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpu/fake_device.h"

#include "core/base/time.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { PAGE = 4096, ALIGNMENT = 64, MAX_DEVICES = 16, MAX_PIECES = 256 };
static const uint64_t USUAL_MEMORY = 64 << 20;

struct piece {
    char *memory;
    size_t bytes;
    bool used;
};

struct device {
    struct fake_device_settings plan;
    uint32_t index;
    char *memory;
    uint64_t top; /* bytes dealt out so far */
    struct piece pieces[MAX_PIECES], pinned[MAX_PIECES];
    unsigned num_pieces, num_pinned, num_events;
    struct fake_streams streams;
    struct fake_stream_hook hooks[DEVICE_STREAMS];
    uint64_t calls, allocations, uploaded, downloaded;
    struct device_settings settings;
    bool lost, hangs, spans;
};

/* STREAM had been given POSITION commands. */
struct device_event {
    enum device_stream stream;
    uint64_t position;
};

static struct fake_device_settings arranged;
static bool is_arranged;
static atomic_ullong in_use[MAX_DEVICES]; /* bytes */

static void misused(const char *what) {
    fprintf(stderr, "fake device: %s\n", what);
    abort();
}

void fake_device_configure(const struct fake_device_settings *plan) {
    arranged = *plan;
    is_arranged = true;
    if (!arranged.memory)
        arranged.memory = USUAL_MEMORY;
}

static uint64_t number_of(const char *text, const char *name) {
    const char *found = strstr(text, name);
    return found ? strtoull(found + strlen(name), NULL, 10) : 0;
}

/* The plugin is arranged by the environment. */
static const struct fake_device_settings *plan(void) {
    const char *text = getenv("CAPSTAN_FAKE_DEVICE");
    if (is_arranged)
        return &arranged;
    fake_device_configure(&(struct fake_device_settings){
        .order = (enum fake_device_order)number_of(text ? text : "", "order="),
        .seed = number_of(text ? text : "", "seed="),
        .devices = text ? (uint32_t)number_of(text, "devices=") : 1,
        .memory = number_of(text ? text : "", "memory="),
        .lose_at = number_of(text ? text : "", "lose="),
        .lost_device = (uint32_t)number_of(text ? text : "", "loser="),
        .hang_at = number_of(text ? text : "", "hang="),
        .fail_allocation = number_of(text ? text : "", "refuse="),
        .machine = (uint32_t)number_of(text ? text : "", "machine="),
        .first = (uint32_t)number_of(text ? text : "", "first="),
        .unsupported = text && strstr(text, "older"),
        .unpinnable = text && strstr(text, "unpinnable"),
        .without_ids = text && strstr(text, "nameless"),
    });
    return &arranged;
}

static enum status check(struct failure *why) {
    (void)why;
    return STATUS_OK;
}

static uint32_t count(void) {
    return plan()->devices;
}

static enum status describe(uint32_t index, struct device_description *out,
                            struct failure *why) {
    (void)why;
    *out = (struct device_description){.name = "Fake GPU",
                                       .major = plan()->unsupported   ? 3
                                                : plan()->before_tf32 ? 7
                                                                      : 9,
                                       .total = plan()->memory,
                                       .free = plan()->memory -
                                               atomic_load(&in_use[index]),
                                       .usable = !plan()->unsupported};
    if (!plan()->without_ids)
        snprintf(out->id, sizeof out->id, "fake %u.%u", plan()->machine,
                 plan()->first + index);
    if (plan()->unsupported)
        snprintf(out->reason, sizeof out->reason,
                 "compute capability 3.0 is older than this build");
    return STATUS_OK;
}

static enum status identify(uint32_t index, struct device_description *out,
                            struct failure *why) {
    enum status status = describe(index, out, why);
    out->free = 0;
    return status;
}

static void put(const struct fake_stream_hook *door, void (*work)(void *what),
                void *what, void *memory, size_t bytes);

static enum status open_device(struct device **out,
                               const struct device_settings *settings,
                               struct failure *why) {
    struct device *device = calloc(1, sizeof *device);
    if (!device || settings->index >= MAX_DEVICES)
        misused("opened beyond what there is");
    device->plan = *plan();
    device->index = settings->index;
    device->settings = *settings;
    device->streams.order = device->plan.order;
    device->streams.random = device->plan.seed + 1;
    for (int s = 0; s < DEVICE_STREAMS; s++)
        device->hooks[s] =
            (struct fake_stream_hook){device, (enum device_stream)s, put};
    device->memory = mmap(NULL, device->plan.memory, PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (device->memory == MAP_FAILED)
        misused("no address space");
    *out = device;
    return ops_cpu_open(&device->streams.cpu, settings->threads, why);
}

/* The host may touch the device's memory only while the device works. */
static void protect(const struct device *device, int rights) {
    uint64_t used = (device->top + PAGE - 1) / PAGE * PAGE;
    if (used && mprotect(device->memory, used, rights))
        misused("memory cannot be protected");
}

static bool is_device(const struct device *device, const void *memory) {
    const char *byte = memory;
    return byte >= device->memory && byte < device->memory + device->top;
}

static void expect_device(const struct device *device, const void *memory) {
    if (memory && !is_device(device, memory))
        misused("a call on memory that is not the device's");
}

/* In a span a device is given what it may hold back, and nothing else. */
static void expect_no_span(const struct device *device) {
    if (device->spans)
        misused("a call within a span that none may have");
}

static void capture_begin(struct device *device) {
    expect_no_span(device);
    device->spans = true;
}

static void capture_end(struct device *device) {
    if (!device->spans)
        misused("the end of no span");
    device->spans = false;
}

static void give(struct device *device, enum device_stream stream,
                 const struct fake_command *command) {
    device->calls++;
    if (device->calls == device->plan.lose_at &&
        device->index == device->plan.lost_device)
        device->lost = true;
    if (device->calls == device->plan.hang_at)
        device->hangs = true;
    if (device->lost || device->hangs)
        return;
    fake_streams_submit(&device->streams, stream, command);
    if (device->plan.order == FAKE_DEVICE_LAZY)
        return;
    protect(device, PROT_READ | PROT_WRITE);
    fake_streams_advance(&device->streams);
    protect(device, PROT_NONE);
}

static enum status run_all(struct device *device,
                           const struct device_event *event,
                           struct failure *why) {
    if (device->lost)
        return status_fail(why, FAILURE_DEVICE_LOST,
                           "device cuda %u (Fake GPU) is lost: as arranged",
                           device->index);
    protect(device, PROT_READ | PROT_WRITE);
    for (unsigned s = 0; s < DEVICE_STREAMS; s++)
        if (!event || event->stream == s)
            fake_streams_run(&device->streams, s,
                             event ? event->position
                                   : device->streams.all[s].given);
    fake_streams_advance(&device->streams);
    protect(device, PROT_NONE);
    return STATUS_OK;
}

/* What never comes, until it has taken too long or is given up. */
static enum status await_in_vain(const struct device *device,
                                 struct failure *why) {
    static const struct timespec moment = {.tv_nsec = 1000000};
    const struct device_settings *settings = &device->settings;
    int64_t until = time_now() + time_from_seconds(settings->timeout);
    while (time_now() < until) {
        if (settings->is_cancelled && settings->is_cancelled(settings->context))
            return status_fail(why, FAILURE_CANCELLED, "given up");
        nanosleep(&moment, NULL);
    }
    return status_fail(why, FAILURE_DEVICE_TIMEOUT,
                       "device cuda %u (Fake GPU) has not finished its work "
                       "for %.3g s (timeouts.step)",
                       device->index, settings->timeout);
}

static enum status event_sync(struct device *device, struct device_event *event,
                              struct failure *why) {
    expect_no_span(device);
    return device->hangs ? await_in_vain(device, why)
                         : run_all(device, event, why);
}

static enum status synchronize(struct device *device, struct failure *why) {
    expect_no_span(device);
    device->lost |= device->hangs;
    return run_all(device, NULL, why);
}

static void close_device(struct device **where) {
    struct device *device = *where;
    *where = NULL;
    if (!device)
        return;
    if (synchronize(device, NULL) && !device->lost)
        misused("it does not end");
    for (unsigned i = 0; i < device->num_pieces; i++)
        if (device->pieces[i].used)
            misused("memory was not released");
    if (device->num_pinned || device->num_events)
        misused("pinned memory or events are left");
    fake_streams_close(&device->streams);
    munmap(device->memory, device->plan.memory);
    ops_cpu_close(&device->streams.cpu);
    free(device);
}

/* Nothing can be read out of memory that nothing has been written to. */
static void spoil(struct device *device, const struct piece *piece) {
    protect(device, PROT_READ | PROT_WRITE);
    memset(piece->memory, 0xff, piece->bytes);
    protect(device, PROT_NONE);
}

static struct piece *find_room(struct device *device, size_t bytes) {
    for (unsigned i = 0; i < device->num_pieces; i++)
        if (!device->pieces[i].used && device->pieces[i].bytes == bytes)
            return &device->pieces[i];
    if (device->top + bytes > device->plan.memory)
        return NULL;
    if (device->num_pieces == MAX_PIECES)
        misused("too many pieces of memory");
    struct piece *piece = &device->pieces[device->num_pieces++];
    *piece = (struct piece){device->memory + device->top, bytes, false};
    device->top += bytes;
    return piece;
}

static void *allocate(struct device *device, size_t bytes) {
    size_t rounded = (bytes / ALIGNMENT + 1) * ALIGNMENT;
    expect_no_span(device);
    if (++device->allocations == device->plan.fail_allocation)
        return NULL;
    struct piece *piece = find_room(device, rounded);
    if (!piece)
        return NULL;
    piece->used = true;
    atomic_fetch_add(&in_use[device->index], piece->bytes);
    spoil(device, piece);
    return piece->memory;
}

static void release(struct device *device, void *memory) {
    expect_no_span(device);
    for (unsigned i = 0; memory && i < device->num_pieces; i++) {
        struct piece *piece = &device->pieces[i];
        if (piece->memory != memory || !piece->used)
            continue;
        if (!device->lost &&
            fake_streams_is_in_use(&device->streams, memory, piece->bytes))
            misused("memory was released that is being computed with");
        piece->used = false;
        atomic_fetch_sub(&in_use[device->index], piece->bytes);
        spoil(device, piece);
        return;
    }
    if (memory)
        misused("memory released that is not the device's");
}

static bool share_a_page(const struct piece *piece, const char *memory,
                         size_t bytes) {
    uintptr_t first = (uintptr_t)memory / PAGE;
    uintptr_t last = ((uintptr_t)memory + bytes - 1) / PAGE;
    uintptr_t own_first = (uintptr_t)piece->memory / PAGE;
    uintptr_t own_last = ((uintptr_t)piece->memory + piece->bytes - 1) / PAGE;
    return first <= own_last && own_first <= last;
}

static bool pin(struct device *device, void *memory, size_t bytes) {
    expect_no_span(device);
    if (device->plan.unpinnable)
        return false;
    for (unsigned i = 0; i < device->num_pinned; i++)
        if (share_a_page(&device->pinned[i], memory, bytes))
            misused("a page is pinned twice");
    if (device->num_pinned == MAX_PIECES)
        misused("too much is pinned");
    device->pinned[device->num_pinned++] = (struct piece){memory, bytes, true};
    return true;
}

static void unpin(struct device *device, void *memory) {
    expect_no_span(device);
    for (unsigned i = 0; i < device->num_pinned; i++) {
        if (device->pinned[i].memory != memory)
            continue;
        if (!device->lost && fake_streams_is_in_use(&device->streams, memory,
                                                    device->pinned[i].bytes))
            misused("memory was unpinned that is being copied");
        device->pinned[i] = device->pinned[--device->num_pinned];
        return;
    }
}

static void upload(struct device *device, enum device_stream stream, void *to,
                   const void *from, size_t bytes) {
    expect_device(device, to);
    if (is_device(device, from))
        misused("an upload of the device's own memory");
    device->uploaded += bytes;
    give(device, stream,
         &(struct fake_command){
             .kind = FAKE_COPY, .to = to, .a = from, .bytes = bytes});
}

static void download(struct device *device, enum device_stream stream, void *to,
                     const void *from, size_t bytes) {
    expect_device(device, from);
    if (is_device(device, to))
        misused("a download to the device's own memory");
    device->downloaded += bytes;
    give(device, stream,
         &(struct fake_command){
             .kind = FAKE_COPY, .to = to, .a = from, .bytes = bytes});
}

static void copy(struct device *device, enum device_stream stream, void *to,
                 const void *from, size_t bytes) {
    expect_device(device, to);
    expect_device(device, from);
    give(device, stream,
         &(struct fake_command){
             .kind = FAKE_COPY, .to = to, .a = from, .bytes = bytes});
}

static void *native_stream(struct device *device, enum device_stream stream) {
    return &device->hooks[stream];
}

static void put(const struct fake_stream_hook *door, void (*work)(void *what),
                void *what, void *memory, size_t bytes) {
    struct device *device = door->context;
    expect_device(device, memory);
    give(device, door->stream,
         &(struct fake_command){.kind = FAKE_OTHER,
                                .work = work,
                                .what = what,
                                .to = memory,
                                .bytes = bytes});
}

static struct device_event *event_open(struct device *device) {
    struct device_event *event = calloc(1, sizeof *event);
    expect_no_span(device);
    device->num_events += event != NULL;
    return event;
}

static void event_close(struct device *device, struct device_event **event) {
    expect_no_span(device);
    device->num_events--;
    free(*event);
    *event = NULL;
}

static void record(struct device *device, enum device_stream stream,
                   struct device_event *event) {
    *event = (struct device_event){stream, device->streams.all[stream].given};
}

static void stream_wait(struct device *device, enum device_stream stream,
                        struct device_event *event) {
    give(device, stream,
         &(struct fake_command){.kind = FAKE_STREAM_WAIT,
                                .after = event->stream,
                                .position = event->position});
}

static void range(struct device *device, const char *name) {
    (void)device, (void)name;
}

static void set_precision(struct device *device, enum job_precision precision) {
    expect_no_span(device);
    give(
        device, STREAM_COMPUTE,
        &(struct fake_command){.kind = FAKE_PRECISION, .word = (int)precision});
}

static bool supports(const struct device *device, struct op op) {
    return ops_cpu()->supports(device->streams.cpu, op);
}

static enum status prepare(struct device *device, struct op op,
                           struct failure *why) {
    (void)op, (void)why;
    expect_no_span(device);
    return STATUS_OK;
}

static void run(struct device *device, enum device_stream stream,
                struct op op) {
    for (unsigned i = 0; i < OP_TENSORS; i++)
        expect_device(device, op_tensor_at(&op, i)->data);
    give(device, stream, &(struct fake_command){.kind = FAKE_OP, .op = op});
}

extern const struct device_ops capstan_device;

__attribute__((visibility("default")))
const struct device_ops capstan_device = {
    .abi = DEVICE_ABI,
    .name = "cuda",
    .version = "fake",
    .check = check,
    .async = true,
    .count = count,
    .describe = describe,
    .identify = identify,
    .open = open_device,
    .close = close_device,
    .allocate = allocate,
    .release = release,
    .pin = pin,
    .unpin = unpin,
    .upload = upload,
    .download = download,
    .copy = copy,
    .native_stream = native_stream,
    .event_open = event_open,
    .event_close = event_close,
    .record = record,
    .stream_wait = stream_wait,
    .event_sync = event_sync,
    .synchronize = synchronize,
    .capture_begin = capture_begin,
    .capture_end = capture_end,
    .range = range,
    .set_precision = set_precision,
    .supports = supports,
    .prepare = prepare,
    .run = run,
};

const struct device_ops *fake_device_ops(void) {
    return &capstan_device;
}

bool fake_device_has_graphs(const struct device *device) {
    return !device->settings.no_graphs;
}

uint64_t fake_device_calls(const struct device *device) {
    return device->calls;
}

uint64_t fake_device_uploaded(const struct device *device) {
    return device->uploaded;
}

uint64_t fake_device_downloaded(const struct device *device) {
    return device->downloaded;
}
