/* SPDX-License-Identifier: Apache-2.0 */
/* `capstan bench` on this machine, and below its table what the project aims at
 * on one of two cores.
 * Usage: vector_bench [flags of capstan bench] */
#include "commands/measure/bench_table.h"

#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KIB(n) (1024.0 * (n))

/* A number at KEY of OBJECT; NAN when there is none. */
static double number(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

/* A number of the size of BYTES, by the path of its keys; NAN when that size
 * was not measured. */
static double of_size(const json_t *result, double bytes, const char *kind,
                      const char *mover, const char *key) {
    const json_t *sizes = json_object_get(result, "sizes"), *size;
    size_t i;
    json_array_foreach(sizes, i, size) {
        const json_t *figures = json_object_get(size, kind);
        if (number(size, "bytes") == bytes)
            return number(mover ? json_object_get(figures, mover) : figures,
                          key);
    }
    return NAN;
}

/* Nothing when it was not measured. */
static void put_aim(const char *what, double value, const char *aim,
                    bool reached) {
    if (!isnan(value))
        printf("  %-38s %10.4g   %-20s %s\n", what, value, aim,
               reached ? "reached" : "missed");
}

static void put_aims(const json_t *result) {
    const char *lane = json_string_value(json_object_get(result, "lane"));
    bool tcp = lane && !strcmp(lane, "tcp");
    double alone = of_size(result, 64, "push", NULL, "of_zmq");
    double shared =
        number(json_object_get(json_object_get(result, "batched"), "push"),
               "requests_s");
    double wait = of_size(result, KIB(4), "push_pull", "lane", "p50_us");
    double mib = of_size(result, KIB(1024), "push", "lane", "gb_s");
    double share = of_size(result, KIB(1024), "push", NULL, "of_socket");
    double most = of_size(result, KIB(65536), "push", "lane", "gb_s");
    printf("\naims of the project:\n");
    put_aim("64 B push, of bare libzmq", alone, "0.65 or more", alone >= 0.65);
    put_aim("64 B push, sharing messages, a second", shared, "2M or more",
            shared >= 2e6);
    put_aim("4 KB push-pull, p50 us", wait,
            tcp ? "85 or less by tcp" : "15 or less by shm",
            wait <= (tcp ? 85 : 15));
    put_aim(tcp ? "1 MB push, of a plain socket" : "1 MB push, GB/s",
            tcp ? share : mib, tcp ? "0.9 or more by tcp" : "10 or more by shm",
            tcp ? share >= 0.9 : mib >= 10);
    put_aim("64 MB push, of 1 MB's GB/s", most / mib, "0.85 or more",
            most / mib >= 0.85);
}

/* The object that the command prints; NULL, and the command has said why. */
static json_t *measure(int argc, char **argv) {
    const char *program = getenv("CAPSTAN");
    char command[4096];
    int used = snprintf(command, sizeof command, "%s bench --json",
                        program ? program : "build/capstan");
    for (int i = 1; i < argc && used < (int)sizeof command; i++)
        used += snprintf(command + used, sizeof command - (size_t)used, " %s",
                         argv[i]);
    if (used >= (int)sizeof command) {
        fprintf(stderr, "vector_bench: too many flags\n");
        return NULL;
    }
    FILE *output = popen(command, "r");
    json_t *result = output ? json_loadf(output, 0, NULL) : NULL;
    if (output && pclose(output)) {
        json_decref(result);
        result = NULL;
    }
    return result;
}

int main(int argc, char **argv) {
    json_t *result = measure(argc, argv);
    char *text = result ? json_dumps(result, JSON_COMPACT) : NULL;
    if (text) {
        bench_table_print(stdout, text);
        put_aims(result);
    }
    free(text);
    json_decref(result);
    return !text;
}
