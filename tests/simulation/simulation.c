/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/simulation/simulation.h"

#include "chief/plan/placement.h"
#include "tests/simulation/simulated.h"
#include "tests/simulation/simulated_chief.h"
#include "tests/simulation/simulated_copies.h"
#include "tests/simulation/simulated_member.h"
#include "tests/simulation/simulated_net.h"
#include "tests/simulation/simulated_oracle.h"
#include "tests/simulation/simulated_ps.h"
#include "tests/simulation/simulated_worker.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int64_t HEALED_LIMIT = 240 * TIME_S;
enum { LAST_CRASH_LIFE = 120 };

static const char *const names[] = {
    [SIMULATION_NO_FAULT] = "none",
    [SIMULATION_LEDGER_FORGETS] = "the ledger forgets",
    [SIMULATION_ROW_SAVED_LATE] = "ledger rows are saved later than weights",
    [SIMULATION_NO_RUN_CHECK] = "messages of another run are taken",
    [SIMULATION_SHARED_CREDIT] = "one credit for all ps",
    [SIMULATION_OTHER_ORDER] = "workers send in different orders",
    [SIMULATION_RESEND_AS_NEW] = "what is sent again has a new clock",
    [SIMULATION_EARLY_REPLY] = "a push is answered before its round closes",
    [SIMULATION_WAITS_FOR_DEAD] = "the gate awaits who is dead",
    [SIMULATION_VIEW_NOT_APPLIED] = "a view is not looked at again",
    [SIMULATION_STALE_INCARNATION] = "an incarnation not in the view is taken",
    [SIMULATION_JOINER_TOO_EARLY] = "a joiner's clock is one too low",
    [SIMULATION_JOINER_TOO_LATE] = "a joiner's clock is one too high",
    [SIMULATION_CUT_AT_HIGHEST] = "a cut is at the highest closed round",
    [SIMULATION_FREEZE_IGNORED] = "a ps goes on while a cut is agreed on",
    [SIMULATION_QUERY_IGNORED] = "a lacking block is not named",
    [SIMULATION_WAITS_FOR_FINISHED] = "who has finished is waited for",
    [SIMULATION_REPLY_APPLIED_TWICE] = "a reply is taken twice",
    [SIMULATION_OTHER_NORM] = "a round is clipped by another one's norm",
    [SIMULATION_CREDIT_IGNORED] = "a worker has no credit limit",
    [SIMULATION_COMMANDS_TWICE] = "control messages are taken twice",
    [SIMULATION_SAME_INCARNATION] = "a restarted process keeps its number",
    [SIMULATION_TOO_STALE] = "the gate lets one clock more",
    [SIMULATION_NEVER_QUERIES] = "a worker never asks again",
    [SIMULATION_VIEW_SENT_EARLY] = "trainers start before every ps knows them",
    [SIMULATION_OVERFLOW_AS_EMPTY] =
        "a round goes on without the gradients that overflowed",
    [SIMULATION_ZERO_AS_EMPTY] = "a push without rows is not counted",
    [SIMULATION_ROWS_APPLIED_TWICE] = "rows that are sent again are applied",
    [SIMULATION_ROWS_HELD_LATE] = "rows are saved later than their ledger row",
    [SIMULATION_ROWS_ON_TWO_PS] = "rows are restored to two ps",
    [SIMULATION_EARLY_ROWS] = "a lookup is answered before its reader's push",
    [SIMULATION_OLD_ROWS] = "an older lookup's rows are taken",
    [SIMULATION_ROWS_OVERTAKEN] = "a step's rows are overtaken by the next one",
    [SIMULATION_LATE_APPLIED] = "a late contribution is applied after all",
    [SIMULATION_STRAGGLER_AWAITED] = "a round awaits the slowest",
    [SIMULATION_LATE_UNANSWERED] = "a late contribution is not answered",
    [SIMULATION_STRAGGLER_GOES_ON] = "a straggler goes on with its own count",
    [SIMULATION_STRAGGLER_TOO_FAR] =
        "a straggler goes on behind the furthest block",
    [SIMULATION_LEDGER_KEPT] = "ledger rows are kept over a rewind",
    [SIMULATION_ROWS_KEPT] = "rows looked up ahead are kept over a rewind",
    [SIMULATION_CUTS_KEPT] = "a checkpoint's parts are kept over a rewind",
    [SIMULATION_COPY_ON_ONE_PS] = "a copy counts that is on one ps only",
    [SIMULATION_COPY_UNDONE] = "copies of undone steps are kept",
    [SIMULATION_COPY_DROPPED] = "a copy goes before the newer is complete",
    [SIMULATION_COPY_BASE_DROPPED] = "the base of a copy goes as older ones do",
    [SIMULATION_COPY_BASE_ON_ONE_PS] = "a copy counts whose base is on one ps",
    [SIMULATION_OLDER_START] = "the older of disk and memory is taken",
    [SIMULATION_OLD_BASE] = "a delta is on a base from before a rewind",
    [SIMULATION_OLD_VIEW_ADOPTED] = "a chief adopts a run by an old view",
    [SIMULATION_FREEZE_STAYS] = "a freeze stays when its chief is gone",
    [SIMULATION_OLD_CHIEF_OBEYED] = "a chief that is replaced is obeyed",
    [SIMULATION_REPORTS_LOST] = "the next chief does not learn of parts",
};

