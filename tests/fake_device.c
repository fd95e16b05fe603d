#include "tests/fake_device.h"

#include "proto/base/time.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { PAGE = 4096, ALIGNMENT = 64, MOST_DEVICES = 16, MOST_PIECES = 256 };
static const uint64_t USUAL_MEMORY = 64 << 20;

enum kind {
    COPY,
    FOLLOW,
    PRECISION,
    LINEAR,
    INPUT_GRADIENT,
    WEIGHT_GRADIENT,
    COLUMN_SUMS,
    ACTIVATION_GRADIENT,
    LOSS,
};

/* One call. FOLLOW: until DONE of stream AFTER reaches POSITION. */
struct command {
    enum kind kind;
    enum ops_stream after;
    uint64_t position;
    const void *a, *b, *c;
    void *to, *second, *third;
    size_t bytes;
    uint32_t n, in, out;
    int word;
    float scale;
    bool add;
};

/* Commands number `done` to `given` - 1 wait in a ring. */
struct stream {
    struct command *ring;
    uint64_t room, given, done;
};

struct piece {
    char *memory;
    size_t bytes;
    bool used;
};

struct ops_device {
    struct fake_device_plan plan;
    uint32_t index;
    struct ops_device *cpu;
    char *memory;
    uint64_t top; /* bytes dealt out so far */
    struct piece pieces[MOST_PIECES], pinned[MOST_PIECES];
    unsigned num_pieces, num_pinned, num_events;
    struct stream streams[OPS_STREAMS];
    uint64_t calls, allocations, random, uploaded, downloaded;
    struct ops_settings settings;
    bool lost, hangs;
};

/* STREAM had been given POSITION commands. */
struct ops_event {
    enum ops_stream stream;
    uint64_t position;
};

static struct fake_device_plan arranged;
static bool is_arranged;
static atomic_ullong in_use[MOST_DEVICES]; /* bytes */

static void misused(const char *what) {
    fprintf(stderr, "fake device: %s\n", what);
    abort();
}

