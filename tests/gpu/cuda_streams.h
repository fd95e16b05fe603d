/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA's streams, events and graphs as its manual describes them, on the CPU:
 * for tests/gpu/cuda_runtime_on_cpu.cc. What a stream is given is done once
 * somebody asks for it, at once, or at a random moment, and never before what
 * it has to follow: a dependence that is missing shows as other numbers. While
 * a stream is captured nothing of it is done, and what CUDA forbids then fails
 * the capture. There may be several devices; a stream takes work from threads
 * alone that are at its own. (CUDA's takes copies from others too.) Threads
 * that are at one device take turns, and each captures for itself.
 *
 * CAPSTAN_EMULATED says how it goes: "devices=2,order=2,seed=7",
 * "refuse=capture" (or what is given to a captured stream: "refuse=work", or
 * "refuse=instantiate"), "count" (a line on stderr when the last stream is
 * closed). Functions return a cudaError_t. */
#ifndef CAPSTAN_CUDA_STREAMS_H
#define CAPSTAN_CUDA_STREAMS_H

#include <stdbool.h>
#include <stdint.h>

enum cuda_streams_order {
    CUDA_STREAMS_LAZY, /* when somebody asks for it */
    CUDA_STREAMS_EAGER,
    CUDA_STREAMS_RANDOM,
    CUDA_STREAMS_ORDERS
};

/* As in CUDA's driver_types.h. */
enum {
    CUDA_STREAMS_INVALID_VALUE = 1,
    CUDA_STREAMS_OUT_OF_MEMORY = 2,
    CUDA_STREAMS_INVALID_HANDLE = 400,
    CUDA_STREAMS_ILLEGAL_STATE = 401,
    CUDA_STREAMS_NOT_READY = 600,
    CUDA_STREAMS_UNSUPPORTED = 900,
    CUDA_STREAMS_INVALIDATED = 901,
    CUDA_STREAMS_MERGE = 902,
    CUDA_STREAMS_UNMATCHED = 903,
    CUDA_STREAMS_UNJOINED = 904,
    CUDA_STREAMS_ISOLATION = 905,
    CUDA_STREAMS_CAPTURED_EVENT = 907,
};

/* What the host has called since the process began. */
struct cuda_streams_counts {
    uint64_t works; /* kernels, products, copies that went to a stream */
    uint64_t events, waits;
    uint64_t captures, launches; /* of graphs */
    uint64_t up, pageable; /* bytes of copies to devices, and of those from and
                              to memory that is not pinned; without replays */
};

struct CUstream_st;
struct CUevent_st;
struct CUgraph_st;
struct CUgraphExec_st;

#ifdef __cplusplus
#include <functional>

/* WORK, which returns a cudaError_t, joins STREAM. */
int cuda_streams_submit(struct CUstream_st *stream, std::function<int()> work);

extern "C" {
#endif

/* The same for RUN(CONTEXT). */
int cuda_streams_submit_call(struct CUstream_st *stream,
                             void (*run)(void *context), void *context);

/* The calling thread goes on at device INDEX; at first it is at 0. */
void cuda_streams_set_device(int index);

/* Which it is at. */
int cuda_streams_current_device(void);

/* How many there are. */
unsigned cuda_streams_num_devices(void);

/* On the device that the thread is at. */
struct CUstream_st *cuda_streams_open(void);
void cuda_streams_close(struct CUstream_st *stream);
int cuda_streams_query(struct CUstream_st *stream);

/* On the device that the thread is at; only its streams record it. */
struct CUevent_st *cuda_streams_event_open(void);
void cuda_streams_event_close(struct CUevent_st *event);
int cuda_streams_event_query(struct CUevent_st *event);

/* EXTERNAL: as cudaEventRecordExternal. */
int cuda_streams_record(struct CUevent_st *event, struct CUstream_st *stream,
                        bool external);
int cuda_streams_wait(struct CUstream_st *stream, struct CUevent_st *event);

/* Captures begin in mode ThreadLocal. */
int cuda_streams_begin_capture(struct CUstream_st *stream);
int cuda_streams_end_capture(struct CUstream_st *stream,
                             struct CUgraph_st **graph);
int cuda_streams_instantiate(struct CUgraphExec_st **exec,
                             struct CUgraph_st *graph);
int cuda_streams_launch(struct CUgraphExec_st *exec,
                        struct CUstream_st *stream);
void cuda_streams_graph_close(struct CUgraph_st *graph);
void cuda_streams_exec_close(struct CUgraphExec_st *exec);

/* A call that may not be made while this thread captures a stream: 0, or it
 * fails the capture. */
int cuda_streams_check_uncaptured(void);

/* All that any stream was given is done; an error of any work. */
int cuda_streams_finish(void);

/* A copy of BYTES goes to a stream. */
void cuda_streams_add_copy(uint64_t bytes, bool up, bool pageable);

void cuda_streams_count(struct cuda_streams_counts *counts);

#ifdef __cplusplus
}
#endif

#endif
