/* SPDX-License-Identifier: Apache-2.0 */
#include "commands/measure/bench_table.h"

#include "core/base/byte_size.h"

#include <jansson.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

static const char *const kinds[][2] = {
    {"push", "push"}, {"pull", "pull"}, {"push_pull", "push-pull"}};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* The number at KEY of OBJECT; NAN if there is none. */
static double bench_table_number(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

/* VALUE in WIDTH columns with about three digits; a dash for NAN. */
static void bench_table_print_number(FILE *out, int width, double value) {
    if (isnan(value))
        fprintf(out, " %*s", width, "-");
    else if (value >= 9.5e6)
        fprintf(out, " %*.0fM", width - 1, value / 1e6);
    else if (value >= 9.95e5)
        fprintf(out, " %*.1fM", width - 1, value / 1e6);
    else if (value >= 9999.5)
        fprintf(out, " %*.0fk", width - 1, value / 1e3);
    else
        fprintf(out, " %*.*f", width,
                value >= 100   ? 0
                : value >= 10  ? 1
                : value >= 0.1 ? 2
                               : 3,
                value);
}

static void bench_table_print_share(FILE *out, double share) {
    if (isnan(share))
        fprintf(out, " %7s", "-");
    else
        fprintf(out, " %6.0f%%", 100 * share);
}

static void print_transport(FILE *out, const json_t *figure) {
    bench_table_print_number(out, 7, bench_table_number(figure, "gb_s"));
    bench_table_print_number(out, 7, bench_table_number(figure, "requests_s"));
    bench_table_print_number(out, 8, bench_table_number(figure, "p50_us"));
    bench_table_print_number(out, 8, bench_table_number(figure, "p99_us"));
}

static void print_baseline(FILE *out, const json_t *figure, double share) {
    bench_table_print_number(out, 8, bench_table_number(figure, "gb_s"));
    bench_table_print_number(out, 8, bench_table_number(figure, "p50_us"));
    bench_table_print_share(out, share);
}

static void print_kind(FILE *out, const char *size, const json_t *of_size,
                       int kind) {
    const json_t *figures = json_object_get(of_size, kinds[kind][0]);
    fprintf(out, "%-8s %-9s", size, kinds[kind][1]);
    print_transport(out, json_object_get(figures, "lane"));
    fprintf(out, "  |");
    print_baseline(out, json_object_get(figures, "socket"),
                   bench_table_number(figures, "of_socket"));
    fprintf(out, "  |");
    print_baseline(out, json_object_get(figures, "zmq"),
                   bench_table_number(figures, "of_zmq"));
    fprintf(out, "  |");
    bench_table_print_number(
        out, 7, kind ? NAN : bench_table_number(of_size, "memcpy_gb_s"));
    fprintf(out, "\n");
}

static void print_sizes(FILE *out, const json_t *sizes) {
    size_t i;
    const json_t *of_size;
    char text[16];
    fprintf(out, "%-18s %32s   | %-26s| %-26s| %s\n", "", "capstan",
            " plain socket", " bare libzmq", " memcpy");
    fprintf(out,
            "%-8s %-9s %7s %7s %8s %8s  | %8s %8s %7s | %8s %8s %7s | %7s\n",
            "size", "", "GB/s", "req/s", "p50 us", "p99 us", "GB/s", "p50 us",
            "share", "GB/s", "p50 us", "share", "GB/s");
    json_array_foreach(sizes, i, of_size) {
        byte_size_text((uint64_t)bench_table_number(of_size, "bytes"), text,
                       sizeof text);
        for (int kind = 0; kind < KINDS; kind++)
            print_kind(out, kind ? "" : text, of_size, kind);
    }
}

static void print_batched(FILE *out, const json_t *batched) {
    char text[16];
    byte_size_text((uint64_t)bench_table_number(batched, "bytes"), text,
                   sizeof text);
    fprintf(out, "\n%.0f vectors of %s in one message:",
            bench_table_number(batched, "together"), text);
    for (int kind = 0; kind < KINDS; kind++) {
        fprintf(out, "%s %s", kind ? "," : "", kinds[kind][1]);
        bench_table_print_number(
            out, 1,
            bench_table_number(json_object_get(batched, kinds[kind][0]),
                               "requests_s"));
        fprintf(out, "/s");
    }
    fprintf(out, "\n");
}

static void print_memory(FILE *out, const char *when, double bytes) {
    if (isnan(bytes))
        fprintf(out, ", ps memory %s: not on this machine", when);
    else
        fprintf(out, ", ps memory %s %.2f MB", when, bytes / (1 << 20));
}

static void print_requests(FILE *out, const json_t *requests) {
    char text[16];
    byte_size_text((uint64_t)bench_table_number(requests, "bytes"), text,
                   sizeof text);
    fprintf(out, "%.0f pushes of %s in %.1f s:",
            bench_table_number(requests, "count"), text,
            bench_table_number(requests, "seconds"));
    bench_table_print_number(out, 1,
                             bench_table_number(requests, "requests_s"));
    fprintf(out, "/s");
    print_memory(out, "at the start",
                 bench_table_number(requests, "ps_memory_start"));
    print_memory(out, "at the end",
                 bench_table_number(requests, "ps_memory_end"));
    fprintf(out, "\n");
}

void bench_table_print(FILE *out, const char *result) {
    json_t *object = json_loads(result, 0, NULL);
    const json_t *requests = json_object_get(object, "requests");
    const char *missing =
        json_string_value(json_object_get(object, "baselines_missing"));
    if (!object)
        return;
    if (requests) {
        print_requests(out, requests);
    } else {
        fprintf(out,
                "%s, %.0f ps, %.0f cores; medians of %.0f, in turns; share: "
                "of the other's GB/s\n\n",
                json_string_value(json_object_get(object, "lane")),
                bench_table_number(object, "ps"),
                bench_table_number(object, "cores"),
                bench_table_number(object, "repeats"));
        print_sizes(out, json_object_get(object, "sizes"));
        print_batched(out, json_object_get(object, "batched"));
        if (missing)
            fprintf(out, "no plain socket and no bare libzmq: %s\n", missing);
    }
    json_decref(object);
}
