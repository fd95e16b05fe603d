/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/ops/cuda/ops_cuda_graph.h"

#include "worker/ops/cuda/ops_cuda_internal.h"

void ops_cuda_graph_streams(const struct ops_cuda_capture *capture,
                            bool used[DEVICE_STREAMS]) {
    for (int s = 0; s < DEVICE_STREAMS; s++)
        used[s] = false;
    for (uint32_t i = 0; i < capture->count; i++)
        used[capture->calls[i].stream] = true;
}

/* A branch during a capture. Calls are identified by their index. */
struct branch_history {
    uint32_t count;                      /* number of its calls */
    uint32_t at[OPS_CUDA_BRANCH_EVENTS]; /* indices of the last ones; each has
                                            an event */
    uint32_t seen[OPS_CUDA_BRANCHES]; /* per branch: the calls before this index
                                         are waited for */
};

/* A capture in progress. Calls of STREAM_COMPUTE are distributed over branches,
 * each in order; across branches a call waits only for those that it conflicts
 * with. So the gradients of weights do not delay the layers below. */
struct graph_capture {
    struct device *device;
    const struct ops_cuda_capture *capture;
    struct branch_history histories[OPS_CUDA_BRANCHES];
};

static bool check_capture(struct device *device, cudaError_t error) {
    return ops_cuda_keep_error(device, error, "capturing it");
}

static void wait_event(struct device *device, cudaStream_t stream,
                       cudaEvent_t event) {
    check_capture(device, cudaStreamWaitEvent(stream, event, 0));
}

/* Makes BEHIND wait for the work captured on AHEAD, which adds BEHIND to the
 * capture. */
static void order_after(struct device *device, cudaStream_t ahead,
                        cudaStream_t behind) {
    if (check_capture(device, cudaEventRecord(device->captures.order, ahead)))
        wait_event(device, behind, device->captures.order);
}

static bool is_on_branch(const struct ops_cuda_call *call, int branch) {
    return call->stream == STREAM_COMPUTE && call->op.kind != OPS_CUDA_RECORD &&
           call->op.kind != OPS_CUDA_STREAM_WAIT &&
           (int)ops_cuda_call_branch(call) == branch;
}

/* The last call of BRANCH before index AT, and not before FROM, that conflicts
 * with call AT; AT if there is none. */
static uint32_t last_conflict(const struct ops_cuda_capture *capture,
                              int branch, uint32_t from, uint32_t at) {
    for (uint32_t i = at; i-- > from;)
        if (is_on_branch(&capture->calls[i], branch) &&
            ops_cuda_call_conflicts(&capture->calls[i], &capture->calls[at]))
            return i;
    return at;
}

/* The position of the branch's first call from index AT on that still has an
 * event; AT is one of its calls. */
static uint32_t find_event(const struct branch_history *branch_history,
                           uint32_t at) {
    uint32_t first = branch_history->count > OPS_CUDA_BRANCH_EVENTS
                         ? branch_history->count - OPS_CUDA_BRANCH_EVENTS
                         : 0;
    while (branch_history->at[first % OPS_CUDA_BRANCH_EVENTS] < at)
        first++;
    return first % OPS_CUDA_BRANCH_EVENTS;
}

/* Makes call AT of BRANCH wait for the conflicting calls of other branches. */
static void wait_conflicts(struct graph_capture *capture, int branch,
                           uint32_t at) {
    struct device *device = capture->device;
    struct branch_history *own = &capture->histories[branch];
    for (int other = 0; other < OPS_CUDA_BRANCHES; other++) {
        uint32_t conflict = at;
        if (other != branch)
            conflict =
                last_conflict(capture->capture, other, own->seen[other], at);
        if (conflict == at)
            continue;
        uint32_t slot = find_event(&capture->histories[other], conflict);
        wait_event(device, device->branches[branch].stream,
                   device->captures.branch_events[other][slot]);
        own->seen[other] = capture->histories[other].at[slot] + 1;
    }
}

static void ops_cuda_graph_compute(struct graph_capture *capture, uint32_t at) {
    struct device *device = capture->device;
    const struct ops_cuda_call *call = &capture->capture->calls[at];
    enum ops_cuda_branch_name branch = ops_cuda_call_branch(call);
    struct branch_history *branch_history = &capture->histories[branch];
    wait_conflicts(capture, (int)branch, at);
    ops_cuda_call_execute_on_branch(device, call);
    uint32_t slot = branch_history->count++ % OPS_CUDA_BRANCH_EVENTS;
    branch_history->at[slot] = at;
    check_capture(device,
                  cudaEventRecord(device->captures.branch_events[branch][slot],
                                  device->branches[branch].stream));
}

