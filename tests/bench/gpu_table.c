/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/bench/gpu_table.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const gpu_table_lanes[GPU_TABLE_LANES] = {"tcp", "auto"};

static const char *const precisions[] = {[JOB_PRECISION_FP32] = "float32",
                                         [JOB_PRECISION_BF16] = "bf16",
                                         [JOB_PRECISION_FP16] = "fp16",
                                         [JOB_PRECISION_TF32] = "tf32"};

/* Of the bound, at least. */
static const double AIM_REACHED = 85;

static double longer(double a, double b) {
    return fmax(a, b); /* the other, where one is no number */
}

/* Weights and samples go up while gradients come down; over the wire gradients
 * go one way while weights come the other. Where the lane is shared memory the
 * wire is none. */
void gpu_table_derive(const struct gpu_table *table, struct gpu_table_row *row,
                      size_t batch_bytes) {
    for (int l = 0; l < GPU_TABLE_LANES; l++) {
        struct gpu_table_run *run = &row->runs[l];
        double bytes = run->seconds.bytes;
        run->copies = longer((bytes + (double)batch_bytes) / table->copies.up,
                             bytes / table->copies.down) *
                      1e-9;
        run->wire = l == 0 ? bytes * 8 / table->wire.one_way * 1e-9 : NAN;
        run->bound = longer(longer(row->alone.median, run->copies), run->wire);
    }
}

/* VALUE in WIDTH columns, "-" where it is none. */
static void cell(FILE *out, int width, const char *format, double value) {
    char text[32] = "-";
    if (isfinite(value))
        snprintf(text, sizeof text, format, value);
    fprintf(out, " %*s", width, text);
}

static void print_machine(const struct gpu_table *table, FILE *out) {
    fprintf(out, "device: %s; model of %llu parameters, %.2f MB\n",
            table->device, (unsigned long long)table->parameters,
            (double)table->parameters * 4e-6);
    fprintf(out, "copies of pinned memory, GB/s: up");
    cell(out, 0, "%.1f", table->copies.up);
    fprintf(out, ", down");
    cell(out, 0, "%.1f", table->copies.down);
    fprintf(out, ", both at once, each");
    cell(out, 0, "%.1f", table->copies.both);
    fprintf(out, "\nloopback, one plain TCP connection, Gbit/s: one way");
    cell(out, 0, "%.1f", table->wire.one_way);
    fprintf(out, ", both at once, each");
    cell(out, 0, "%.1f", table->wire.both_ways);
    fprintf(out, "\n\n");
}

static void print_alone(const struct gpu_table *table, FILE *out) {
    fprintf(out, "%-20s %9s %9s %9s %8s %8s %8s %8s %9s\n", "computing alone",
            "us a step", "min", "max", "TFLOP/s", "aim", "with SGD", "eager",
            "CUDA graph");
    for (unsigned i = 0; i < table->num_rows; i++) {
        const struct gpu_table_row *row = &table->rows[i];
        fprintf(out, "batch %-6u %-7s", row->batch, precisions[row->precision]);
        cell(out, 9, "%.1f", row->alone.median * 1e6);
        cell(out, 9, "%.1f", row->alone.least * 1e6);
        cell(out, 9, "%.1f", row->alone.most * 1e6);
        cell(out, 8, "%.2f", row->gflop / row->alone.median * 1e-3);
        cell(out, 8, "%.0f", row->aim_us);
        cell(out, 8, "%.1f", row->updated.median * 1e6);
        cell(out, 8, "%.0f", row->eager_us);
        cell(out, 9, "%.1f", row->graph_us);
        fprintf(out, "\n");
    }
    fprintf(out, "(with SGD: and the update on the device; eager, CUDA graph: "
                 "PyTorch's such step\nin the same precision, of --torch)\n\n");
}

static double share(double part, double whole) {
    return part / whole * 100;
}

static void print_run(const struct gpu_table_row *row, int lane, FILE *out) {
    const struct gpu_table_run *run = &row->runs[lane];
    double step = run->seconds.step;
    fprintf(out, "batch %-6u %-7s %-4s", row->batch, precisions[row->precision],
            gpu_table_lanes[lane]);
    cell(out, 9, "%.1f", step * 1e6);
    cell(out, 9, "%.1f", run->bound * 1e6);
    cell(out, 7, "%.1f%%", share(run->bound, step));
    cell(out, 8, "%.0f%%", share(row->alone.median, step));
    cell(out, 7, "%.0f%%", share(run->copies, step));
    cell(out, 6, "%.0f%%", share(run->wire, step));
    cell(out, 7, "%.0f%%", share(run->seconds.update, step));
    cell(out, 7, "%.0f%%", share(run->seconds.input, step));
    cell(out, 8, "%.0f%%", share(run->seconds.waiting, step));
    cell(out, 8, "%.0f%%", run->seconds.gpu_use);
    fprintf(out, "\n");
}

