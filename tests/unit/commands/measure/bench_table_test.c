/* SPDX-License-Identifier: Apache-2.0 */
#include "commands/measure/bench_table.h"

#include "tests/lib/test.h"

#include <stdlib.h>
#include <string.h>

static void expect(const char *result, const char *const *lines) {
    char *text;
    size_t size;
    FILE *to = open_memstream(&text, &size);
    bench_table_print(to, result);
    fclose(to);
    for (int i = 0; lines[i]; i++)
        assert_contains(text, lines[i]);
    free(text);
}

#define FIGURE(gb_s, requests_s)                                               \
    "{\"gb_s\":" gb_s ",\"requests_s\":" requests_s                            \
    ",\"messages_s\":1,\"p50_us\":12.34,\"p99_us\":123456}"
#define KIND(gb_s)                                                             \
    "{\"lane\":" FIGURE(gb_s, "370000.0") ",\"socket\":" FIGURE(               \
        "2.5", "1.0") ",\"zmq\":" FIGURE("0.0004",                             \
                                         "1.0") ",\"of_socket\":0.594,"        \
                                                "\"of_zmq\":null}"

TEST(each_size_has_a_row_for_each_kind) {
    const char *result =
        "{\"lane\":\"tcp\",\"ps\":2,\"cores\":4,\"repeats\":5,\"sizes\":["
        "{\"bytes\":4096,\"memcpy_gb_s\":50.0,\"push\":" KIND("1.5") ",\"pull\":" KIND("0.25") ",\"push_pull\":" KIND(
            "123.4") "}],"
                     "\"batched\":{\"bytes\":64,\"together\":1024,\"push\":" FIGURE("1.0", "6300000.0") ",\"pull\":" FIGURE(
                         "1.0",
                         "17000000.0") ",\"push_pull\":" FIGURE("1.0",
                                                                "900.0") "}}";
    expect(result,
           (const char *const[]){
               "tcp, 2 ps, 4 cores; medians of 5",
               "4 KB     push         1.50    370k     12.3     123k  |     "
               "2.50     12.3     59%  |    0.000     12.3       -  |    50.0",
               "         pull         0.25", "         push-pull     123",
               "1024 vectors of 64 B in one message: push 6.3M/s, pull 17M/s, "
               "push-pull 900/s",
               NULL});
}

TEST(without_baselines_a_line_says_why) {
    expect("{\"lane\":\"tcp\",\"baselines_missing\":\"no plugin\",\"sizes\":["
           "{\"bytes\":4096,\"push\":{\"lane\":" FIGURE(
               "1.5",
               "370000.0") ",\"socket\":{\"gb_s\":null},\"of_socket\":null}}]}",
           (const char *const[]){
               "12.3     123k  |        -        -       -  |        -",
               "\nno plain socket and no bare libzmq: no plugin\n", NULL});
}

TEST(many_requests_have_one_row) {
    expect("{\"requests\":{\"count\":1000000,\"bytes\":64,\"seconds\":3.25,"
           "\"requests_s\":307692.0,\"ps_memory_start\":10485760,"
           "\"ps_memory_end\":null}}",
           (const char *const[]){
               "1000000 pushes of 64 B in 3.2 s: 308k/s, ps memory at the "
               "start 10.00 MB, ps memory at the end: not on this machine",
               NULL});
}