const char *simulation_fault_name(enum simulation_fault fault) {
    return names[fault];
}

bool simulated_chance(struct simulated *s, uint32_t chance) {
    return chance && philox_below(&s->random, 1000) < chance;
}

int64_t simulated_time(struct simulated *s, int64_t limit) {
    return limit / 1000 * philox_below(&s->random, 1001);
}

void simulated_trace(const struct simulated *s, const char *format, ...) {
    if (!s->trace)
        return;
    va_list arguments;
    va_start(arguments, format);
    printf("# %9.4f ", time_to_seconds(s->now));
    vprintf(format, arguments);
    printf("\n");
    va_end(arguments);
}

void simulated_fail(struct simulated *s, const char *format, ...) {
    if (s->failed)
        return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(s->text, sizeof s->text, format, arguments);
    va_end(arguments);
    s->failed = true;
    simulated_trace(s, "FOUND: %s", s->text);
}

/* As a supervisor sees it: what did not end well is started again. */
void simulated_end(struct simulated *s, uint32_t process, bool ok) {
    struct simulated_process *who = &s->processes[process];
    if (!who->running)
        return;
    simulated_trace(s, "process %u ends, %s", process, ok ? "well" : "for now");
    who->running = false;
    who->over = ok;
    if (!simulated_has_fault(s, SIMULATION_SAME_INCARNATION))
        who->incarnation = 0;
    who->wakes = who->paused_until = 0;
    who->starts = s->now + TIME_S / 10 + simulated_time(s, 2 * TIME_S);
    if (!ok)
        simulated_net_wake(s, process, who->starts);
}

void simulated_go_back(struct simulated *s, uint32_t process) {
    struct simulated_process *who = &s->processes[process];
    simulated_end(s, process, false);
    who->keeps = s->scenario.rewinds;
    if (who->keeps) {
        who->starts = s->now + simulated_time(s, TIME_S / 2);
        who->wakes = 0;
        simulated_net_wake(s, process, who->starts);
    }
}

static void close_process(struct simulated *s, uint32_t process) {
    uint32_t num_ps = s->scenario.num_ps;
    if (!s->processes[process].open)
        return;
    s->processes[process].open = false;
    if (process == 0)
        simulated_chief_close(s);
    else if (process <= num_ps)
        simulated_ps_close(s, process - 1);
    else
        simulated_worker_close(s, process - 1 - num_ps);
}

void simulated_start(struct simulated *s, uint32_t process) {
    struct simulated_process *who = &s->processes[process];
    uint32_t num_ps = s->scenario.num_ps;
    if (s->lives + 1 >= SIMULATED_LIVES) {
        simulated_fail(s, "processes end again and again");
        return;
    }
    close_process(s, process);
    s->lives++;
    simulated_trace(s, "process %u starts as %llu", process,
                    (unsigned long long)s->lives);
    if (!who->incarnation)
        who->incarnation = s->lives;
    bool keeps = who->keeps;
    who->running = who->open = true;
    who->keeps = false;
    if (process == 0)
        simulated_chief_open(s, keeps);
    else if (process <= num_ps)
        simulated_ps_open(s, process - 1, keeps);
    else
        simulated_worker_open(s, process - 1 - num_ps, keeps);
}

static uint32_t one_of(struct simulated *s, uint32_t count) {
    return philox_below(&s->random, count);
}

