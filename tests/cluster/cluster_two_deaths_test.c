/* SPDX-License-Identifier: Apache-2.0 */
/* Two processes of `capstan local` are killed, the second one while the run
 * recovers from the loss of the first: the run ends with the weights of one in
 * which nothing died. Who it is, and when, is drawn from a fixed seed
 * (SOAK_SEED: from another); SOAK_COUNT=10 draws all 50 pairs. */
#define STATE struct cluster_run *run

#include "core/base/time.h"
#include "tests/cluster/cluster_fixture.h"
#include "tests/lib/test.h"

#include <signal.h>
#include <unistd.h>

enum {
    LONG = 4 * CLUSTER_RUN_DEADLINE,
    MOST_SLOTS = 5,
    PAIRS = 5,
    STEPS = 6000
};

#define JOB                                                                    \
    "{\"steps\": 6000, \"steps_per_epoch\": 30, \"steps_per_print\": 10,"      \
    " \"chief\": \"%s\", \"checkpoint\": {\"every_steps\": 250,"               \
    " \"keep\": 100}}"

/* Whose process dies first: one of COUNT slots from FIRST on, where slot 0 is
 * the chief's, then come those of ps, then those of workers. RECOVERED is said
 * once the run has recovered. */
static const struct death_form {
    const char *name, *chief, *recovered;
    unsigned num_ps, num_workers, first, count;
} forms[] = {
    {"a ps", "coordinate", "the run goes on after step ", 2, 2, 1, 2},
    {"a worker", "coordinate", " joined from ", 2, 2, 3, 2},
    {"a chief that coordinates", "coordinate", "which has adopted the run", 2,
     2, 0, 1},
    {"a chief that trains", "train", "the run goes on after step ", 2, 2, 0, 1},
    {"a rank of all-reduce", "coordinate", "the run goes on after step ", 0, 3,
     1, 3},
};
enum { FORMS = sizeof forms / sizeof *forms };

/* When the second one dies. */
enum death_moment {
    AT_ONCE,       /* with the first, or as soon as that is started again */
    STARTED_AGAIN, /* up to 0.3 s after the first is: its run goes back */
    RECOVERED,     /* as soon as the run goes on */
    SAVES,         /* about the next checkpoint */
    ENDS,          /* after the last one */
    MOMENTS
};
static const char *const moment_names[MOMENTS] = {
    "at once", "once it is started again", "once the run goes on",
    "about a checkpoint", "at the end"};
static const double most_seconds[MOMENTS] = {0.01, 0.3, 0.05, 0.03, 0.01};

struct two_deaths {
    const struct death_form *form;
    unsigned first, second, checkpoints; /* slots; before the first death */
    enum death_moment moment;
    double before, after; /* seconds */
};

FIXTURE(cluster_run_setup_in_memory, cluster_run_teardown);

static unsigned count_slots(const struct death_form *form) {
    return 1 + form->num_ps + form->num_workers;
}

static double draw_seconds(uint64_t *seed, double most) {
    return most * (double)cluster_fixture_random(seed, 1001) / 1000;
}

static struct two_deaths draw_two_deaths(unsigned number, uint64_t *seed) {
    const struct death_form *form = &forms[number % FORMS];
    struct two_deaths two = {.form = form};
    two.first =
        form->first + (unsigned)cluster_fixture_random(seed, form->count);
    two.second = (unsigned)cluster_fixture_random(seed, count_slots(form));
    two.moment = (enum death_moment)cluster_fixture_random(seed, MOMENTS);
    two.checkpoints = 1 + (unsigned)cluster_fixture_random(seed, 8);
    two.before = draw_seconds(seed, 0.03);
    two.after = draw_seconds(seed, most_seconds[two.moment]);
    return two;
}

static void slot_text(const struct death_form *form, unsigned slot,
                      char text[32]) {
    if (!slot)
        snprintf(text, 32, "chief");
    else if (slot <= form->num_ps)
        snprintf(text, 32, "ps %u", slot - 1);
    else
        snprintf(text, 32, "worker %u", slot - 1 - form->num_ps);
}

/* A run of FORM with checkpoints in NAME. */
static struct cluster_process *start_form(struct cluster_run *run,
                                          const struct death_form *form,
                                          const char *name) {
    const char *ps = textf("%u", form->num_ps);
    const char *workers = textf("%u", form->num_workers);
    cluster_run_job(run, textf(JOB, form->chief));
    return cluster_run_start(run, name,
                             WORDS("local", "job.json", "--ps", ps, "--workers",
                                   workers, "--json", "--set",
                                   textf("checkpoint.dir=%s", name)),
                             NULL);
}

static pid_t pid_in_line(const char *line) {
    const char *pid = strstr(line, ", pid ");
    assert_non_null(pid);
    return (pid_t)atoi(pid + strlen(", pid "));
}

