/* SPDX-License-Identifier: Apache-2.0 */
/* Builds one CUDA graph from a capture's calls. */
#ifndef CAPSTAN_OPS_CUDA_GRAPH_H
#define CAPSTAN_OPS_CUDA_GRAPH_H

#include "worker/ops/cuda/ops_cuda_capture.h"

/* Captures the calls of CAPTURE as its graph without executing them.
 * Dependencies on earlier work are left to the launching code, on one stream
 * that all calls then follow. An event completes for work outside the graph at
 * its last record in the capture. After an error nothing is left of the
 * attempt. */
cudaError_t ops_cuda_graph_capture(struct device *device,
                                   struct ops_cuda_capture *capture);

/* Sets USED to the streams of CAPTURE's calls. */
void ops_cuda_graph_streams(const struct ops_cuda_capture *capture,
                            bool used[DEVICE_STREAMS]);

#endif
