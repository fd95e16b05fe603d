/* SPDX-License-Identifier: Apache-2.0 */
/* Whole training runs on this machine, by ps and workers, over loopback and (as
 * root) over network namespaces of a gigabit, beside the simulated ones: the
 * costs of a message, a byte and an update are measured alone, between the
 * runs, and then scaled by one number so that the first case is met, and by
 * another for the first over links, whose bytes pass more of the kernel; the
 * others are predicted. Run from the root of the tree. Usage: scaling_bench
 * [repeats] [seconds a run] [batch] [host | net: only those cases, and the
 * first] [Mbit/s] */
#include "commands/measure/bench_iteration.h"
#include "proto/job/job.h"
#include "proto/messages/message.h"
#include "simulator/calibration.h"
#include "simulator/simulator.h"
#include "simulator/simulator_report.h"
#include "worker/models/model.h"
#include "worker/train/profile.h"

#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CASES = 14, MAXIMUM = 31, MAX_PARAMETERS = 2 * JOB_MAX_WIDTHS };

static const double LATENCY = 5e-5;

static const char data[] =
    "{\"model\":{\"type\":\"mlp\",\"layers\":[784,512,512,10]},"
    "\"data\":{\"format\":\"idx\",\"dir\":\"/usr/share/datasets/fashion-mnist\","
    "\"train\":[\"train-images-idx3-ubyte.gz\",\"train-labels-idx1-ubyte.gz\"]},"
    "\"optimizer\":{\"type\":\"SGD\",\"params\":{\"lr\":0.05}},"
    "\"train_micro_batch_size_per_gpu\":%d,\"steps\":%d}\n";

struct run_case {
    int ps, workers;
    bool asynchronous, net; /* a host each, instead of one for all */
    double rates[MAXIMUM], measured, simulated;
};

/* What is measured alone: doubles throughout. */
struct alone {
    double forward[MAX_PARAMETERS], backward[MAX_PARAMETERS],
        parallel_efficiency;
    struct simulator_costs costs;
};

enum { AMOUNTS = sizeof(struct alone) / sizeof(double) };

struct bench {
    char folder[64], path[128];
    struct job *job;
    struct layout *layout;
    struct alone looks[MAXIMUM], alone; /* one a repeat, and their medians */
    int batch, link_mbits;
    const char *only; /* "host", "net", or NULL */
};

static bool write_job(const struct bench *bench, int steps) {
    FILE *job = fopen(bench->path, "w");
    if (!job)
        return false;
    fprintf(job, data, bench->batch, steps);
    return !fclose(job);
}

static void write_command(const struct bench *bench, const struct run_case *one,
                          char *command, size_t size) {
    const char *program = getenv("CAPSTAN");
    char start[512];
    if (one->net)
        snprintf(start, sizeof start,
                 "tests/cluster/net/cluster.sh %d %d %dmbit %s", one->ps,
                 one->workers, bench->link_mbits, bench->folder);
    else
        snprintf(start, sizeof start,
                 "%s local --lane tcp --ps %d --workers %d",
                 program ? program : "build/capstan", one->ps, one->workers);
    snprintf(command, size,
             "%s %s --set strategy.staleness=%s --json 2>%s/log || "
             "cat %s/log >&2",
             start, bench->path, one->asynchronous ? "inf" : "0", bench->folder,
             bench->folder);
}

/* Steps a second of one run; 0 when it is skipped, -1 with what it said. */
static double run_once(const struct bench *bench, const struct run_case *one) {
    char command[1024], text[4096] = "";
    write_command(bench, one, command, sizeof command);
    FILE *output = popen(command, "r");
    size_t length = output ? fread(text, 1, sizeof text - 1, output) : 0;
    if (output)
        pclose(output);
    text[length] = '\0';
    if (one->net && !strncmp(text, "skip", 4))
        return 0;
    json_t *object = json_loads(text, 0, NULL);
    double rate =
        json_number_value(json_object_get(object, "steps_per_second"));
    json_decref(object);
    return rate > 0 ? rate : -1;
}

static bool is_wanted(const struct bench *bench, const struct run_case *one) {
    return !bench->only || !strcmp(bench->only, one->net ? "net" : "host");
}

