/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/cluster/cluster_points.h"

#include "core/store/tensor_file.h"
#include "tests/lib/example_message.h"
#include "tests/lib/test.h"

enum { POINTS = 90, WIDE = 4 };

struct points {
    float x[POINTS][WIDE], y[POINTS];
    double wide_y[POINTS];
};

static double uniform(uint32_t *seed) {
    *seed = *seed * 1664525 + 1013904223;
    return (*seed >> 8) * 0x1p-23 - 1;
}

static void draw(struct points *points) {
    uint32_t seed = 11;
    for (int p = 0; p < POINTS; p++) {
        double sum = 0.1;
        for (int i = 0; i < WIDE; i++) {
            points->x[p][i] = (float)(3 * uniform(&seed));
            sum += (i - 1.3) * (double)points->x[p][i];
        }
        points->wide_y[p] = sum;
        points->y[p] = (float)sum;
    }
}

/* The SIZE bytes of NUMBER, the highest first. */
static void write_big_endian(FILE *file, const void *number, size_t size) {
    const unsigned char *bytes = number;
    while (size--)
        fputc(bytes[size], file);
}

static void write_header(FILE *file, uint32_t magic, uint32_t columns) {
    const uint32_t words[] = {magic, POINTS, columns};
    for (int i = 0; i < (columns ? 3 : 2); i++)
        write_big_endian(file, &words[i], sizeof *words);
}

static void write_idx(const struct cluster_run *run,
                      const struct points *points) {
    FILE *x = cluster_run_create(run, "x.idx"),
         *y = cluster_run_create(run, "y.idx");
    write_header(x, 0x0d02, WIDE);
    write_header(y, 0x0e01, 0);
    for (int p = 0; p < POINTS; p++) {
        for (int i = 0; i < WIDE; i++)
            write_big_endian(x, &points->x[p][i], sizeof(float));
        write_big_endian(y, &points->wide_y[p], sizeof(double));
    }
    assert_int_equal(fclose(x) | fclose(y), 0);
}

static void write_npy(const struct cluster_run *run,
                      const struct points *points) {
    static const char described[] =
        "{'descr': [('x', '<f4', (4,)), ('y', '<f8')], "
        "'fortran_order': False, 'shape': (90,), }";
    FILE *npy = cluster_run_create(run, "xy.npy");
    fwrite("\x93NUMPY\1\0\x76", 1, 10, npy);
    fprintf(npy, "%-117s\n", described);
    for (int p = 0; p < POINTS; p++) {
        fwrite(points->x[p], sizeof points->x[p], 1, npy);
        fwrite(&points->wide_y[p], sizeof points->wide_y[p], 1, npy);
    }
    assert_int_equal(ftell(npy), 128 + POINTS * (WIDE * 4 + 8));
    assert_int_equal(fclose(npy), 0);
}

static void write_csv(const struct cluster_run *run,
                      const struct points *points) {
    FILE *csv = cluster_run_create(run, "xy.csv");
    fputs("x0,x1,x2,x3,y\n", csv);
    for (int p = 0; p < POINTS; p++) {
        for (int i = 0; i < WIDE; i++)
            fprintf(csv, "%.9g,", (double)points->x[p][i]);
        fprintf(csv, "%.9g\n", (double)points->y[p]);
    }
    assert_int_equal(fclose(csv), 0);
}

static void write_tfrecord(const struct cluster_run *run,
                           const struct points *points) {
    FILE *file = cluster_run_create(run, "xy.tfrecord");
    for (int p = 0; p < POINTS; p++) {
        struct example_message features = {.size = 0}, example = {.size = 0};
        example_message_put_floats(&features, "x", points->x[p], WIDE);
        example_message_put_floats(&features, "y", &points->y[p], 1);
        example_message_put_part(&example, 1, features.bytes, features.size);
        example_message_write(file, &example);
    }
    assert_int_equal(fclose(file), 0);
}

static enum status fetch(void *context, uint32_t index, float *floats,
                         struct failure *why) {
    const struct points *points = context;
    (void)why;
    if (index)
        memcpy(floats, points->y, sizeof points->y);
    else
        memcpy(floats, points->x, sizeof points->x);
    return STATUS_OK;
}

static void write_tensors(const struct cluster_run *run, struct points *points,
                          const char *name, enum tensor_format format) {
    static const struct parameter tensors[] = {
        {.name = "x",
         .num_dims = 2,
         .dims = {POINTS, WIDE},
         .elements = POINTS * WIDE},
        {.name = "y", .num_dims = 1, .dims = {POINTS}, .elements = POINTS}};
    struct tensor_source source = {
        .tensors = tensors, .count = 2, .fetch = fetch, .context = points};
    assert_ok(tensor_file_write(cluster_run_path(run, name), format, &source,
                                &failure));
}

void cluster_points_write(const struct cluster_run *run) {
    struct points points;
    draw(&points);
    write_idx(run, &points);
    write_npy(run, &points);
    write_csv(run, &points);
    write_tfrecord(run, &points);
    write_tensors(run, &points, "xy.npz", TENSOR_NPZ);
    write_tensors(run, &points, "xy.safetensors", TENSOR_SAFETENSORS);
}