void fake_device_arrange(const struct fake_device_plan *plan) {
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
static const struct fake_device_plan *plan(void) {
    const char *text = getenv("CAPSTAN_FAKE_DEVICE");
    if (is_arranged)
        return &arranged;
    fake_device_arrange(&(struct fake_device_plan){
        .order = (enum fake_device_order)number_of(text ? text : "", "order="),
        .seed = number_of(text ? text : "", "seed="),
        .devices = text ? (uint32_t)number_of(text, "devices=") : 1,
        .memory = number_of(text ? text : "", "memory="),
        .lose = number_of(text ? text : "", "lose="),
        .loser = (uint32_t)number_of(text ? text : "", "loser="),
        .hang = number_of(text ? text : "", "hang="),
        .refuse = number_of(text ? text : "", "refuse="),
        .older = text && strstr(text, "older"),
        .unpinnable = text && strstr(text, "unpinnable"),
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
                                       .major = plan()->older ? 3 : 9,
                                       .total = plan()->memory,
                                       .free = plan()->memory -
                                               atomic_load(&in_use[index]),
                                       .usable = !plan()->older};
    snprintf(out->id, sizeof out->id, "fake %u", index);
    if (plan()->older)
        snprintf(out->reason, sizeof out->reason,
                 "compute capability 3.0 is older than this build");
    return STATUS_OK;
}

static enum status open_device(struct ops_device **out,
                               const struct ops_settings *settings,
                               struct failure *why) {
    struct ops_device *device = calloc(1, sizeof *device);
    if (!device || settings->index >= MOST_DEVICES)
        misused("opened beyond what there is");
    device->plan = *plan();
    device->index = settings->index;
    device->settings = *settings;
    device->random = device->plan.seed + 1;
    device->memory = mmap(NULL, device->plan.memory, PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (device->memory == MAP_FAILED)
        misused("no address space");
    *out = device;
    return ops_cpu_open(&device->cpu, settings->threads, why);
}

/* The host may touch the device's memory only while the device works. */
static void protect(const struct ops_device *device, int rights) {
    uint64_t used = (device->top + PAGE - 1) / PAGE * PAGE;
    if (used && mprotect(device->memory, used, rights))
        misused("memory cannot be protected");
}

static void compute(const struct ops_device *device, const struct command *c) {
    const struct ops *cpu = ops_cpu();
    switch (c->kind) {
    case COPY:
        memcpy(c->to, c->a, c->bytes);
        return;
    case FOLLOW:
        return;
    case PRECISION:
        cpu->set_precision(device->cpu, (enum job_precision)c->word);
        return;
    case LINEAR:
        cpu->linear(device->cpu, c->a, c->b, c->c, c->to, c->n, c->in, c->out,
                    (enum job_activation)c->word);
        return;
    case INPUT_GRADIENT:
        cpu->linear_input_gradient(device->cpu, c->a, c->b, c->to, c->n, c->in,
                                   c->out);
        return;
    case WEIGHT_GRADIENT:
        cpu->linear_weight_gradient(device->cpu, c->a, c->b, c->to, c->n, c->in,
                                    c->out, c->add);
        return;
    case COLUMN_SUMS:
        cpu->column_sums(device->cpu, c->a, c->to, c->n, c->out, c->add);
        return;
    case ACTIVATION_GRADIENT:
        cpu->activation_gradient(device->cpu, (enum job_activation)c->word,
                                 c->a, c->to, c->n, c->out);
        return;
    case LOSS:
        cpu->loss(device->cpu, (enum job_loss)c->word, c->a, c->b, c->to, c->n,
                  c->out, c->scale, c->second, c->third);
        return;
    }
}

/* Does the next command of STREAM wait for another stream? */
static bool is_held(const struct ops_device *device,
                    const struct stream *stream) {
    const struct command *next = &stream->ring[stream->done % stream->room];
    return next->kind == FOLLOW &&
           device->streams[next->after].done < next->position;
}

/* STREAM goes on to POSITION, and others as far as it waits for them. */
static void run_to(struct ops_device *device, struct stream *stream,
                   uint64_t position) {
    while (stream->done < position) {
        struct command next = stream->ring[stream->done % stream->room];
        if (next.kind == FOLLOW)
            run_to(device, &device->streams[next.after], next.position);
        else
            compute(device, &next);
        stream->done++;
    }
}

/* STREAM goes on as far as it waits for no other. */
static bool run_freely(struct ops_device *device, struct stream *stream) {
    uint64_t before = stream->done;
    while (stream->done < stream->given && !is_held(device, stream))
        run_to(device, stream, stream->done + 1);
    return stream->done > before;
}

static void run_copies(struct ops_device *device) {
    bool moved;
    do {
        moved = false;
        for (int s = 0; s < OPS_STREAMS; s++)
            if (s != OPS_COMPUTE)
                moved |= run_freely(device, &device->streams[s]);
    } while (moved);
}

static void run_some(struct ops_device *device) {
    device->random = device->random * 6364136223846793005u + 1;
    struct stream *stream =
        &device->streams[(device->random >> 33) % OPS_STREAMS];
    uint64_t steps = (device->random >> 40) % 4;
    uint64_t most = stream->given - stream->done;
    run_to(device, stream, stream->done + (steps < most ? steps : most));
}

/* What happens by itself. */
static void go_on(struct ops_device *device) {
    struct stream *computing = &device->streams[OPS_COMPUTE];
    switch (device->plan.order) {
    case FAKE_DEVICE_COPIES_FIRST:
        run_copies(device);
        return;
    case FAKE_DEVICE_COMPUTES_FIRST:
        run_to(device, computing, computing->given);
        return;
    case FAKE_DEVICE_RANDOM:
        run_some(device);
        return;
    default:
        return;
    }
}

static bool is_device(const struct ops_device *device, const void *memory) {
    const char *byte = memory;
    return byte >= device->memory && byte < device->memory + device->top;
}

static void expect_device(const struct ops_device *device, const void *memory) {
    if (memory && !is_device(device, memory))
        misused("a call on memory that is not the device's");
}

static void put(struct stream *stream, const struct command *command) {
    if (stream->given - stream->done == stream->room) {
        uint64_t room = stream->room ? 2 * stream->room : 64;
        struct command *ring = calloc(room, sizeof *ring);
        if (!ring)
            misused("no memory");
        for (uint64_t i = stream->done; i < stream->given; i++)
            ring[i % room] = stream->ring[i % stream->room];
        free(stream->ring);
        stream->ring = ring;
        stream->room = room;
    }
    stream->ring[stream->given++ % stream->room] = *command;
}

static void give(struct ops_device *device, enum ops_stream stream,
                 const struct command *command) {
    device->calls++;
    if (device->calls == device->plan.lose &&
        device->index == device->plan.loser)
        device->lost = true;
    if (device->calls == device->plan.hang)
        device->hangs = true;
    if (device->lost || device->hangs)
        return;
    put(&device->streams[stream], command);
    if (device->plan.order == FAKE_DEVICE_LATE)
        return;
    protect(device, PROT_READ | PROT_WRITE);
    go_on(device);
    protect(device, PROT_NONE);
}

static enum status run_all(struct ops_device *device,
                           const struct ops_event *event, struct failure *why) {
    if (device->lost)
        return status_fail(why, STATUS_RETRY,
                           "device cuda %u (Fake GPU) is lost: as arranged",
                           device->index);
    protect(device, PROT_READ | PROT_WRITE);
    for (unsigned s = 0; s < OPS_STREAMS; s++)
        if (!event || event->stream == s)
            run_to(device, &device->streams[s],
                   event ? event->position : device->streams[s].given);
    go_on(device);
    protect(device, PROT_NONE);
    return STATUS_OK;
}

/* What never comes, until it has taken too long or is given up. */
static enum status await_in_vain(const struct ops_device *device,
                                 struct failure *why) {
    static const struct timespec moment = {.tv_nsec = 1000000};
    const struct ops_settings *settings = &device->settings;
    int64_t until = time_now() + time_from_seconds(settings->timeout);
    while (time_now() < until) {
        if (settings->given_up && settings->given_up(settings->context))
            return status_fail(why, STATUS_RETRY, "given up");
        nanosleep(&moment, NULL);
    }
    return status_fail(why, STATUS_RETRY,
                       "device cuda %u (Fake GPU) has not finished its work "
                       "for %.3g s (timeouts.step)",
                       device->index, settings->timeout);
}

static enum status await(struct ops_device *device, struct ops_event *event,
                         struct failure *why) {
    return device->hangs ? await_in_vain(device, why)
                         : run_all(device, event, why);
}

static enum status synchronize(struct ops_device *device, struct failure *why) {
    device->lost |= device->hangs;
    return run_all(device, NULL, why);
}

static void close_device(struct ops_device **where) {
    struct ops_device *device = *where;
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
    for (int s = 0; s < OPS_STREAMS; s++)
        free(device->streams[s].ring);
    munmap(device->memory, device->plan.memory);
    ops_cpu_close(&device->cpu);
    free(device);
}

/* Nothing can be read out of memory that nothing has been written to. */
static void spoil(struct ops_device *device, const struct piece *piece) {
    protect(device, PROT_READ | PROT_WRITE);
    memset(piece->memory, 0xff, piece->bytes);
    protect(device, PROT_NONE);
}

static struct piece *find_room(struct ops_device *device, size_t bytes) {
    for (unsigned i = 0; i < device->num_pieces; i++)
        if (!device->pieces[i].used && device->pieces[i].bytes == bytes)
            return &device->pieces[i];
    if (device->top + bytes > device->plan.memory)
        return NULL;
    if (device->num_pieces == MOST_PIECES)
        misused("too many pieces of memory");
    struct piece *piece = &device->pieces[device->num_pieces++];
    *piece = (struct piece){device->memory + device->top, bytes, false};
    device->top += bytes;
    return piece;
}

static void *allocate(struct ops_device *device, size_t bytes) {
    size_t rounded = (bytes / ALIGNMENT + 1) * ALIGNMENT;
    if (++device->allocations == device->plan.refuse)
        return NULL;
    struct piece *piece = find_room(device, rounded);
    if (!piece)
        return NULL;
    piece->used = true;
    atomic_fetch_add(&in_use[device->index], piece->bytes);
    spoil(device, piece);
    return piece->memory;
}

static bool reaches(const void *pointer, const void *memory, size_t bytes) {
    const char *byte = pointer, *first = memory;
    return byte >= first && byte < first + bytes;
}

/* Does a call that is not yet done read or write MEMORY? */
static bool is_under_way(const struct ops_device *device, const void *memory,
                         size_t bytes) {
    for (int s = 0; s < OPS_STREAMS; s++) {
        const struct stream *stream = &device->streams[s];
        for (uint64_t i = stream->done; i < stream->given; i++) {
            const struct command *c = &stream->ring[i % stream->room];
            const void *const all[] = {c->a, c->b, c->c, c->to, c->second};
            for (int j = 0; j < 5; j++)
                if (reaches(all[j], memory, bytes))
                    return true;
        }
    }
    return false;
}

static void release(struct ops_device *device, void *memory) {
    for (unsigned i = 0; memory && i < device->num_pieces; i++) {
        struct piece *piece = &device->pieces[i];
        if (piece->memory != memory || !piece->used)
            continue;
        if (!device->lost && is_under_way(device, memory, piece->bytes))
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

static bool pin(struct ops_device *device, void *memory, size_t bytes) {
    if (device->plan.unpinnable)
        return false;
    for (unsigned i = 0; i < device->num_pinned; i++)
        if (share_a_page(&device->pinned[i], memory, bytes))
            misused("a page is pinned twice");
    if (device->num_pinned == MOST_PIECES)
        misused("too much is pinned");
    device->pinned[device->num_pinned++] = (struct piece){memory, bytes, true};
    return true;
}

static void unpin(struct ops_device *device, void *memory) {
    for (unsigned i = 0; i < device->num_pinned; i++) {
        if (device->pinned[i].memory != memory)
            continue;
        if (!device->lost &&
            is_under_way(device, memory, device->pinned[i].bytes))
            misused("memory was unpinned that is being copied");
        device->pinned[i] = device->pinned[--device->num_pinned];
        return;
    }
}

static void upload(struct ops_device *device, enum ops_stream stream, void *to,
                   const void *from, size_t bytes) {
    expect_device(device, to);
    if (is_device(device, from))
        misused("an upload of the device's own memory");
    device->uploaded += bytes;
    give(device, stream,
         &(struct command){.kind = COPY, .to = to, .a = from, .bytes = bytes});
}

static void download(struct ops_device *device, enum ops_stream stream,
                     void *to, const void *from, size_t bytes) {
    expect_device(device, from);
    if (is_device(device, to))
        misused("a download to the device's own memory");
    device->downloaded += bytes;
    give(device, stream,
         &(struct command){.kind = COPY, .to = to, .a = from, .bytes = bytes});
}

static struct ops_event *event_open(struct ops_device *device) {
    struct ops_event *event = calloc(1, sizeof *event);
    device->num_events += event != NULL;
    return event;
}

static void event_close(struct ops_device *device, struct ops_event **event) {
    device->num_events--;
    free(*event);
    *event = NULL;
}

static void record(struct ops_device *device, enum ops_stream stream,
                   struct ops_event *event) {
    *event = (struct ops_event){stream, device->streams[stream].given};
}

static void follow(struct ops_device *device, enum ops_stream stream,
                   struct ops_event *event) {
    give(device, stream,
         &(struct command){.kind = FOLLOW,
                           .after = event->stream,
                           .position = event->position});
}

static void set_precision(struct ops_device *device,
                          enum job_precision precision) {
    give(device, OPS_COMPUTE,
         &(struct command){.kind = PRECISION, .word = (int)precision});
}

static void linear(struct ops_device *device, const float *x, const float *w,
                   const float *bias, float *y, uint32_t n, uint32_t in,
                   uint32_t out, enum job_activation activation) {
    expect_device(device, x);
    expect_device(device, w);
    expect_device(device, bias);
    expect_device(device, y);
    give(device, OPS_COMPUTE,
         &(struct command){.kind = LINEAR,
                           .a = x,
                           .b = w,
                           .c = bias,
                           .to = y,
                           .n = n,
                           .in = in,
                           .out = out,
                           .word = (int)activation});
}

static void input_gradient(struct ops_device *device, const float *dy,
                           const float *w, float *dx, uint32_t n, uint32_t in,
                           uint32_t out) {
    expect_device(device, dy);
    expect_device(device, w);
    expect_device(device, dx);
    give(device, OPS_COMPUTE,
         &(struct command){.kind = INPUT_GRADIENT,
                           .a = dy,
                           .b = w,
                           .to = dx,
                           .n = n,
                           .in = in,
                           .out = out});
}

static void weight_gradient(struct ops_device *device, const float *dy,
                            const float *x, float *dw, uint32_t n, uint32_t in,
                            uint32_t out, bool add) {
    expect_device(device, dy);
    expect_device(device, x);
    expect_device(device, dw);
    give(device, OPS_COMPUTE,
         &(struct command){.kind = WEIGHT_GRADIENT,
                           .a = dy,
                           .b = x,
                           .to = dw,
                           .n = n,
                           .in = in,
                           .out = out,
                           .add = add});
}

static void column_sums(struct ops_device *device, const float *dy, float *db,
                        uint32_t n, uint32_t out, bool add) {
    expect_device(device, dy);
    expect_device(device, db);
    give(device, OPS_COMPUTE,
         &(struct command){.kind = COLUMN_SUMS,
                           .a = dy,
                           .to = db,
                           .n = n,
                           .out = out,
                           .add = add});
}

static void activation_gradient(struct ops_device *device,
                                enum job_activation activation, const float *y,
                                float *dy, uint32_t n, uint32_t out) {
    expect_device(device, y);
    expect_device(device, dy);
    give(device, OPS_COMPUTE,
         &(struct command){.kind = ACTIVATION_GRADIENT,
                           .a = y,
                           .to = dy,
                           .n = n,
                           .out = out,
                           .word = (int)activation});
}

static void loss(struct ops_device *device, enum job_loss kind, const float *z,
                 const uint32_t *labels, float *dz, uint32_t n, uint32_t out,
                 float scale, double *sum, uint32_t *correct) {
    expect_device(device, z);
    expect_device(device, labels);
    expect_device(device, dz);
    expect_device(device, sum);
    expect_device(device, correct);
    give(device, OPS_COMPUTE,
         &(struct command){.kind = LOSS,
                           .a = z,
                           .b = labels,
                           .to = dz,
                           .second = sum,
                           .third = correct,
                           .n = n,
                           .out = out,
                           .word = (int)kind,
                           .scale = scale});
}

extern const struct ops capstan_device;

__attribute__((visibility("default"))) const struct ops capstan_device = {
    .abi = DEVICE_ABI,
    .name = "cuda",
    .version = "fake",
    .check = check,
    .later = true,
    .count = count,
    .describe = describe,
    .open = open_device,
    .close = close_device,
    .allocate = allocate,
    .release = release,
    .pin = pin,
    .unpin = unpin,
    .upload = upload,
    .download = download,
    .event_open = event_open,
    .event_close = event_close,
    .record = record,
    .follow = follow,
    .await = await,
    .synchronize = synchronize,
    .set_precision = set_precision,
    .linear = linear,
    .linear_input_gradient = input_gradient,
    .linear_weight_gradient = weight_gradient,
    .column_sums = column_sums,
    .activation_gradient = activation_gradient,
    .loss = loss,
};

const struct ops *fake_device_ops(void) {
    return &capstan_device;
}

uint64_t fake_device_calls(const struct ops_device *device) {
    return device->calls;
}

uint64_t fake_device_uploaded(const struct ops_device *device) {
    return device->uploaded;
}

uint64_t fake_device_downloaded(const struct ops_device *device) {
    return device->downloaded;
}
