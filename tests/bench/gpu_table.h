/* SPDX-License-Identifier: Apache-2.0 */
/* What gpu_bench has measured, and how it is told: tables for people, or one
 * JSON object. */
#ifndef CAPSTAN_GPU_TABLE_H
#define CAPSTAN_GPU_TABLE_H

#include "tests/bench/gpu_cluster.h"
#include "tests/bench/gpu_compute.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum {
    GPU_TABLE_MAX_BATCHES = 16,
    GPU_TABLE_MAX_ROWS = 2 * GPU_TABLE_MAX_BATCHES, /* float32 and TF32 */
    GPU_TABLE_LANES = 2
};

/* One ps and one worker by one lane. */
struct gpu_table_run {
    struct gpu_cluster_run seconds;
    double copies, wire; /* seconds a step, the longer direction; NAN: none */
    double bound;        /* the longest of computing, copies and wire */
};

struct gpu_table_row {
    uint32_t batch;
    enum job_precision precision;
    struct gpu_compute_figure alone, updated;   /* seconds a step */
    double gflop;                               /* of a step */
    double aim_us, eager_us, graph_us;          /* NAN: none is known */
    struct gpu_table_run runs[GPU_TABLE_LANES]; /* tcp, auto */
};

struct gpu_table {
    const char *device, *reason; /* REASON: why the GPU's use is not known */
    uint64_t parameters;
    struct gpu_compute_copies copies;
    struct gpu_cluster_wire wire;
    struct gpu_table_row rows[GPU_TABLE_MAX_ROWS];
    unsigned num_rows;
};

extern const char *const gpu_table_lanes[GPU_TABLE_LANES];

/* Fills in ROW what follows from what was measured; its batch comes up as
 * BATCH_BYTES. */
void gpu_table_derive(const struct gpu_table *table, struct gpu_table_row *row,
                      size_t batch_bytes);

void gpu_table_print(const struct gpu_table *table, FILE *out);
void gpu_table_print_json(const struct gpu_table *table, FILE *out);

#endif