/* Few parameters of one to two blocks. */
static void draw_layout(struct simulated *s) {
    struct simulated_scenario *scenario = &s->scenario;
    struct parameter parameters[SIMULATED_PARAMETERS];
    struct layout *layout;
    struct failure why;
    uint32_t place[SIMULATED_BLOCKS];
    memset(parameters, 0, sizeof parameters);
    scenario->num_parameters = 1 + one_of(s, SIMULATED_PARAMETERS);
    for (uint32_t p = 0; p < scenario->num_parameters; p++) {
        snprintf(parameters[p].name, LAYOUT_MAX_NAME, "p%u", p);
        parameters[p].num_dims = 1;
        parameters[p].dims[0] = 1 + one_of(s, 2 << 14);
    }
    if (layout_build(&layout, parameters, scenario->num_parameters, &why)) {
        simulated_fail(s, "%s", why.text);
        return;
    }
    if (placement_greedy(layout, scenario->num_ps, place, &why))
        simulated_fail(s, "%s", why.text);
    scenario->num_blocks = layout->num_blocks;
    for (uint32_t p = 0; p < scenario->num_parameters; p++) {
        scenario->first_block[p] = layout->first_block[p];
        scenario->blocks_of[p] = layout->num_blocks_of[p];
    }
    for (uint32_t b = 0; b < layout->num_blocks; b++) {
        scenario->block_ps[b] = (uint16_t)place[b];
        scenario->block_bytes[b] = 4 * layout->blocks[b].elements;
    }
    layout_free(&layout);
}

static void draw_consistency(struct simulated *s) {
    struct simulated_scenario *scenario = &s->scenario;
    uint32_t kind = one_of(s, 10);
    scenario->staleness = kind < 6   ? 0
                          : kind < 9 ? 1 + one_of(s, 3)
                                     : GATE_ASYNCHRONOUS;
    scenario->clip = !scenario->staleness && one_of(s, 3) == 0;
    scenario->overflows = one_of(s, 3) == 0;
    scenario->total = 3 + one_of(s, 8);
    if (scenario->staleness)
        scenario->total *= scenario->num_ranks;
    if (!scenario->staleness && one_of(s, 2))
        scenario->every_steps = 1 + one_of(s, 4);
    if (one_of(s, 3) == 0)
        scenario->save_every = TIME_S / 2 + simulated_time(s, 3 * TIME_S);
    scenario->group_bytes = (1 + one_of(s, 4)) << 16;
    scenario->credit = (uint64_t)(1 + one_of(s, 6)) << 16;
    if (scenario->clip) /* a whole shard */
        scenario->credit = (uint64_t)SIMULATED_UNITS << 16;
}

/* What goes back, and to where: half of the clusters in place, and of them most
 * to copies in memory too. */
static void draw_rewinds(struct simulated *s) {
    struct simulated_scenario *scenario = &s->scenario;
    scenario->rewinds = one_of(s, 2);
    if (!scenario->rewinds)
        return;
    if (simulated_synchronous(s))
        scenario->total = 10 + one_of(s, 40);
    if (scenario->num_ps > 1 && one_of(s, 4))
        scenario->buddy_steps = 1 + one_of(s, simulated_synchronous(s) ? 3 : 8);
    scenario->adopts = !scenario->clip && one_of(s, 2);
    if (!scenario->adopts &&
        one_of(s, 4)) { /* a chief that adopts has no base */
        scenario->delta_steps = scenario->every_steps;
        scenario->every_steps *= 2;
    } else if (scenario->buddy_steps) {
        scenario->every_steps *= 1 + one_of(s, 6);
    }
}

static void draw_table(struct simulated *s) {
    struct simulated_scenario *scenario = &s->scenario;
    if (one_of(s, 2))
        return;
    scenario->num_partitions = 1 + one_of(s, SIMULATED_PARTITIONS);
    scenario->micro_batches = 1 + one_of(s, 2);
    scenario->looks_ahead = one_of(s, 1001);
    scenario->looks_early = one_of(s, 1001);
}

/* What job_schema.c allows them with. */
static void draw_backup_workers(struct simulated *s) {
    struct simulated_scenario *scenario = &s->scenario;
    if (simulated_synchronous(s) && !scenario->clip &&
        !scenario->num_partitions && scenario->num_ranks > 1 && one_of(s, 2))
        scenario->backup_workers = 1 + one_of(s, scenario->num_ranks - 1);
}

/* Most seeds have few kinds of trouble, some have all. */
static void draw_trouble(struct simulated *s) {
    struct simulated_scenario *scenario = &s->scenario;
    uint32_t *const chances[] = {&scenario->drop,    &scenario->duplicate,
                                 &scenario->reorder, &scenario->lose,
                                 &scenario->pause,   &scenario->crash};
    static const uint32_t most[] = {60, 150, 150, 300, 200, 250};
    bool all = one_of(s, 8) == 0;
    for (int i = 0; i < 6; i++)
        if (all || one_of(s, 3) == 0)
            *chances[i] = 1 + one_of(s, most[i]);
    if (scenario->rewinds && one_of(s, 4))
        scenario->crash = 10 + one_of(s, scenario->adopts ? 120 : 60);
    scenario->delay = TIME_MS / 10 << one_of(s, 10);
    scenario->step_time =
        TIME_MS << (scenario->rewinds ? 4 + one_of(s, 5) : one_of(s, 9));
    scenario->heals_at = TIME_S + simulated_time(s, 12 * TIME_S);
}

