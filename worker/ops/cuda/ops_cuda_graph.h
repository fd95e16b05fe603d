/* SPDX-License-Identifier: Apache-2.0 */
/* A span's calls as one CUDA graph. */
#ifndef CAPSTAN_OPS_CUDA_GRAPH_H
#define CAPSTAN_OPS_CUDA_GRAPH_H

#include "worker/ops/cuda/ops_cuda_capture.h"

/* SPAN's graph becomes what its calls do, none of which happens now. What they
 * follow from before the span is left to who launches it, in a stream that they
 * all follow then. An event has come for those outside the graph when its last
 * record in the span is passed. The error of what could not be captured leaves
 * nothing behind. */
cudaError_t ops_cuda_graph_capture(struct ops_device *device,
                                   struct ops_cuda_capture *capture);

/* Which streams SPAN's calls are of. */
void ops_cuda_graph_streams(const struct ops_cuda_capture *capture,
                            bool used[OPS_STREAMS]);

#endif
