#include "worker/ops_cuda_graph.h"

#include "worker/ops_cuda_parts.h"

void ops_cuda_graph_streams(const struct ops_cuda_span *span,
                            bool used[OPS_STREAMS]) {
    for (int s = 0; s < OPS_STREAMS; s++)
        used[s] = false;
    for (uint32_t i = 0; i < span->count; i++)
        used[span->calls[i].stream] = true;
}

/* BEHIND goes on after what was captured of AHEAD, and is captured itself. */
static void join(struct ops_device *device, enum ops_stream ahead,
                 enum ops_stream behind) {
    cudaEvent_t order = device->spans.order;
    if (ops_cuda_note(device, cudaEventRecord(order, device->streams[ahead]),
                      "capturing it"))
        ops_cuda_note(device,
                      cudaStreamWaitEvent(device->streams[behind], order, 0),
                      "capturing it");
}

/* Is the record number AT of SPAN its event's last one? */
static bool is_last(const struct ops_cuda_span *span, uint32_t at) {
    for (uint32_t i = at + 1; i < span->count; i++)
        if (span->calls[i].kind == OPS_CUDA_RECORD &&
            span->calls[i].event == span->calls[at].event)
            return false;
    return true;
}

/* An event that is recorded while a stream is captured is of use within the
 * capture alone, so that what is outside waits for another. */
static void record(struct ops_device *device, const struct ops_cuda_span *span,
                   uint32_t at) {
    const struct ops_cuda_call *call = &span->calls[at];
    cudaStream_t stream = device->streams[call->stream];
    ops_cuda_note(device, cudaEventRecord(call->event->inner, stream),
                  "capturing it");
    if (is_last(span, at))
        ops_cuda_note(device,
                      cudaEventRecordWithFlags(call->event->event, stream,
                                               cudaEventRecordExternal),
                      "capturing it");
}

static void follow(struct ops_device *device,
                   const struct ops_cuda_call *call) {
    if (!call->word)
        ops_cuda_note(device,
                      cudaStreamWaitEvent(device->streams[call->stream],
                                          call->event->inner, 0),
                      "capturing it");
}

static void capture(struct ops_device *device,
                    const struct ops_cuda_span *span) {
    bool used[OPS_STREAMS];
    ops_cuda_graph_streams(span, used);
    for (int s = 0; s < OPS_STREAMS; s++)
        if (used[s] && s != OPS_COMPUTE)
            join(device, OPS_COMPUTE, (enum ops_stream)s);
    for (uint32_t i = 0; i < span->count && !device->failed; i++) {
        if (span->calls[i].kind == OPS_CUDA_RECORD)
            record(device, span, i);
        else if (span->calls[i].kind == OPS_CUDA_FOLLOW)
            follow(device, &span->calls[i]);
        else
            ops_cuda_call_do(device, &span->calls[i]);
    }
    for (int s = 0; s < OPS_STREAMS; s++)
        if (used[s] && s != OPS_COMPUTE)
            join(device, (enum ops_stream)s, OPS_COMPUTE);
}

/* Other threads of the process may do what they like meanwhile
 * (ThreadLocal). */
cudaError_t ops_cuda_graph_capture(struct ops_device *device,
                                   struct ops_cuda_span *span) {
    cudaStream_t computing = device->streams[OPS_COMPUTE];
    cudaGraph_t graph = NULL;
    cudaError_t error =
        cudaStreamBeginCapture(computing, cudaStreamCaptureModeThreadLocal);
    if (!error) {
        capture(device, span);
        error = cudaStreamEndCapture(computing, &graph);
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
