/* SPDX-License-Identifier: Apache-2.0 */
/* Four hosts at 1 Gbit/s each way, or less, a process on each: steps a second
 * beside what the network allows, and beside what the formulas of `capstan
 * compare` predict from the time that computing took. Hosts are network
 * namespaces, which need root. The cases are interleaved; medians; some two
 * minutes. Usage: net_bench [repeats] [steps] [Mbit/s]: slower links show what
 * the exchange alone loses, as the hosts share this machine's cores. */
#include "commands/measure/aggregate_runs.h"
#include "commands/measure/bench_iteration.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CASES = 7, MAXIMUM = 31, SAMPLES = 32 };

static const double LATENCY = 50e-6; /* seconds, as --latency-us has it */

static const char data[] =
    "{\"model\":{\"type\":\"mlp\",\"layers\":[784,512,512,10]},"
    "\"data\":{\"format\":\"idx\",\"dir\":\"/usr/share/datasets/fashion-mnist\","
    "\"train\":[\"train-images-idx3-ubyte.gz\",\"train-labels-idx1-ubyte.gz\"]},"
    "\"optimizer\":{\"type\":\"SGD\",\"params\":{\"lr\":0.05}},"
    "\"train_micro_batch_size_per_gpu\":%d,\"steps\":%d,"
    "\"strategy\":%s}\n";

#define SYNC "{\"type\":\"ps\",\"staleness\":0}"
#define ASYNC "{\"type\":\"ps\",\"staleness\":\"inf\"}"
#define RING "{\"type\":\"allreduce\"}"

struct net_case {
    const char *name, *strategy;
    enum cost_model_mode mode;
    int num_ps, num_workers;
    /* Per cent of the same bound: TensorFlow 2.21's parameter servers; of the
     * ring's own bound: PyTorch 2.15 DDP over Gloo. 0: not measured. */
    int tensorflow, ddp;
    double bound, rates[MAXIMUM];
    double busy;  /* share of this machine's processor time, the last run */
    json_t *runs; /* their objects */
};

/* Ticks of all processors since the start, and those of them that idled. */
static void read_ticks(double *all, double *idle) {
    double ticks[8] = {0};
    FILE *stat = fopen("/proc/stat", "r");
    *all = *idle = 0;
    if (stat && fscanf(stat, "cpu %lf %lf %lf %lf %lf %lf %lf %lf", &ticks[0],
                       &ticks[1], &ticks[2], &ticks[3], &ticks[4], &ticks[5],
                       &ticks[6], &ticks[7]) == 8) {
        for (int i = 0; i < 8; i++)
            *all += ticks[i];
        *idle = ticks[3] + ticks[4];
    }
    if (stat)
        fclose(stat);
}

/* False, and why is said, when there was no run. */
static bool run_once(const char *folder, struct net_case *one, int steps,
                     int mbits, double *rate) {
    char path[512], command[2048], line[4096] = "";
    snprintf(path, sizeof path, "%s/job.json", folder);
    FILE *job = fopen(path, "w");
    if (!job)
        return false;
    fprintf(job, data, SAMPLES, steps, one->strategy);
    fclose(job);
    snprintf(
        command, sizeof command,
        "tests/cluster/net/cluster.sh %d %d %dmbit %s %s --json --link-gbits %g",
        one->num_ps, one->num_workers, mbits, folder, path, mbits / 1e3);
    double before, idle_before, after, idle_after;
    read_ticks(&before, &idle_before);
    FILE *output = popen(command, "r");
    bool said = output && fgets(line, sizeof line, output);
    if (output)
        pclose(output);
    read_ticks(&after, &idle_after);
    one->busy = 1 - (idle_after - idle_before) / (after - before);
    json_t *object = said ? json_loads(line, 0, NULL) : NULL;
    if (!object) {
        printf("four hosts: %s", said ? line : "no run\n");
        return false;
    }
    *rate = json_number_value(json_object_get(object, "steps_per_second"));
    one->bound =
        json_number_value(json_object_get(object, "bound_steps_per_second"));
    json_array_append_new(one->runs, object);
    return *rate > 0 && one->bound > 0;
}

