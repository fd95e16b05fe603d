/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/ops/cuda/ops_cuda_graph.h"

#include "worker/ops/cuda/ops_cuda_parts.h"

void ops_cuda_graph_streams(const struct ops_cuda_span *span,
                            bool used[OPS_STREAMS]) {
    for (int s = 0; s < OPS_STREAMS; s++)
        used[s] = false;
    for (uint32_t i = 0; i < span->count; i++)
        used[span->calls[i].stream] = true;
}

/* A lane as it is captured. Calls are named by their number in the span. */
struct trail {
    uint32_t count;                /* of its calls */
    uint32_t at[OPS_CUDA_MARKS];   /* the last of them; each has an event */
    uint32_t seen[OPS_CUDA_LANES]; /* it follows those below, of each lane */
};

/* A capture under way. What OPS_COMPUTE is given goes to lanes, each in its
 * order; beside that a call follows those of other lanes alone that it meets.
 * So the gradients of parameters do not hold up the layers below. */
struct capture {
    struct ops_device *device;
    const struct ops_cuda_span *span;
    struct trail trails[OPS_CUDA_LANES];
};

static bool note(struct ops_device *device, cudaError_t error) {
    return ops_cuda_note(device, error, "capturing it");
}

static void follow_event(struct ops_device *device, cudaStream_t stream,
                         cudaEvent_t event) {
    note(device, cudaStreamWaitEvent(stream, event, 0));
}

/* BEHIND goes on after what was captured of AHEAD, and is captured itself. */
static void join(struct ops_device *device, cudaStream_t ahead,
                 cudaStream_t behind) {
    if (note(device, cudaEventRecord(device->spans.order, ahead)))
        follow_event(device, behind, device->spans.order);
}

static bool is_in(const struct ops_cuda_call *call, int lane) {
    return call->stream == OPS_COMPUTE && call->kind != OPS_CUDA_RECORD &&
           call->kind != OPS_CUDA_FOLLOW &&
           (int)ops_cuda_call_lane(call) == lane;
}

/* The last call of LANE before number AT, and not before FROM, that call AT
 * meets; AT: there is none. */
static uint32_t last_met(const struct ops_cuda_span *span, int lane,
                         uint32_t from, uint32_t at) {
    for (uint32_t i = at; i-- > from;)
        if (is_in(&span->calls[i], lane) &&
            ops_cuda_call_meet(&span->calls[i], &span->calls[at]))
            return i;
    return at;
}

/* The place of the first of the lane's calls from number AT, one of them, on
 * that still has an event. */
static uint32_t find_mark(const struct trail *trail, uint32_t at) {
    uint32_t first =
        trail->count > OPS_CUDA_MARKS ? trail->count - OPS_CUDA_MARKS : 0;
    while (trail->at[first % OPS_CUDA_MARKS] < at)
        first++;
    return first % OPS_CUDA_MARKS;
}

/* Call number AT, of LANE, comes behind those of other lanes that it meets. */
static void follow_met(struct capture *capture, int lane, uint32_t at) {
    struct ops_device *device = capture->device;
    struct trail *own = &capture->trails[lane];
    for (int other = 0; other < OPS_CUDA_LANES; other++) {
        uint32_t met = at;
        if (other != lane)
            met = last_met(capture->span, other, own->seen[other], at);
        if (met == at)
            continue;
        uint32_t mark = find_mark(&capture->trails[other], met);
        follow_event(device, device->lanes[lane].stream,
                     device->spans.marks[other][mark]);
        own->seen[other] = capture->trails[other].at[mark] + 1;
    }
}

static void compute(struct capture *capture, uint32_t at) {
    struct ops_device *device = capture->device;
    const struct ops_cuda_call *call = &capture->span->calls[at];
    enum ops_cuda_lane_name lane = ops_cuda_call_lane(call);
    struct trail *trail = &capture->trails[lane];
    follow_met(capture, (int)lane, at);
    ops_cuda_call_do_in(device, call, lane);
    uint32_t mark = trail->count++ % OPS_CUDA_MARKS;
    trail->at[mark] = at;
    note(device, cudaEventRecord(device->spans.marks[lane][mark],
                                 device->lanes[lane].stream));
}

