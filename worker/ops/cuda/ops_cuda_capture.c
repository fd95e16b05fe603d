/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/ops/cuda/ops_cuda_capture.h"

#include "worker/ops/cuda/ops_cuda_graph.h"
#include "worker/ops/cuda/ops_cuda_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EVENTS = OPS_CUDA_BRANCHES * OPS_CUDA_BRANCH_EVENTS };

static cudaEvent_t open_event(struct device *device) {
    cudaEvent_t event = NULL;
    ops_cuda_keep_error(
        device, cudaEventCreateWithFlags(&event, cudaEventDisableTiming),
        "opening an event");
    return event;
}

enum status ops_cuda_capture_open(struct device *device, struct failure *why) {
    struct ops_cuda_captures *captures = &device->captures;
    captures->calls = calloc(OPS_CUDA_CAPTURE_CALLS, sizeof *captures->calls);
    if (!captures->calls)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for a device");
    captures->order = open_event(device);
    for (int i = 0; i < EVENTS; i++)
        captures->branch_events[i / OPS_CUDA_BRANCH_EVENTS]
                               [i % OPS_CUDA_BRANCH_EVENTS] =
            open_event(device);
    for (int s = STREAM_COMPUTE + 1; s < DEVICE_STREAMS; s++)
        captures->completed[s] = open_event(device);
    return ops_cuda_report_error(device, why);
}

static void free_capture(struct device *device,
                         struct ops_cuda_capture *capture) {
    if (capture->graph && !device->hung)
        cudaGraphExecDestroy(
            capture->graph); /* freed by CUDA once it has finished */
    free(capture->calls);
    *capture = (struct ops_cuda_capture){0};
}

void ops_cuda_capture_forget(struct device *device) {
    struct ops_cuda_captures *captures = &device->captures;
    while (captures->num_cached)
        free_capture(device, &captures->cached[--captures->num_cached]);
}

static void close_event(const struct device *device, cudaEvent_t event) {
    if (event && !device->hung)
        cudaEventDestroy(event);
}

void ops_cuda_capture_close(struct device *device) {
    struct ops_cuda_captures *captures = &device->captures;
    ops_cuda_capture_forget(device);
    close_event(device, captures->order);
    for (int i = 0; i < EVENTS; i++)
        close_event(device,
                    captures->branch_events[i / OPS_CUDA_BRANCH_EVENTS]
                                           [i % OPS_CUDA_BRANCH_EVENTS]);
    for (int s = 0; s < DEVICE_STREAMS; s++)
        close_event(device, captures->completed[s]);
    free(captures->calls);
}

/* STREAM waits for EVENT. */
static void wait_for(struct device *device, enum device_stream stream,
                     cudaEvent_t event) {
    ops_cuda_keep_error(device,
                        cudaStreamWaitEvent(device->streams[stream], event, 0),
                        "ordering streams");
}

/* Orders STREAM behind the graphs before a call outside a graph. */
static void ops_cuda_capture_open_stream(struct device *device,
                                         enum device_stream stream) {
    struct ops_cuda_captures *captures = &device->captures;
    if (captures->waits_for_graph[stream])
        wait_for(device, stream, captures->completed[stream]);
    captures->waits_for_graph[stream] = false;
    captures->unordered[stream] = stream != STREAM_COMPUTE;
}

static void execute_now(struct device *device,
                        const struct ops_cuda_call *call) {
    ops_cuda_capture_open_stream(device, (enum device_stream)call->stream);
    ops_cuda_call_execute(device, call);
}

cudaStream_t ops_cuda_capture_stream(struct device *device,
                                     enum device_stream stream) {
    if (device->captures.open) {
        ops_cuda_capture_end(device);
        ops_cuda_capture_begin(device);
    }
    ops_cuda_capture_open_stream(device, stream);
    return device->streams[stream];
}

void ops_cuda_capture_begin(struct device *device) {
    device->captures.open = true;
    device->captures.number++;
    device->captures.count = 0;
}

void ops_cuda_capture_submit(struct device *device, enum device_stream stream,
                             const struct op *op, struct device_event *event) {
    struct ops_cuda_captures *captures = &device->captures;
    if (captures->open && captures->count == OPS_CUDA_CAPTURE_CALLS) {
        ops_cuda_capture_end(device);
        ops_cuda_capture_begin(device);
    }
    if (op->kind == OPS_CUDA_RECORD)
        event->capture = captures->open ? captures->number : 0;
    if (!captures->open) {
        execute_now(device, &(struct ops_cuda_call){
                                .op = *op, .event = event, .stream = stream});
        return;
    }
    struct ops_cuda_call *queued = &captures->calls[captures->count++];
    queued->op = *op;
    queued->event = event;
    queued->stream = stream;
    queued->outside =
        op->kind == OPS_CUDA_STREAM_WAIT && event->capture != captures->number;
}