/* True if AT is the last record of its event. */
static bool is_last(const struct ops_cuda_capture *capture, uint32_t at) {
    for (uint32_t i = at + 1; i < capture->count; i++)
        if (capture->calls[i].op.kind == OPS_CUDA_RECORD &&
            capture->calls[i].event == capture->calls[at].event)
            return false;
    return true;
}

/* An event recorded during a capture is valid only within it, so that work
 * outside waits for a separate one. Work of STREAM_COMPUTE is complete where
 * all branches join, on a stream of its own: no branch waits for another
 * because of it. */
static void ops_cuda_graph_record(struct graph_capture *capture, uint32_t at) {
    struct device *device = capture->device;
    const struct ops_cuda_call *call = &capture->capture->calls[at];
    bool computing = call->stream == STREAM_COMPUTE;
    cudaStream_t stream =
        computing ? device->event_stream : device->streams[call->stream];
    for (int branch = 0; computing && branch < OPS_CUDA_BRANCHES; branch++)
        order_after(device, device->branches[branch].stream, stream);
    check_capture(device, cudaEventRecord(call->event->inner, stream));
    if (is_last(capture->capture, at))
        check_capture(device,
                      cudaEventRecordWithFlags(call->event->event, stream,
                                               cudaEventRecordExternal));
}

/* Events from before the capture are left to the launching code. */
static void ops_cuda_graph_stream_wait(struct graph_capture *capture,
                                       const struct ops_cuda_call *call) {
    struct device *device = capture->device;
    if (call->outside)
        return;
    if (call->stream != STREAM_COMPUTE)
        wait_event(device, device->streams[call->stream], call->event->inner);
    for (int branch = 0;
         call->stream == STREAM_COMPUTE && branch < OPS_CUDA_BRANCHES; branch++)
        wait_event(device, device->branches[branch].stream, call->event->inner);
}

static void capture_call(struct graph_capture *capture, uint32_t at) {
    const struct ops_cuda_call *call = &capture->capture->calls[at];
    if (call->op.kind == OPS_CUDA_RECORD)
        ops_cuda_graph_record(capture, at);
    else if (call->op.kind == OPS_CUDA_STREAM_WAIT)
        ops_cuda_graph_stream_wait(capture, call);
    else if (call->stream == STREAM_COMPUTE)
        ops_cuda_graph_compute(capture, at);
    else
        ops_cuda_call_execute(capture->device, call);
}

/* Records that STREAM's captured work is done. */
static void record_passed(struct device *device, enum device_stream stream) {
    check_capture(device,
                  cudaEventRecordWithFlags(device->captures.completed[stream],
                                           device->streams[stream],
                                           cudaEventRecordExternal));
    order_after(device, device->streams[stream],
                device->streams[STREAM_COMPUTE]);
}

static void capture_all(struct graph_capture *capture) {
    struct device *device = capture->device;
    cudaStream_t first = device->streams[STREAM_COMPUTE];
    bool used[DEVICE_STREAMS];
    ops_cuda_graph_streams(capture->capture, used);
    used[STREAM_COMPUTE] = false;
    for (int branch = OPS_CUDA_MAIN + 1; branch < OPS_CUDA_BRANCHES; branch++)
        order_after(device, first, device->branches[branch].stream);
    order_after(device, first, device->event_stream);
    for (int s = 0; s < DEVICE_STREAMS; s++)
        if (used[s])
            order_after(device, first, device->streams[s]);
    for (uint32_t i = 0; i < capture->capture->count && !device->failed; i++)
        capture_call(capture, i);
    for (int branch = OPS_CUDA_MAIN + 1; branch < OPS_CUDA_BRANCHES; branch++)
        order_after(device, device->branches[branch].stream, first);
    order_after(device, device->event_stream, first);
    for (int s = 0; s < DEVICE_STREAMS; s++)
        if (used[s])
            record_passed(device, (enum device_stream)s);
}

/* Other threads of the process may use CUDA meanwhile (ThreadLocal). */
cudaError_t ops_cuda_graph_capture(struct device *device,
                                   struct ops_cuda_capture *capture) {
    struct graph_capture graph_capture = {.device = device, .capture = capture};
    cudaStream_t stream = device->streams[STREAM_COMPUTE];
    cudaGraph_t graph = NULL;
    cudaError_t error =
        cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    if (!error) {
        capture_all(&graph_capture);
        error = cudaStreamEndCapture(stream, &graph);
    }
    if (device->failed)
        error = device->failed;
    device->failed = cudaSuccess;
    if (!error)
        error = cudaGraphInstantiate(&capture->graph, graph,
                                     cudaGraphInstantiateFlagUseNodePriority);
    if (error)
        capture->graph = NULL;
    if (graph)
        cudaGraphDestroy(graph);
    cudaGetLastError();
    return error;
}
