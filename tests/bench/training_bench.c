/* SPDX-License-Identifier: Apache-2.0 */
/* Whole training runs on this machine, 1 ps and 2 workers, over TCP on loopback
 * and over shared memory, beside what other systems reach on such a machine
 * with the same model. The cases are interleaved; medians.
 * Usage: training_bench [repeats] [seconds a checkpoint's run] */
#include "commands/measure/bench_iteration.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CASES = 8, CHECKPOINT_CASES = 2, MAXIMUM = 31 };

static const char data[] =
    "{\"model\":{\"type\":\"mlp\",\"layers\":[784,512,512,10]},"
    "\"data\":{\"format\":\"idx\",\"dir\":\"/usr/share/datasets/fashion-mnist\","
    "\"train\":[\"train-images-idx3-ubyte.gz\",\"train-labels-idx1-ubyte.gz\"]},"
    "\"optimizer\":{\"type\":\"SGD\",\"params\":{\"lr\":0.05}},"
    "\"train_micro_batch_size_per_gpu\":%d,\"steps\":%d,"
    "\"strategy\":{\"type\":\"ps\",\"staleness\":%s}%s}\n";

struct run_case {
    const char *name, *lane, *staleness;
    int batch, aim; /* steps a second */
    /* TensorFlow 2.21's parameter server strategy with 1 ps and 2 workers;
     * PyTorch 2.15 DDP over Gloo with 2 ranks, 0: no such mode. Measured on one
     * 2-core machine, loopback. */
    int tensorflow, ddp;
    int steps;
    double rates[MAXIMUM];
};

/* Steps a second of one run, or -1 with what the run said. */
static double run_once(const char *folder, const struct run_case *one,
                       const char *more) {
    const char *program = getenv("CAPSTAN");
    char path[512], command[2048];
    snprintf(path, sizeof path, "%s/job.json", folder);
    FILE *job = fopen(path, "w");
    if (!job)
        return -1;
    fprintf(job, data, one->batch, one->steps, one->staleness, more);
    fclose(job);
    snprintf(command, sizeof command,
             "%s local --ps 1 --workers 2 --lane %s %s --json 2>%s/log || "
             "cat %s/log >&2",
             program ? program : "build/capstan", one->lane, path, folder,
             folder);
    FILE *output = popen(command, "r");
    json_t *object = output ? json_loadf(output, 0, NULL) : NULL;
    if (output)
        pclose(output);
    double rate =
        json_number_value(json_object_get(object, "steps_per_second"));
    json_decref(object);
    return object && rate > 0 ? rate : -1;
}

static bool measure(const char *folder, struct run_case *cases, int count,
                    const char *const *more, int repeats) {
    for (int i = 0; i < repeats; i++)
        for (int c = 0; c < count; c++) {
            cases[c].rates[i] =
                run_once(folder, &cases[c], more ? more[c] : "");
            if (cases[c].rates[i] < 0)
                return false;
        }
    return true;
}

static void print_table(struct run_case *cases, int repeats) {
    printf("%-24s %-5s %9s %9s %9s %5s %12s %6s\n", "training, steps/s", "lane",
           "capstan", "min", "max", "aim", "TensorFlow", "DDP");
    for (int c = 0; c < CASES; c++) {
        double middle = bench_iteration_median(cases[c].rates, (size_t)repeats);
        printf("%-24s %-5s %9.1f %9.1f %9.1f %5d %12d %6d\n", cases[c].name,
               cases[c].lane, middle, cases[c].rates[0],
               cases[c].rates[repeats - 1], cases[c].aim, cases[c].tensorflow,
               cases[c].ddp);
    }
}

/* A run with a checkpoint each 30 s beside one with none. */
static bool checkpoints(const char *folder, int seconds, double rate) {
    char with[512];
    struct run_case cases[CHECKPOINT_CASES] = {
        {"no checkpoint",
         "auto",
         "0",
         256,
         0,
         0,
         0,
         (int)(rate * seconds),
         {0}},
        {"one each 30 s",
         "auto",
         "0",
         256,
         0,
         0,
         0,
         (int)(rate * seconds),
         {0}},
    };
    snprintf(with, sizeof with,
             ",\"checkpoint\":{\"dir\":\"%s/checkpoint\",\"resume\":\"never\","
             "\"every_seconds\":30}",
             folder);
    const char *more[CHECKPOINT_CASES] = {"", with};
    if (!measure(folder, cases, CHECKPOINT_CASES, more, 3))
        return false;
    double none = bench_iteration_median(cases[0].rates, 3),
           some = bench_iteration_median(cases[1].rates, 3);
    printf("checkpoints: %.1f steps/s with none, %.1f with one each 30 s: "
           "%.1f %% slower (limit 5 %%)\n",
           none, some, 100 * (1 - some / none));
    return true;
}

int main(int argc, char **argv) {
    int repeats = argc > 1 ? atoi(argv[1]) : 5;
    int seconds = argc > 2 ? atoi(argv[2]) : 40;
    char folder[] = "/tmp/capstan-bench-XXXXXX", command[256];
    struct run_case cases[CASES] = {
        {"batch 32 asynchronous", "tcp", "\"inf\"", 32, 450, 134, 0, 2000, {0}},
        {"batch 32 asynchronous",
         "auto",
         "\"inf\"",
         32,
         750,
         134,
         0,
         3000,
         {0}},
        {"batch 32 synchronous", "tcp", "0", 32, 220, 68, 111, 1000, {0}},
        {"batch 32 synchronous", "auto", "0", 32, 400, 68, 111, 1500, {0}},
        {"batch 256 asynchronous",
         "tcp",
         "\"inf\"",
         256,
         220,
         117,
         0,
         800,
         {0}},
        {"batch 256 asynchronous",
         "auto",
         "\"inf\"",
         256,
         280,
         117,
         0,
         800,
         {0}},
        {"batch 256 synchronous", "tcp", "0", 256, 100, 50, 51, 400, {0}},
        {"batch 256 synchronous", "auto", "0", 256, 130, 50, 51, 400, {0}},
    };
    if (repeats < 1 || repeats > MAXIMUM || seconds < 1 || !mkdtemp(folder))
        return 2;
    bool measured = measure(folder, cases, CASES, NULL, repeats);
    if (measured) {
        print_table(cases, repeats);
        measured =
            checkpoints(folder, seconds, cases[CASES - 1].rates[repeats / 2]);
    }
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command) || !measured;
}