static struct ops_cuda_capture *ops_cuda_capture_find(
    struct ops_cuda_captures *captures) {
    size_t bytes = captures->count * sizeof *captures->calls;
    for (uint32_t i = 0; i < captures->num_cached; i++) {
        struct ops_cuda_capture *capture = &captures->cached[i];
        if (capture->count == captures->count &&
            !memcmp(capture->calls, captures->calls, bytes))
            return capture;
    }
    return NULL;
}

static struct ops_cuda_capture *evict_slot(struct device *device) {
    struct ops_cuda_captures *captures = &device->captures;
    if (captures->num_cached < OPS_CUDA_CAPTURES)
        return &captures->cached[captures->num_cached++];
    struct ops_cuda_capture *oldest = &captures->cached[0];
    for (uint32_t i = 1; i < captures->num_cached; i++)
        if (captures->cached[i].used < oldest->used)
            oldest = &captures->cached[i];
    free_capture(device, oldest);
    return oldest;
}

/* If there is no memory for the copy, the next such capture runs call by call
 * too. */
static void cache_calls(struct device *device) {
    const struct ops_cuda_captures *captures = &device->captures;
    size_t bytes = captures->count * sizeof *captures->calls;
    struct ops_cuda_call *calls = malloc(bytes);
    if (!calls)
        return;
    memcpy(calls, captures->calls, bytes);
    *evict_slot(device) = (struct ops_cuda_capture){
        .calls = calls, .count = captures->count, .used = captures->number};
}

/* Disables graphs for good; the run continues without them, and one line
 * reports it. */
static void disable_graphs(struct device *device, cudaError_t error) {
    const struct device_settings *settings = &device->settings;
    char text[512];
    device->captures.disabled = true;
    ops_cuda_capture_forget(device);
    snprintf(text, sizeof text,
             "device %s: no CUDA graph can be made of a step (%s): it is "
             "launched call by call, which takes more host time",
             device->name, cudaGetErrorString(error));
    if (settings->warn)
        settings->warn(settings->warn_context, text);
}

/* True if CAPTURE now has a graph. */
static bool capture_graph(struct device *device,
                          struct ops_cuda_capture *capture) {
    struct ops_cuda_captures *captures = &device->captures;
    captures->capturing = true;
    cudaError_t error = ops_cuda_graph_capture(device, capture);
    captures->capturing = false;
    if (error)
        disable_graphs(device, error);
    return !error;
}

/* Orders the graph that is about to be launched on STREAM_COMPUTE behind
 * STREAM's work. */
static void close_stream(struct device *device, enum device_stream stream) {
    struct ops_cuda_captures *captures = &device->captures;
    if (captures->unordered[stream] &&
        ops_cuda_keep_error(
            device, cudaEventRecord(captures->order, device->streams[stream]),
            "ordering streams"))
        wait_for(device, STREAM_COMPUTE, captures->order);
    captures->unordered[stream] = false;
    captures->waits_for_graph[stream] = stream != STREAM_COMPUTE;
}

static void launch(struct device *device,
                   const struct ops_cuda_capture *capture) {
    bool used[DEVICE_STREAMS];
    ops_cuda_graph_streams(capture, used);
    for (int s = 0; s < DEVICE_STREAMS; s++)
        if (used[s])
            close_stream(device, (enum device_stream)s);
    for (uint32_t i = 0; i < capture->count; i++)
        if (capture->calls[i].op.kind == OPS_CUDA_STREAM_WAIT &&
            capture->calls[i].outside)
            wait_for(device, STREAM_COMPUTE, capture->calls[i].event->event);
    ops_cuda_keep_error(
        device,
        cudaGraphLaunch(capture->graph, device->streams[STREAM_COMPUTE]),
        "launching a graph");
}

void ops_cuda_capture_end(struct device *device) {
    struct ops_cuda_captures *captures = &device->captures;
    captures->open = false;
    if (!captures->count || device->failed)
        return;
    struct ops_cuda_capture *cached =
        captures->disabled ? NULL : ops_cuda_capture_find(captures);
    if (cached)
        cached->used = captures->number;
    if (cached && (cached->graph || capture_graph(device, cached))) {
        launch(device, cached);
        return;
    }
    for (uint32_t i = 0; i < captures->count; i++)
        execute_now(device, &captures->calls[i]);
    if (!captures->disabled)
        cache_calls(device);
}
