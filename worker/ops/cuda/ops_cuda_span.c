/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/ops/cuda/ops_cuda_span.h"

#include "worker/ops/cuda/ops_cuda_graph.h"
#include "worker/ops/cuda/ops_cuda_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MARKS = OPS_CUDA_LANES * OPS_CUDA_MARKS };

static cudaEvent_t open_event(struct ops_device *device) {
    cudaEvent_t event = NULL;
    ops_cuda_note(device,
                  cudaEventCreateWithFlags(&event, cudaEventDisableTiming),
                  "opening an event");
    return event;
}

enum status ops_cuda_span_open(struct ops_device *device, struct failure *why) {
    struct ops_cuda_spans *spans = &device->spans;
    spans->calls = calloc(OPS_CUDA_SPAN_CALLS, sizeof *spans->calls);
    if (!spans->calls)
        return status_fail(why, STATUS_RETRY, "no memory for a device");
    spans->order = open_event(device);
    for (int i = 0; i < MARKS; i++)
        spans->marks[i / OPS_CUDA_MARKS][i % OPS_CUDA_MARKS] =
            open_event(device);
    for (int s = OPS_COMPUTE + 1; s < OPS_STREAMS; s++)
        spans->passed[s] = open_event(device);
    return ops_cuda_tell(device, why);
}

static void drop(struct ops_device *device, struct ops_cuda_span *span) {
    if (span->graph && !device->hung)
        cudaGraphExecDestroy(span->graph); /* once it has ended */
    free(span->calls);
    *span = (struct ops_cuda_span){0};
}

void ops_cuda_span_forget(struct ops_device *device) {
    struct ops_cuda_spans *spans = &device->spans;
    while (spans->num_known)
        drop(device, &spans->known[--spans->num_known]);
}

static void close_event(const struct ops_device *device, cudaEvent_t event) {
    if (event && !device->hung)
        cudaEventDestroy(event);
}

void ops_cuda_span_close(struct ops_device *device) {
    struct ops_cuda_spans *spans = &device->spans;
    ops_cuda_span_forget(device);
    close_event(device, spans->order);
    for (int i = 0; i < MARKS; i++)
        close_event(device,
                    spans->marks[i / OPS_CUDA_MARKS][i % OPS_CUDA_MARKS]);
    for (int s = 0; s < OPS_STREAMS; s++)
        close_event(device, spans->passed[s]);
    free(spans->calls);
}

/* STREAM goes on once EVENT has come. */
static void wait_for(struct ops_device *device, enum ops_stream stream,
                     cudaEvent_t event) {
    ops_cuda_note(device,
                  cudaStreamWaitEvent(device->streams[stream], event, 0),
                  "putting streams in order");
}

/* STREAM is given something outside a graph. */
static void open_stream(struct ops_device *device, enum ops_stream stream) {
    struct ops_cuda_spans *spans = &device->spans;
    if (spans->behind[stream])
        wait_for(device, stream, spans->passed[stream]);
    spans->behind[stream] = false;
    spans->ahead[stream] = stream != OPS_COMPUTE;
}

static void give_now(struct ops_device *device,
                     const struct ops_cuda_call *call) {
    open_stream(device, (enum ops_stream)call->stream);
    ops_cuda_call_do(device, call);
}

cudaStream_t ops_cuda_span_stream(struct ops_device *device,
                                  enum ops_stream stream) {
    if (device->spans.open) {
        ops_cuda_span_end(device);
        ops_cuda_span_begin(device);
    }
    open_stream(device, stream);
    return device->streams[stream];
}

void ops_cuda_span_begin(struct ops_device *device) {
    device->spans.open = true;
    device->spans.number++;
    device->spans.count = 0;
}

void ops_cuda_span_give(struct ops_device *device,
                        const struct ops_cuda_call *call) {
    struct ops_cuda_spans *spans = &device->spans;
    if (spans->open && spans->count == OPS_CUDA_SPAN_CALLS) {
        ops_cuda_span_end(device);
        ops_cuda_span_begin(device);
    }
    if (call->kind == OPS_CUDA_RECORD)
        call->event->span = spans->open ? spans->number : 0;
    if (!spans->open) {
        give_now(device, call);
        return;
    }
    struct ops_cuda_call *held = &spans->calls[spans->count++];
    *held = *call;
    if (call->kind == OPS_CUDA_FOLLOW)
        held->word = call->event->span != spans->number;
}