static enum status look_alone(const struct bench *bench, struct alone *look,
                              struct failure *why) {
    struct profile profile = {look->forward, look->backward, 1};
    enum status status = profile_measure(&profile, bench->job, 2, 1, why);
    look->parallel_efficiency = profile.parallel_efficiency;
    return status ? status
                  : calibration_measure(&look->costs, &bench->job->optimizer, 1,
                                        why);
}

static void take_medians(struct bench *bench, int repeats) {
    double *amounts = (double *)&bench->alone;
    for (int a = 0; a < AMOUNTS; a++) {
        double values[MAXIMUM];
        for (int i = 0; i < repeats; i++)
            values[i] = ((const double *)&bench->looks[i])[a];
        amounts[a] = bench_iteration_median(values, (size_t)repeats);
    }
}

static bool measure(struct bench *bench, struct run_case *cases, int repeats,
                    double seconds, struct failure *why) {
    for (int i = 0; i < repeats; i++) {
        if (look_alone(bench, &bench->looks[i], why))
            return false;
        for (int c = 0; c < CASES; c++) {
            if (c && !is_wanted(bench, &cases[c]))
                continue;
            double guess = cases[c].net ? 0.1 * bench->link_mbits : 400;
            double expected = i ? cases[c].rates[0] : guess / cases[c].workers;
            int steps = 20 + (int)(seconds * expected);
            if (!write_job(bench, steps))
                return false;
            cases[c].rates[i] = run_once(bench, &cases[c]);
            if (cases[c].rates[i] < 0)
                return false;
        }
    }
    take_medians(bench, repeats);
    for (int c = 0; c < CASES; c++)
        cases[c].measured =
            bench_iteration_median(cases[c].rates, (size_t)repeats);
    return true;
}

static enum status prepare(struct bench *bench, struct failure *why) {
    struct job_source source = {.models = &model_schemas, .path = bench->path};
    enum status status = job_load(&bench->job, &source, NULL, why);
    if (!status)
        status = job_solve_batch(bench->job, 1, why);
    return status ? status
                  : model_layout(&bench->layout, &bench->job->model, NULL, why);
}

/* Steps a second with costs SCALE times those measured alone. */
static double simulate(const struct bench *bench, const struct run_case *one,
                       double scale) {
    const struct simulator_costs *costs = &bench->alone.costs;
    struct simulator_config config = {
        .num_ps = (uint32_t)one->ps,
        .num_workers = (uint32_t)one->workers,
        .layout = bench->layout,
        .forward = bench->alone.forward,
        .backward = bench->alone.backward,
        .costs = {.step = 0,
                  .message = scale * costs->message,
                  .idle_wakeup = scale * costs->idle_wakeup,
                  .busy_wakeup = scale * costs->busy_wakeup,
                  .send_byte = scale * costs->send_byte,
                  .receive_byte = scale * costs->receive_byte,
                  .copy_byte = scale * costs->copy_byte,
                  .update_byte = scale * costs->update_byte,
                  .gradient_byte = scale * costs->gradient_byte},
        .staleness = one->asynchronous ? SIMULATOR_ASYNCHRONOUS : 0,
        .colocation =
            one->net ? SIMULATOR_COLOCATE_NONE : SIMULATOR_COLOCATE_ALL,
        .link_rate =
            one->net ? simulator_report_link_rate(1e-3 * bench->link_mbits) : 0,
        .latency = one->net ? LATENCY : 0,
        .share_cores = true,
        .group_bytes =
            message_group_bytes(one->net ? 1e-3 * bench->link_mbits : 0),
        .cores = (uint32_t)sysconf(_SC_NPROCESSORS_ONLN),
        .parallel_efficiency = bench->alone.parallel_efficiency,
        .jitter = 0.05,
        .seed = 1,
        .warmup_steps = 5,
        .rounds = 100,
    };
    struct simulator_result result;
    struct failure why;
    if (simulator_run(&config, &result, &why)) {
        fprintf(stderr, "%s\n", why.text);
        return NAN;
    }
    return result.rate;
}

/* The scale at which CASE is met, by halving: more cost is never faster. */
static double calibrate(const struct bench *bench, const struct run_case *one) {
    double low = 0, high = 64;
    for (int i = 0; i < 40; i++) {
        double middle = (low + high) / 2;
        if (simulate(bench, one, middle) > one->measured)
            low = middle;
        else
            high = middle;
    }
    return (low + high) / 2;
}

