#include "worker/ops/ops_cuda_graph.h"

#include "worker/ops/ops_cuda_parts.h"

void ops_cuda_graph_streams(const struct ops_cuda_span *span,
                            bool used[OPS_STREAMS]) {
    for (int s = 0; s < OPS_STREAMS; s++)
        used[s] = false;
    for (uint32_t i = 0; i < span->count; i++)
        used[span->calls[i].stream] = true;
}

/* BEHIND goes on after what was captured of AHEAD, and is captured itself. */
static void join(struct ops_device *device, cudaStream_t ahead,
                 cudaStream_t behind) {
    cudaEvent_t order = device->spans.order;
    if (ops_cuda_note(device, cudaEventRecord(order, ahead), "capturing it"))
        ops_cuda_note(device, cudaStreamWaitEvent(behind, order, 0),
                      "capturing it");
}

/* A capture under way. Gradients of parameters go aside, beside the computing
 * of the layers below, which joins them before it touches what they do. */
struct capture {
    struct ops_device *device;
    const struct ops_cuda_span *span;
    cudaStream_t along, aside;
    uint32_t joined; /* calls up to here are followed by the computing */
};

/* Is the record number AT its event's last one? */
static bool is_last(const struct ops_cuda_span *span, uint32_t at) {
    for (uint32_t i = at + 1; i < span->count; i++)
        if (span->calls[i].kind == OPS_CUDA_RECORD &&
            span->calls[i].event == span->calls[at].event)
            return false;
    return true;
}

/* An event that is recorded while a stream is captured is of use within the
 * capture alone, so that what is outside waits for another. */
static void record(struct capture *capture, uint32_t at) {
    struct ops_device *device = capture->device;
    const struct ops_cuda_call *call = &capture->span->calls[at];
    cudaStream_t stream = device->streams[call->stream];
    if (stream == capture->along) {
        join(device, capture->along, capture->aside);
        stream = capture->aside;
    }
    ops_cuda_note(device, cudaEventRecord(call->event->inner, stream),
                  "capturing it");
    if (is_last(capture->span, at))
        ops_cuda_note(device,
                      cudaEventRecordWithFlags(call->event->event, stream,
                                               cudaEventRecordExternal),
                      "capturing it");
}

static void follow(struct capture *capture, const struct ops_cuda_call *call) {
    struct ops_device *device = capture->device;
    if (!call->word)
        ops_cuda_note(device,
                      cudaStreamWaitEvent(device->streams[call->stream],
                                          call->event->inner, 0),
                      "capturing it");
}

/* Does call number AT touch what was done aside and is not joined yet? */
static bool meets(const struct capture *capture, uint32_t at) {
    const struct ops_cuda_call *calls = capture->span->calls;
    for (uint32_t i = capture->joined; i < at; i++)
        if (ops_cuda_call_is_aside(&calls[i]) &&
            ops_cuda_call_meet(&calls[i], &calls[at]))
            return true;
    return false;
}

static void give(struct capture *capture, uint32_t at) {
    struct ops_device *device = capture->device;
    const struct ops_cuda_call *call = &capture->span->calls[at];
    if (call->kind == OPS_CUDA_RECORD) {
        record(capture, at);
    } else if (call->kind == OPS_CUDA_FOLLOW) {
        follow(capture, call);
    } else if (ops_cuda_call_is_aside(call)) {
        join(device, capture->along, capture->aside);
        ops_cuda_call_do_aside(device, call);
    } else {
        if (call->stream == OPS_COMPUTE && meets(capture, at)) {
            join(device, capture->aside, capture->along);
            capture->joined = at;
        }
        ops_cuda_call_do(device, call);
    }
}

/* STREAM has passed all that it is captured of. */
static void leave(struct capture *capture, enum ops_stream stream) {
    struct ops_device *device = capture->device;
    ops_cuda_note(device,
                  cudaEventRecordWithFlags(device->spans.passed[stream],
                                           device->streams[stream],
                                           cudaEventRecordExternal),
                  "capturing it");
    join(device, device->streams[stream], capture->along);
}

static void capture_all(struct capture *capture) {
    struct ops_device *device = capture->device;
    bool used[OPS_STREAMS];
    ops_cuda_graph_streams(capture->span, used);
    used[OPS_COMPUTE] = false;
    join(device, capture->along, capture->aside);
    for (int s = 0; s < OPS_STREAMS; s++)
        if (used[s])
            join(device, capture->along, device->streams[s]);
    for (uint32_t i = 0; i < capture->span->count && !device->failed; i++)
        give(capture, i);
    join(device, capture->aside, capture->along);
    for (int s = 0; s < OPS_STREAMS; s++)
        if (used[s])
            leave(capture, (enum ops_stream)s);
}

/* Other threads of the process may do what they like meanwhile
 * (ThreadLocal). */
cudaError_t ops_cuda_graph_capture(struct ops_device *device,
                                   struct ops_cuda_span *span) {
    struct capture capture = {device, span, device->along.stream,
                              device->aside.stream, 0};
    cudaGraph_t graph = NULL;
    cudaError_t error =
        cudaStreamBeginCapture(capture.along, cudaStreamCaptureModeThreadLocal);
    if (!error) {
        capture_all(&capture);
        error = cudaStreamEndCapture(capture.along, &graph);
    }
    if (device->failed)
        error = device->failed;
    device->failed = cudaSuccess;
    if (!error)
        error = cudaGraphInstantiate(&span->graph, graph, 0);
    if (error)
        span->graph = NULL;
    if (graph)
        cudaGraphDestroy(graph);
    cudaGetLastError();
    return error;
}