static struct ops_cuda_span *find(struct ops_cuda_spans *spans) {
    size_t bytes = spans->count * sizeof *spans->calls;
    for (uint32_t i = 0; i < spans->num_known; i++) {
        struct ops_cuda_span *span = &spans->known[i];
        if (span->count == spans->count &&
            !memcmp(span->calls, spans->calls, bytes))
            return span;
    }
    return NULL;
}

static struct ops_cuda_span *find_place(struct ops_device *device) {
    struct ops_cuda_spans *spans = &device->spans;
    if (spans->num_known < OPS_CUDA_SPANS)
        return &spans->known[spans->num_known++];
    struct ops_cuda_span *oldest = &spans->known[0];
    for (uint32_t i = 1; i < spans->num_known; i++)
        if (spans->known[i].used < oldest->used)
            oldest = &spans->known[i];
    drop(device, oldest);
    return oldest;
}

/* Without memory for it, it goes call by call the next time too. */
static void remember(struct ops_device *device) {
    const struct ops_cuda_spans *spans = &device->spans;
    size_t bytes = spans->count * sizeof *spans->calls;
    struct ops_cuda_call *calls = malloc(bytes);
    if (!calls)
        return;
    memcpy(calls, spans->calls, bytes);
    *find_place(device) = (struct ops_cuda_span){
        .calls = calls, .count = spans->count, .used = spans->number};
}

/* No graph is had any more, and the run goes on without: one line says so. */
static void do_without(struct ops_device *device, cudaError_t error) {
    const struct ops_settings *settings = &device->settings;
    char text[512];
    device->spans.off = true;
    ops_cuda_span_forget(device);
    snprintf(text, sizeof text,
             "device %s: no CUDA graph can be made of a step (%s): it is "
             "started call by call, which takes the host longer",
             device->name, cudaGetErrorString(error));
    if (settings->warn)
        settings->warn(settings->hearer, text);
}

/* Has SPAN a graph now? */
static bool capture(struct ops_device *device, struct ops_cuda_span *span) {
    struct ops_cuda_spans *spans = &device->spans;
    spans->capturing = true;
    cudaError_t error = ops_cuda_graph_capture(device, span);
    spans->capturing = false;
    if (error)
        do_without(device, error);
    return !error;
}

/* What of STREAM goes before the graph that OPS_COMPUTE is about to get. */
static void close_stream(struct ops_device *device, enum ops_stream stream) {
    struct ops_cuda_spans *spans = &device->spans;
    if (spans->ahead[stream] &&
        ops_cuda_note(device,
                      cudaEventRecord(spans->order, device->streams[stream]),
                      "putting streams in order"))
        wait_for(device, OPS_COMPUTE, spans->order);
    spans->ahead[stream] = false;
    spans->behind[stream] = stream != OPS_COMPUTE;
}

static void launch(struct ops_device *device,
                   const struct ops_cuda_span *span) {
    bool used[OPS_STREAMS];
    ops_cuda_graph_streams(span, used);
    for (int s = 0; s < OPS_STREAMS; s++)
        if (used[s])
            close_stream(device, (enum ops_stream)s);
    for (uint32_t i = 0; i < span->count; i++)
        if (span->calls[i].kind == OPS_CUDA_FOLLOW && span->calls[i].word)
            wait_for(device, OPS_COMPUTE, span->calls[i].event->event);
    ops_cuda_note(device,
                  cudaGraphLaunch(span->graph, device->streams[OPS_COMPUTE]),
                  "starting a graph");
}

void ops_cuda_span_end(struct ops_device *device) {
    struct ops_cuda_spans *spans = &device->spans;
    spans->open = false;
    if (!spans->count || device->failed)
        return;
    struct ops_cuda_span *known = spans->off ? NULL : find(spans);
    if (known)
        known->used = spans->number;
    if (known && (known->graph || capture(device, known))) {
        launch(device, known);
        return;
    }
    for (uint32_t i = 0; i < spans->count; i++)
        give_now(device, &spans->calls[i]);
    if (!spans->off)
        remember(device);
}