static void print_runs(const struct gpu_table *table, FILE *out) {
    fprintf(out, "%-25s %9s %9s %7s %8s %7s %6s %7s %7s %8s %8s\n",
            "1 ps, 1 worker", "us a step", "bound", "reached", "compute",
            "copies", "wire", "update", "input", "waiting", "GPU used");
    for (unsigned i = 0; i < table->num_rows; i++)
        for (int l = 0; l < GPU_TABLE_LANES; l++)
            print_run(&table->rows[i], l, out);
    fprintf(out,
            "(bound: the longest of computing alone, copies and, over TCP, "
            "the weights'\nbytes one way at the plain connection's rate; aim: "
            "at least %.0f %% reached.\nShares of a step's time; what overlaps "
            "adds up to more than the whole:\ncompute, copies and wire at the "
            "rates above, update at the ps, input and\nwaiting as the trainer "
            "counts them.)\n",
            AIM_REACHED);
    if (table->reason[0])
        fprintf(out, "(GPU used: not known, %s)\n", table->reason);
}

void gpu_table_print(const struct gpu_table *table, FILE *out) {
    print_machine(table, out);
    print_alone(table, out);
    print_runs(table, out);
}

static void set_real(json_t *object, const char *key, double value) {
    json_object_set_new(object, key,
                        isfinite(value) ? json_real(value) : json_null());
}

static json_t *tell_run(const struct gpu_table_row *row, int lane) {
    const struct gpu_table_run *run = &row->runs[lane];
    json_t *object = json_object();
    set_real(object, "step_us", run->seconds.step * 1e6);
    set_real(object, "bound_us", run->bound * 1e6);
    set_real(object, "reached_percent", share(run->bound, run->seconds.step));
    set_real(object, "compute_us", row->alone.median * 1e6);
    set_real(object, "copies_us", run->copies * 1e6);
    set_real(object, "wire_us", run->wire * 1e6);
    set_real(object, "update_us", run->seconds.update * 1e6);
    set_real(object, "input_us", run->seconds.input * 1e6);
    set_real(object, "waiting_us", run->seconds.waiting * 1e6);
    set_real(object, "gpu_used_percent", run->seconds.gpu_use);
    return object;
}

static json_t *tell_row(const struct gpu_table_row *row) {
    json_t *object = json_object(), *alone = json_object();
    json_object_set_new(object, "batch", json_integer(row->batch));
    json_object_set_new(object, "precision",
                        json_string(precisions[row->precision]));
    set_real(alone, "median_us", row->alone.median * 1e6);
    set_real(alone, "min_us", row->alone.least * 1e6);
    set_real(alone, "max_us", row->alone.most * 1e6);
    set_real(alone, "aim_us", row->aim_us);
    set_real(alone, "with_sgd_us", row->updated.median * 1e6);
    set_real(alone, "eager_us", row->eager_us);
    set_real(alone, "graph_us", row->graph_us);
    json_object_set_new(object, "alone", alone);
    for (int l = 0; l < GPU_TABLE_LANES; l++)
        json_object_set_new(object, gpu_table_lanes[l], tell_run(row, l));
    return object;
}

void gpu_table_print_json(const struct gpu_table *table, FILE *out) {
    json_t *object = json_object(), *copies = json_object();
    json_t *wire = json_object(), *rows = json_array();
    json_object_set_new(object, "device", json_string(table->device));
    json_object_set_new(object, "parameters",
                        json_integer((json_int_t)table->parameters));
    set_real(copies, "up_gb_s", table->copies.up);
    set_real(copies, "down_gb_s", table->copies.down);
    set_real(copies, "both_gb_s", table->copies.both);
    json_object_set_new(object, "copies", copies);
    set_real(wire, "one_way_gbit_s", table->wire.one_way);
    set_real(wire, "both_ways_gbit_s", table->wire.both_ways);
    json_object_set_new(object, "loopback", wire);
    for (unsigned i = 0; i < table->num_rows; i++)
        json_array_append_new(rows, tell_row(&table->rows[i]));
    json_object_set_new(object, "batches", rows);
    json_dumpf(object, out, JSON_COMPACT | JSON_PRESERVE_ORDER);
    fputc('\n', out);
    json_decref(object);
}