/* Steps a second by the formulas, with what the runs took to compute, read and
 * update; as the runs count them. */
static double predict(const struct net_case *one, int mbits) {
    struct aggregate_runs_case spec = {.mode = one->mode,
                                       .workers = (unsigned)one->num_workers,
                                       .ps = (unsigned)one->num_ps,
                                       .samples = SAMPLES,
                                       .link_gbits = mbits / 1e3,
                                       .latency = LATENCY};
    struct aggregate aggregate = aggregate_runs(&spec, one->runs);
    double examples = json_number_value(
        json_object_get(aggregate.object, "predicted_examples_per_second"));
    json_decref(aggregate.object);
    return examples / SAMPLES /
           (one->mode == COST_MODEL_PS_ASYNC ? 1 : one->num_workers);
}

static void print_share(int percent) {
    if (percent)
        printf(" %9d %%", percent);
    else
        printf(" %11s", "-");
}

static void print_table(struct net_case *cases, int repeats, int mbits) {
    char title[64];
    snprintf(title, sizeof title, "%d Mbit/s a host, steps/s", mbits);
    printf("%-26s %8s %7s %7s %7s %6s %6s %9s %6s %11s %11s\n", title,
           "capstan", "min", "max", "bound", "share", "cores", "predicted",
           "off", "TensorFlow", "DDP's ring");
    for (int c = 0; c < CASES; c++) {
        struct net_case *one = &cases[c];
        double middle = bench_iteration_median(one->rates, (size_t)repeats);
        double predicted = predict(one, mbits);
        printf("%-26s %8.1f %7.1f %7.1f %7.1f %4.0f %% %4.0f %% %9.1f %+4.0f "
               "%%",
               one->name, middle, one->rates[0], one->rates[repeats - 1],
               one->bound, 100 * middle / one->bound, 100 * one->busy,
               predicted, 100 * (predicted / middle - 1));
        print_share(one->tensorflow);
        print_share(one->ddp);
        printf("\n");
    }
}

int main(int argc, char **argv) {
    int repeats = argc > 1 ? atoi(argv[1]) : 3;
    int steps = argc > 2 ? atoi(argv[2]) : 120;
    int mbits = argc > 3 ? atoi(argv[3]) : 1000;
    char folder[] = "/tmp/capstan-bench-XXXXXX", command[256];
    struct net_case cases[CASES] = {
        {"2 ps, 2 workers, sync", SYNC, COST_MODEL_PS, 2, 2, .tensorflow = 26},
        {"1 ps, 3 workers, sync", SYNC, COST_MODEL_PS, 1, .num_workers = 3},
        {"3 ps, 1 worker, sync", SYNC, COST_MODEL_PS, 3, .num_workers = 1},
        {"2 ps, 2 workers, async", ASYNC, COST_MODEL_PS_ASYNC, 2,
         .num_workers = 2},
        {"1 ps, 3 workers, async", ASYNC, COST_MODEL_PS_ASYNC, 1,
         .num_workers = 3},
        {"3 ps, 1 worker, async", ASYNC, COST_MODEL_PS_ASYNC, 3,
         .num_workers = 1},
        {"4 ranks, all-reduce", RING, COST_MODEL_RING, 0, 4, .ddp = 86},
    };
    if (repeats < 1 || repeats > MAXIMUM || steps < 1 || mbits < 1 ||
        !mkdtemp(folder))
        return 2;
    bool measured = true;
    for (int c = 0; c < CASES; c++)
        cases[c].runs = json_array();
    for (int i = 0; i < repeats && measured; i++)
        for (int c = 0; c < CASES && measured; c++)
            measured =
                run_once(folder, &cases[c], steps, mbits, &cases[c].rates[i]);
    if (measured)
        print_table(cases, repeats, mbits);
    for (int c = 0; c < CASES; c++)
        json_decref(cases[c].runs);
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command) ? 1 : 0;
}