/* By slot, of the processes of LOCAL, which join in any order. */
static void await_slots(const struct death_form *form,
                        struct cluster_process *local, pid_t *pids) {
    unsigned joined = 1, count = count_slots(form);
    pids[0] = pid_in_line(cluster_run_await_soon(local, "chief: host "));
    while (joined < count) { /* a chief's own trainer joins too */
        const char *line = cluster_run_await_soon(local, " joined from ");
        for (unsigned slot = 1; slot < count; slot++) {
            char text[32];
            slot_text(form, slot, text);
            if (!strstr(line, textf("chief: %s joined", text)))
                continue;
            pids[slot] = pid_in_line(line);
            joined++;
        }
    }
}

/* A child of LOCAL that is none of PIDS; 0: there is none. */
static pid_t other_child(const struct cluster_process *local, const pid_t *pids,
                         unsigned count) {
    int pid = cluster_run_pid(local), child;
    FILE *children = fopen(textf("/proc/%d/task/%d/children", pid, pid), "re");
    pid_t other = 0;
    assert_non_null(children);
    while (!other && fscanf(children, "%d", &child) == 1) {
        unsigned known = 0;
        while (known < count && pids[known] != child)
            known++;
        other = known < count ? 0 : child;
    }
    fclose(children);
    return other;
}

/* The process that LOCAL starts in place of one of PIDS. */
static pid_t await_successor(const struct cluster_process *local,
                             const pid_t *pids, unsigned count) {
    int64_t deadline = time_now() + CLUSTER_RUN_DEADLINE * TIME_S;
    pid_t pid;
    while (!(pid = other_child(local, pids, count))) {
        assert_true(time_now() < deadline);
        cluster_fixture_sleep(0.001);
    }
    return pid;
}

static void await_moment_of_second(const struct two_deaths *two,
                                   struct cluster_process *local) {
    if (two->moment == RECOVERED)
        cluster_run_await_soon(local, two->form->recovered);
    if (two->moment == SAVES)
        cluster_run_await_soon(local, "chief: checkpoint ");
    if (two->moment == ENDS)
        cluster_run_await(local, textf("/step-%09u", STEPS), LONG);
    cluster_fixture_sleep(two->after);
}

static void kill_both(const struct two_deaths *two,
                      struct cluster_process *local) {
    unsigned count = count_slots(two->form);
    pid_t pids[MOST_SLOTS] = {0}, successor = 0;
    await_slots(two->form, local, pids);
    for (unsigned i = 0; i < two->checkpoints; i++)
        cluster_run_await_soon(local, "chief: checkpoint ");
    cluster_fixture_sleep(two->before);
    assert_int_equal(kill(pids[two->first], SIGKILL), 0);
    bool same = two->first == two->second;
    if (same || two->moment == STARTED_AGAIN)
        successor = await_successor(local, pids, count);
    await_moment_of_second(two, local);
    kill(same ? successor : pids[two->second], SIGKILL); /* it may be gone */
}

static void expect_all_steps(struct cluster_run *run) {
    enum { MOST = 64 };
    uint64_t steps[MOST];
    unsigned count = cluster_fixture_checkpoints(run, "both", steps, MOST);
    assert_true(count && steps[count - 1] == STEPS);
}

/* A run goes on without the samples of a worker that died. */
static void expect_end_of_both(struct cluster_run *run,
                               const struct two_deaths *two,
                               struct cluster_process *local,
                               const char *whole) {
    unsigned least = 1 + two->form->num_ps; /* a worker's slot */
    bool is_untrained =
        two->form->num_ps && (two->first >= least || two->second >= least);
    cluster_run_expect(local, 0, LONG);
    if (!is_untrained)
        cluster_fixture_expect_same_checkpoints(run, whole, "both");
    else
        expect_all_steps(run);
}

TEST(a_second_death_is_a_case_like_the_first) {
    const char *given = getenv("SOAK_SEED");
    uint64_t seed = given ? strtoull(given, NULL, 10) : 1;
    for (unsigned i = 0; i < cluster_fixture_repeats(PAIRS); i++) {
        struct two_deaths two = draw_two_deaths(i, &seed);
        char first[32], second[32], whole[64];
        slot_text(two.form, two.first, first);
        slot_text(two.form, two.second, second);
        print_message("# %u: %s: %s, then %s %s, after %u checkpoints\n", i,
                      two.form->name, first, second, moment_names[two.moment],
                      two.checkpoints);
        snprintf(whole, sizeof whole, "whole-%u-%s", two.form->num_ps,
                 two.form->chief);
        if (access(cluster_run_path(run, whole), F_OK))
            cluster_run_expect(start_form(run, two.form, whole), 0, LONG);
        struct cluster_process *local = start_form(run, two.form, "both");
        kill_both(&two, local);
        expect_end_of_both(run, &two, local, whole);
        assert_int_equal(system(textf("rm -r '%s/both'", run->folder)), 0);
    }
}
