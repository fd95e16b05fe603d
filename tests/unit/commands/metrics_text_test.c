/* SPDX-License-Identifier: Apache-2.0 */
#include "commands/metrics_text.h"

#include "core/base/time.h"
#include "tests/lib/assert_fails.h"
#include "tests/lib/test.h"

#include <math.h>
#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct metrics_process process = {1, 2, NAN};

static void add(struct health *health, enum metric metric, int64_t rank,
                double value) {
    struct health_report *report = health_begin(health, TIME_S);
    assert_non_null(report);
    health_add_sample(report, METRIC_TRAIN_LOSS, HEALTH_NONE, 0.25);
    health_add_sample(report, metric, rank, value);
    health_end(health);
}

/* A process with two roles, of which the second has no index. */
TEST(a_metric_has_one_heading_and_a_sample_of_each_role) {
    struct health *healths[] = {health_open("chief", 0),
                                health_open("worker", HEALTH_NONE)};
    add(healths[0], METRIC_STEPS, HEALTH_NONE, 1e15);
    add(healths[1], METRIC_STEPS, HEALTH_NONE, 7);
    char *text = metrics_text(healths, 2, &process);
    assert_string_equal(
        strstr(text, "# HELP capstan_steps_total"),
        textf("# HELP capstan_steps_total %s\n"
              "# TYPE capstan_steps_total counter\n"
              "capstan_steps_total{role=\"chief\",index=\"0\"} "
              "1000000000000000\n"
              "capstan_steps_total{role=\"worker\"} 7\n"
              "# HELP capstan_sent_bytes_total %s\n"
              "# TYPE capstan_sent_bytes_total counter\n"
              "capstan_sent_bytes_total{role=\"chief\",index=\"0\"} 1\n"
              "# HELP capstan_received_bytes_total %s\n"
              "# TYPE capstan_received_bytes_total counter\n"
              "capstan_received_bytes_total{role=\"chief\",index=\"0\"} 2\n",
              metric_rows[METRIC_STEPS].help, metric_rows[METRIC_SENT].help,
              metric_rows[METRIC_RECEIVED].help));
    free(text);
    health_close(&healths[0]);
    health_close(&healths[1]);
}

TEST(a_metric_by_rank_has_its_rank_and_infinity_its_word) {
    struct health *health = health_open("chief", HEALTH_NONE);
    add(health, METRIC_TRAINER_SILENCE, 12, INFINITY);
    char *text = metrics_text(&health, 1, &process);
    assert_contains(text, "\ncapstan_trainer_silence_seconds{role=\"chief\","
                          "rank=\"12\"} +Inf\n");
    assert_contains(text, "\ncapstan_train_loss{role=\"chief\"} 0.25\n");
    assert_null(strstr(text, "capstan_memory_bytes"));
    free(text);
    health_close(&health);
}

TEST(a_process_tells_its_memory) {
    struct metrics_process now = metrics_process_now();
    assert_true(now.memory > 1e5 && now.memory < 1e13);
    assert_true(now.sent >= 0 && now.received >= 0);
}

/* Labels and help are printed as they are. */
TEST(no_help_has_to_be_escaped) {
    for (enum metric m = 0; m < METRIC_COUNT; m++)
        assert_null(strpbrk(metric_rows[m].help, "\\\n"));
}

static bool is_metric(const char *name, size_t length) {
    char known[64];
    for (enum metric m = 0; m < METRIC_COUNT; m++) {
        metric_prometheus_name(m, known, sizeof known);
        if (strlen(known) == length && !strncmp(known, name, length))
            return true;
    }
    return false;
}

/* How many names of metrics PATH has, each of which there has to be. */
static unsigned count_names(const char *path) {
    static char text[1 << 16];
    regmatch_t found;
    regex_t pattern;
    unsigned count = 0;
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    assert_int_equal(regcomp(&pattern, "capstan_[a-z_]+", REG_EXTENDED), 0);
    for (const char *at = text; !regexec(&pattern, at, 1, &found, 0);
         at += found.rm_eo, count++) {
        size_t length = (size_t)(found.rm_eo - found.rm_so);
        if (!is_metric(at + found.rm_so, length))
            fail_msg("%s: %.*s is no metric", path, (int)length,
                     at + found.rm_so);
    }
    regfree(&pattern);
    return count;
}

TEST(alerts_and_board_name_metrics_that_there_are) {
    assert_in_range(count_names("deploy/prometheus/alerts.yml"), 15, 100);
    assert_in_range(count_names("deploy/prometheus/capstan.json"), 30, 200);
}