static void draw(struct simulated *s) {
    s->scenario.num_ranks = 1 + one_of(s, SIMULATED_RANKS);
    s->scenario.num_ps = 1 + one_of(s, SIMULATED_PS);
    draw_layout(s);
    draw_consistency(s);
    draw_table(s);
    draw_backup_workers(s);
    draw_rewinds(s);
    draw_trouble(s);
    s->run_schedule = (struct run_schedule){
        .total = s->scenario.total,
        .accumulation = 1,
        .epoch_batches = 1000,
        .checkpoints = true,
        .every_steps = s->scenario.every_steps,
        .delta_every_steps = s->scenario.delta_steps,
    };
    for (uint32_t b = 0; b < simulated_units(s); b++)
        s->disk.values[b] = simulated_oracle_start(s, b);
    simulated_trace(
        s,
        "%u workers, %u ps, %u blocks, %u partitions, staleness %lld, "
        "%llu steps"
        "%s, %u backup workers, credit %llu, heals at %.1f s",
        s->scenario.num_ranks, s->scenario.num_ps, s->scenario.num_blocks,
        s->scenario.num_partitions, (long long)s->scenario.staleness,
        (unsigned long long)s->scenario.total,
        s->scenario.clip ? ", clipped" : "", s->scenario.backup_workers,
        (unsigned long long)s->scenario.credit,
        time_to_seconds(s->scenario.heals_at));
}

static void break_line(struct simulated *s) {
    uint32_t r = one_of(s, s->scenario.num_ranks);
    uint32_t p = one_of(s, s->scenario.num_ps);
    uint32_t process =
        1 + one_of(s, s->scenario.num_ps + s->scenario.num_ranks);
    int64_t until = s->now + simulated_time(s, 3 * TIME_S / 2);
    if (one_of(s, 3)) {
        simulated_trace(s, "rank %u and ps %u lose each other", r, p);
        simulated_net_break(s, simulated_net_data(r, p), until);
        simulated_worker_reconnected(s, r, p);
    } else {
        simulated_trace(s, "process %u and the chief lose each other", process);
        simulated_net_break(s, simulated_net_control(process), until);
    }
}

static uint32_t processes(const struct simulated *s) {
    return 1 + s->scenario.num_ps + s->scenario.num_ranks;
}

static void pause_one(struct simulated *s) {
    uint32_t process = one_of(s, processes(s));
    int64_t time = simulated_time(s, one_of(s, 4) ? TIME_S : 5 * TIME_S);
    if (!s->processes[process].running)
        return;
    simulated_trace(s, "process %u is stopped for %.3f s", process,
                    time_to_seconds(time));
    s->processes[process].paused_until = s->now + time;
}

static void break_all_lines(struct simulated *s, uint32_t process) {
    uint32_t num_ps = s->scenario.num_ps;
    for (uint32_t r = 0; r < s->scenario.num_ranks; r++)
        for (uint32_t p = 0; p < num_ps; p++)
            if (process == simulated_ps_process(p) ||
                process == simulated_worker_process(s, r))
                simulated_net_break(s, simulated_net_data(r, p), s->now);
    for (uint32_t other = 1; other < processes(s); other++)
        if (process == 0 || process == other)
            simulated_net_break(s, simulated_net_control(other), s->now);
}

/* Mostly workers; ps and chief less where each costs a run. */
static void crash_one(struct simulated *s) {
    uint32_t process =
        one_of(s, s->scenario.rewinds ? 2 : 4)
            ? simulated_worker_process(s, one_of(s, s->scenario.num_ranks))
            : one_of(s, 1 + s->scenario.num_ps);
    if (s->scenario.adopts && one_of(s, 4))
        process = 0;
    if (s->lives > LAST_CRASH_LIFE)
        return;
    if (s->processes[process].keeps) {
        simulated_trace(s, "process %u is killed between two runs", process);
        s->processes[process].keeps = false;
        return;
    }
    if ((s->chief.phase >= SIMULATED_STOPPING && !s->chief.goes_back) ||
        !s->processes[process].running)
        return;
    if (process > s->scenario.num_ps && one_of(s, 4) == 0) {
        s->workers[process - 1 - s->scenario.num_ps].leaving = true;
        return;
    }
    if (process == 0 && one_of(s, s->scenario.adopts ? 6 : 2) == 0) {
        simulated_chief_interrupt(s);
        return;
    }
    simulated_trace(s, "process %u is killed", process);
    break_all_lines(s, process);
    simulated_end(s, process, false);
}

