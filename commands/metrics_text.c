/* SPDX-License-Identifier: Apache-2.0 */
/* Labels and help are literals without a character that has to be escaped. */
#include "commands/metrics_text.h"

#include "core/base/metric.h"
#include "core/net/link/link.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* /proc/self/statm: pages mapped, pages resident. */
static double resident_memory(void) {
    unsigned long long pages = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    bool found = file && fscanf(file, "%*u %llu", &pages) == 1;
    if (file)
        fclose(file);
    return found ? (double)pages * (double)sysconf(_SC_PAGESIZE) : NAN;
}

struct metrics_process metrics_process_now(void) {
    struct link_traffic traffic = link_traffic();
    return (struct metrics_process){
        .sent = (double)traffic.sent,
        .received = (double)traffic.received,
        .memory = resident_memory(),
    };
}

/* A page in the making: the heading of a metric stands before its first
 * sample. */
struct metrics_page {
    FILE *out;
    char name[64];
    const struct metric_row *row;
    bool has_heading;
};

static void metrics_text_heading(struct metrics_page *page) {
    if (page->has_heading)
        return;
    fprintf(page->out, "# HELP %s %s\n# TYPE %s %s\n", page->name,
            page->row->help, page->name,
            page->row->kind == METRIC_COUNTER ? "counter" : "gauge");
    page->has_heading = true;
}

static void metrics_text_value(FILE *out, double value) {
    if (isnan(value))
        fprintf(out, " NaN\n");
    else if (isinf(value))
        fprintf(out, " %cInf\n", value > 0 ? '+' : '-');
    else
        fprintf(out, " %.17g\n", value);
}

/* A sample of REPORT's role; RANK: of a trainer that it tells of. */
static void metrics_text_sample(struct metrics_page *page,
                                const struct health_report *report,
                                int64_t rank, double value) {
    metrics_text_heading(page);
    fprintf(page->out, "%s{role=\"%s\"", page->name, report->role);
    if (report->index >= 0)
        fprintf(page->out, ",index=\"%d\"", report->index);
    if (rank >= 0)
        fprintf(page->out, ",rank=\"%lld\"", (long long)rank);
    fputc('}', page->out);
    metrics_text_value(page->out, value);
}

static void print_role(struct metrics_page *page, enum metric metric,
                       struct health *health) {
    const struct health_report *report = health_lock(health);
    for (uint32_t s = 0; s < report->num_samples; s++)
        if (report->samples[s].metric == metric)
            metrics_text_sample(page, report, report->samples[s].rank,
                                report->samples[s].value);
    health_unlock(health);
}

static void print_process(struct metrics_page *page, enum metric metric,
                          struct health *health,
                          const struct metrics_process *process) {
    double value = metric == METRIC_SENT       ? process->sent
                   : metric == METRIC_RECEIVED ? process->received
                   : metric == METRIC_MEMORY   ? process->memory
                                               : NAN;
    if (isnan(value))
        return;
    const struct health_report *report = health_lock(health);
    metrics_text_sample(page, report, HEALTH_NONE, value);
    health_unlock(health);
}

char *metrics_text(struct health *const *healths, unsigned count,
                   const struct metrics_process *process) {
    char *text = NULL;
    size_t size = 0;
    struct metrics_page page = {.out = open_memstream(&text, &size)};
    if (!page.out)
        return NULL;
    for (enum metric metric = 0; metric < METRIC_COUNT; metric++) {
        page.row = &metric_rows[metric];
        page.has_heading = false;
        metric_prometheus_name(metric, page.name, sizeof page.name);
        for (unsigned i = 0; i < count; i++)
            print_role(&page, metric, healths[i]);
        print_process(&page, metric, healths[0], process);
    }
    if (!fclose(page.out))
        return text;
    free(text);
    return NULL;
}