static void print_case(const struct run_case *one, double simulated,
                       int repeats, double fitted) {
    char note[32] = "";
    if (fitted > 0)
        snprintf(note, sizeof note, "  (fitted: costs x %.2f)", fitted);
    printf("%-9s %d ps %d worker%s %-12s %8.1f %6.1f %6.1f %10.1f %+10.1f "
           "%%%s\n",
           one->net ? "links" : "one host", one->ps, one->workers,
           one->workers > 1 ? "s" : " ",
           one->asynchronous ? "asynchronous" : "synchronous", one->measured,
           one->rates[0], one->rates[repeats - 1], simulated,
           100 * (simulated / one->measured - 1), note);
}

static void print_table(const struct bench *bench, const struct run_case *cases,
                        int repeats) {
    double scale = 1;
    printf("scaling, steps/s                    measured    min    max  "
           "simulated  difference  (links of %d Mbit/s)\n",
           bench->link_mbits);
    for (int c = 0; c < CASES; c++) {
        const struct run_case *one = &cases[c];
        bool first = !c || (one->net && !cases[c - 1].net);
        if (!(one->measured > 0))
            continue;
        if (first)
            scale = calibrate(bench, one);
        print_case(one, simulate(bench, one, scale), repeats,
                   first ? scale : 0);
    }
}

static void print_costs(const struct bench *bench) {
    const struct simulator_costs *costs = &bench->alone.costs;
    double computing = 0;
    for (uint32_t p = 0; p < bench->layout->num_parameters; p++)
        computing += bench->alone.forward[p] + bench->alone.backward[p];
    printf(
        "measured alone: computing %.3f ms a step (%.2f of the speed with "
        "all cores busy), message %.1f us in each thread, %.1f more in one "
        "that slept (%.1f where all cores are busy), byte %.3f ns sent or received, %.3f copied, %.3f updated, %.3f a gradient\n",
        1e3 * computing, bench->alone.parallel_efficiency, 1e6 * costs->message,
        1e6 * costs->idle_wakeup, 1e6 * costs->busy_wakeup,
        1e9 * costs->send_byte, 1e9 * costs->copy_byte,
        1e9 * costs->update_byte, 1e9 * costs->gradient_byte);
}

int main(int argc, char **argv) {
    int repeats = argc > 1 ? atoi(argv[1]) : 5;
    double seconds = argc > 2 ? atof(argv[2]) : 3;
    struct bench bench = {.folder = "/tmp/capstan-bench-XXXXXX",
                          .batch = argc > 3 ? atoi(argv[3]) : 32,
                          .only = argc > 4 ? argv[4] : NULL,
                          .link_mbits = argc > 5 ? atoi(argv[5]) : 1000};
    struct run_case cases[CASES] = {
        {.ps = 1, .workers = 2}, /* the fitted one */
        {.ps = 1, .workers = 1},
        {.ps = 2, .workers = 2},
        {.ps = 1, .workers = 4},
        {.ps = 2, .workers = 4},
        {.ps = 4, .workers = 4},
        {.ps = 1, .workers = 8},
        {.ps = 8, .workers = 8},
        {.ps = 1, .workers = 2, .asynchronous = true},
        {.ps = 2, .workers = 2, .net = true}, /* fitted too */
        {.ps = 1, .workers = 3, .net = true},
        {.ps = 3, .workers = 1, .net = true},
        {.ps = 4, .workers = 4, .net = true},
        {.ps = 2, .workers = 2, .asynchronous = true, .net = true},
    };
    char command[256];
    struct failure why = {0};
    if (repeats < 1 || repeats > MAXIMUM || !(seconds > 0) || bench.batch < 1 ||
        !mkdtemp(bench.folder))
        return 2;
    snprintf(bench.path, sizeof bench.path, "%s/job.json", bench.folder);
    bool measured = write_job(&bench, 1) && !prepare(&bench, &why) &&
                    measure(&bench, cases, repeats, seconds, &why);
    if (measured) {
        print_costs(&bench);
        print_table(&bench, cases, repeats);
    } else if (why.text[0]) {
        fprintf(stderr, "%s\n", why.text);
    }
    layout_free(&bench.layout);
    job_free(&bench.job);
    snprintf(command, sizeof command, "rm -rf %s", bench.folder);
    return system(command) || !measured;
}