/* Is the record number AT its event's last one? */
static bool is_last(const struct ops_cuda_span *span, uint32_t at) {
    for (uint32_t i = at + 1; i < span->count; i++)
        if (span->calls[i].kind == OPS_CUDA_RECORD &&
            span->calls[i].event == span->calls[at].event)
            return false;
    return true;
}

/* An event that is recorded while a stream is captured is of use within the
 * capture alone, so that what is outside waits for another. What OPS_COMPUTE
 * was given is done where all lanes meet, on a stream of its own: no lane waits
 * for another because of it. */
static void record(struct capture *capture, uint32_t at) {
    struct ops_device *device = capture->device;
    const struct ops_cuda_call *call = &capture->span->calls[at];
    bool computing = call->stream == OPS_COMPUTE;
    cudaStream_t stream =
        computing ? device->moments : device->streams[call->stream];
    for (int lane = 0; computing && lane < OPS_CUDA_LANES; lane++)
        join(device, device->lanes[lane].stream, stream);
    note(device, cudaEventRecord(call->event->inner, stream));
    if (is_last(capture->span, at))
        note(device, cudaEventRecordWithFlags(call->event->event, stream,
                                              cudaEventRecordExternal));
}

/* What is outside the span is left to who launches it. */
static void follow(struct capture *capture, const struct ops_cuda_call *call) {
    struct ops_device *device = capture->device;
    if (call->word)
        return;
    if (call->stream != OPS_COMPUTE)
        follow_event(device, device->streams[call->stream], call->event->inner);
    for (int lane = 0; call->stream == OPS_COMPUTE && lane < OPS_CUDA_LANES;
         lane++)
        follow_event(device, device->lanes[lane].stream, call->event->inner);
}

static void give(struct capture *capture, uint32_t at) {
    const struct ops_cuda_call *call = &capture->span->calls[at];
    if (call->kind == OPS_CUDA_RECORD)
        record(capture, at);
    else if (call->kind == OPS_CUDA_FOLLOW)
        follow(capture, call);
    else if (call->stream == OPS_COMPUTE)
        compute(capture, at);
    else
        ops_cuda_call_do(capture->device, call);
}

/* STREAM has passed all that it is captured of. */
static void leave(struct ops_device *device, enum ops_stream stream) {
    note(device, cudaEventRecordWithFlags(device->spans.passed[stream],
                                          device->streams[stream],
                                          cudaEventRecordExternal));
    join(device, device->streams[stream], device->streams[OPS_COMPUTE]);
}

static void capture_all(struct capture *capture) {
    struct ops_device *device = capture->device;
    cudaStream_t first = device->streams[OPS_COMPUTE];
    bool used[OPS_STREAMS];
    ops_cuda_graph_streams(capture->span, used);
    used[OPS_COMPUTE] = false;
    for (int lane = OPS_CUDA_ALONG + 1; lane < OPS_CUDA_LANES; lane++)
        join(device, first, device->lanes[lane].stream);
    join(device, first, device->moments);
    for (int s = 0; s < OPS_STREAMS; s++)
        if (used[s])
            join(device, first, device->streams[s]);
    for (uint32_t i = 0; i < capture->span->count && !device->failed; i++)
        give(capture, i);
    for (int lane = OPS_CUDA_ALONG + 1; lane < OPS_CUDA_LANES; lane++)
        join(device, device->lanes[lane].stream, first);
    join(device, device->moments, first);
    for (int s = 0; s < OPS_STREAMS; s++)
        if (used[s])
            leave(device, (enum ops_stream)s);
}

/* Other threads of the process may do what they like meanwhile
 * (ThreadLocal). */
cudaError_t ops_cuda_graph_capture(struct ops_device *device,
                                   struct ops_cuda_span *span) {
    struct capture capture = {.device = device, .span = span};
    cudaStream_t stream = device->streams[OPS_COMPUTE];
    cudaGraph_t graph = NULL;
    cudaError_t error =
        cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    if (!error) {
        capture_all(&capture);
        error = cudaStreamEndCapture(stream, &graph);
    }
    if (device->failed)
        error = device->failed;
    device->failed = cudaSuccess;
    if (!error)
        error = cudaGraphInstantiate(&span->graph, graph,
                                     cudaGraphInstantiateFlagUseNodePriority);
    if (error)
        span->graph = NULL;
    if (graph)
        cudaGraphDestroy(graph);
    cudaGetLastError();
    return error;
}
