#include "chief/summary.h"

#include "chief/measures.h"
#include "proto/base/time.h"
#include "tests/measures_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What the summary prints on standard output and says on standard error. */
static char *summary_of(struct measures_fixture *measured) {
    static char text[4096];
    FILE *kept = tmpfile();
    struct log log;
    assert_non_null(kept);
    fflush(stdout);
    int out = dup(STDOUT_FILENO), error = dup(STDERR_FILENO);
    dup2(fileno(kept), STDOUT_FILENO);
    dup2(fileno(kept), STDERR_FILENO);
    log_open(&log, "chief", -1);
    measured->run.log = &log;
    summary_tell(&measured->run, true);
    measured->run.log = NULL;
    dup2(out, STDOUT_FILENO);
    dup2(error, STDERR_FILENO);
    close(out);
    close(error);
    rewind(kept);
    text[fread(text, 1, sizeof text - 1, kept)] = 0;
    fclose(kept);
    return text;
}

/* An epoch had ended before it: that one's loss is not its own. */
static void a_resumed_run_within_an_epoch_has_the_loss_of_its_steps(
    void **state) {
    struct measures_fixture *measured = *state;
    measured->run.epochs_ended = 1;
    measures_fixture_beat(measured, 100, 150);
    char *said = summary_of(measured);
    if (!strstr(said, "\"train_loss\":1.5,"))
        fail_msg("%s", said);
    measured->run.epoch_loss = 1.25;
    said = summary_of(measured);
    if (!strstr(said, "\"train_loss\":1.25,"))
        fail_msg("%s", said);
}

static void expect_summary(struct measures_fixture *measured, const char *part,
                           bool there) {
    char *said = summary_of(measured);
    if (!strstr(said, part) == there)
        fail_msg("\"%s\" is%s in: %s", part, there ? " not" : "", said);
}

/* 10 steps in 5 seconds, of which TRAINERS have waited 2 for weights. */
static void waits(struct measures_fixture *measured, uint32_t trainers) {
    measured->run.roster.num_ranks = trainers;
    measures_fixture_beat(measured, 10, 10);
    measured->trainers[0].beat.wire_s = 2;
}

static void the_key_to_change_is_that_of_the_job(void **state) {
    struct measures_fixture *measured = *state;
    measured->job.batch_key = "train_batch_size";
    waits(measured, 2);
    expect_summary(measured,
                   "waiting for weights (wire, ps and other trainers), 40 %; "
                   "key: train_batch_size (larger), or strategy.staleness with "
                   "a smaller rate\n",
                   true);
    measured->job.staleness = JOB_STALENESS_INF;
    expect_summary(measured, "key: train_batch_size (larger)\n", true);
}

/* Nothing is on a wire, and there is nobody else to wait for. */
static void a_process_alone_is_told_of_its_own_ps(void **state) {
    struct measures_fixture *measured = *state;
    measured->run.ps_inside = "ps";
    measured->job.batch_key = "train_micro_batch_size_per_gpu";
    waits(measured, 1);
    expect_summary(measured,
                   "waiting for weights (the ps of this process), 40 %; key: "
                   "train_micro_batch_size_per_gpu (larger)\n",
                   true);
}

static void a_silent_peer_is_named_and_no_key(void **state) {
    struct measures_fixture *measured = *state;
    measured->job.batch_key = "train_batch_size";
    waits(measured, 2);
    measured->run.lost_time = (struct run_lost){1.2, 1.2, "worker 1"};
    expect_summary(measured,
                   "largest cause of lost time: waiting for worker 1, which "
                   "was silent for 1.2 s, 24 %\n",
                   true);
    measured->run.lost_time.seconds = 0.9;
    expect_summary(measured, "other trainers), 22 %; key:", true);
}

static void what_failed_is_no_cause_of_lost_time(void **state) {
    struct measures_fixture *measured = *state;
    measured->job.batch_key = "train_batch_size";
    waits(measured, 2);
    measured->run.status = STATUS_RETRY;
    expect_summary(measured, "; not complete", true);
    expect_summary(measured, "lost time", false);
    measured->run.status = measured->run.interrupted = STATUS_TERMINATED;
    expect_summary(measured, "key: train_batch_size (larger)", true);
}

#define MEASURED(f)                                                            \
    cmocka_unit_test_setup_teardown(f, measures_fixture_setup,                 \
                                    measures_fixture_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        MEASURED(a_resumed_run_within_an_epoch_has_the_loss_of_its_steps),
        MEASURED(the_key_to_change_is_that_of_the_job),
        MEASURED(a_process_alone_is_told_of_its_own_ps),
        MEASURED(a_silent_peer_is_named_and_no_key),
        MEASURED(what_failed_is_no_cause_of_lost_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