static void heal(struct simulated *s) {
    struct simulated_scenario *scenario = &s->scenario;
    scenario->drop = scenario->duplicate = scenario->reorder = 0;
    scenario->lose = scenario->pause = scenario->crash = 0;
    for (uint32_t process = 0; process < processes(s); process++)
        s->processes[process].paused_until = 0;
    s->healed = true;
    simulated_trace(s, "all heals");
}

static void make_trouble(struct simulated *s) {
    if (simulated_chance(s, s->scenario.lose))
        break_line(s);
    if (simulated_chance(s, s->scenario.pause))
        pause_one(s);
    if (simulated_chance(s, s->scenario.crash))
        crash_one(s);
}

static void look_at(struct simulated *s, uint32_t process) {
    struct simulated_process *who = &s->processes[process];
    uint32_t num_ps = s->scenario.num_ps;
    if (!who->running) {
        if (!who->over && s->now >= who->starts)
            simulated_start(s, process);
        return;
    }
    if (process == 0)
        simulated_chief_step(s);
    else if (process <= num_ps)
        simulated_ps_step(s, process - 1);
    else
        simulated_worker_step(s, process - 1 - num_ps);
}

/* Who is the client of a control LINE. */
static uint32_t control_client(uint32_t line) {
    return line - simulated_net_control(0);
}

static void deliver(struct simulated *s, const struct simulated_event *event) {
    uint32_t process = event->process, num_ps = s->scenario.num_ps;
    if (!s->processes[process].running)
        return;
    if (process == 0)
        simulated_chief_receive(
            s, &event->peer, control_client(event->peer.line), event->message);
    else if (process <= num_ps)
        simulated_ps_receive(s, process - 1, &event->peer, event->message);
    else
        simulated_worker_receive(s, process - 1 - num_ps, event->message);
    if (process && s->processes[process].running)
        look_at(s, process);
}

static void play(struct simulated *s) {
    const struct simulated_event *event;
    int64_t trouble = 0;
    for (uint32_t process = 0; process < processes(s); process++)
        simulated_net_wake(s, process, simulated_time(s, TIME_S));
    while (!s->failed && !s->processes[0].over &&
           (event = simulated_net_next(s))) {
        s->steps++;
        s->hash =
            simulated_oracle_mix(s->hash, (uint64_t)s->now ^ event->process);
        if (event->message)
            deliver(s, event);
        else
            look_at(s, event->process);
        for (uint32_t process = 0; process < processes(s); process++)
            if (!s->processes[process].running)
                close_process(s, process);
        if (!s->healed && s->now >= s->scenario.heals_at)
            heal(s);
        if (!s->healed && s->now >= trouble) {
            make_trouble(s);
            trouble = s->now + simulated_time(s, TIME_S / 5);
        }
        if (s->now > s->scenario.heals_at + HEALED_LIMIT)
            simulated_fail(s, "all is well, and the run does not end");
    }
}

void simulation_run(uint64_t seed, enum simulation_fault fault, bool trace,
                    struct simulation_result *result) {
    struct simulated *s = calloc(1, sizeof *s);
    memset(result, 0, sizeof *result);
    s->seed = seed;
    s->fault = fault;
    s->trace = trace;
    philox_sequence_open(&s->random, seed, 1);
    s->net = simulated_net_open();
    draw(s);
    play(s);
    if (!s->failed && !s->processes[0].over)
        simulated_fail(s, "nothing happens any more");
    if (!s->failed)
        simulated_oracle_end(s);
    for (uint32_t process = 0; process < processes(s); process++)
        close_process(s, process);
    for (uint32_t p = 0; p < SIMULATED_PS; p++)
        copies_close(&s->copies[p]);
    simulated_net_close(&s->net);
    result->found = s->failed;
    if (s->failed)
        snprintf(result->text, sizeof result->text, "at %.4f s: %s",
                 time_to_seconds(s->now), s->text);
    result->steps = s->steps;
    result->hash = s->hash;
    result->runs = s->runs;
    result->deaths = s->deaths;
    result->joiners = s->joiners;
    result->cuts = s->cuts;
    result->late = s->late;
    result->copied = s->copied;
    result->returns = s->returns;
    result->adoptions = s->adoptions;
    free(s);
}
