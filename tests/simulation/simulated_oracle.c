/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/simulation/simulated_oracle.h"

#include "tests/simulation/simulated_coordinator.h"
#include "tests/simulation/simulated_copies.h"

#include <math.h>
#include <string.h>

uint64_t simulated_oracle_mix(uint64_t a, uint64_t b) {
    uint64_t x = (a ^ (b * UINT64_C(0x9e3779b97f4a7c15))) + b;
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

uint64_t simulated_oracle_start(const struct simulated *s, uint32_t b) {
    return simulated_synchronous(s) ? simulated_oracle_mix(s->seed, b) : 0;
}

uint64_t simulated_oracle_gradient(const struct simulated *s, uint32_t rank,
                                   uint64_t clock, uint32_t b,
                                   const uint64_t *weights) {
    uint64_t mixed = simulated_oracle_mix(rank + 1, clock * 64 + b);
    for (uint32_t i = 0; i < simulated_units(s); i++)
        mixed = simulated_oracle_mix(mixed, weights[i]);
    return mixed;
}

bool simulated_oracle_empty(const struct simulated *s, uint32_t rank,
                            uint64_t clock) {
    return simulated_oracle_mix(s->seed, clock * 64 + rank) % 16 == 0;
}

bool simulated_oracle_void(const struct simulated *s, uint32_t rank,
                           uint64_t clock) {
    return s->scenario.overflows &&
           simulated_oracle_mix(s->seed + 1, clock * 64 + rank) % 16 == 0;
}

double simulated_oracle_square(const struct simulated_gradients *gradients) {
    double sum = 0;
    for (uint32_t i = 0; i < gradients->count; i++)
        sum += (double)(gradients->values[i] >> 44);
    return sum;
}

uint64_t simulated_oracle_update(const struct simulated *s, uint64_t value,
                                 uint64_t version,
                                 const struct simulated_gradients *gradients) {
    if (!simulated_synchronous(s))
        return gradients->count ? value + gradients->values[0] : value;
    value = simulated_oracle_mix(value, version * 64 + gradients->divisor);
    for (uint32_t i = 0; i < gradients->count; i++)
        value = simulated_oracle_mix(value, gradients->values[i]);
    return simulated_oracle_mix(value, (uint64_t)gradients->norm);
}

/* Half of the partitions, of which four lists of rows exist. */
uint64_t simulated_oracle_rows(const struct simulated *s, uint32_t rank,
                               uint64_t clock, uint32_t m, uint32_t b) {
    uint64_t mixed =
        simulated_oracle_mix(s->seed + 2, (clock * 64 + rank) * 64 + b);
    uint64_t rows = simulated_oracle_mix(mixed, m) % 8;
    return rows < 5 ? rows : 0;
}

uint64_t simulated_oracle_read(uint64_t value, uint64_t rows) {
    return simulated_oracle_mix(value, rows);
}

uint64_t simulated_oracle_add_read(uint64_t read, uint64_t rows) {
    return simulated_oracle_mix(read, rows);
}

bool simulated_oracle_touches(const struct simulated *s, uint32_t rank,
                              uint64_t clock, uint32_t b) {
    for (uint32_t m = 0; m < s->scenario.micro_batches; m++)
        if (simulated_oracle_rows(s, rank, clock, m, b))
            return true;
    return !simulated_is_partition(s, b);
}

uint32_t simulated_oracle_bytes(const struct simulated *s, uint32_t rank,
                                uint64_t clock, uint32_t b) {
    if (!simulated_is_partition(s, b))
        return s->scenario.block_bytes[b];
    return simulated_oracle_touches(s, rank, clock, b)
               ? 1 + (uint32_t)(simulated_oracle_mix(rank, clock * 64 + b) >>
                                48)
               : 0;
}

static bool any_void(const struct simulated *s, uint64_t clock) {
    for (uint32_t r = 0; r < s->scenario.num_ranks; r++)
        if (simulated_oracle_void(s, r, clock))
            return true;
    return false;
}

/* What RANK's step CLOCK reads of WEIGHTS. */
static void read_all(const struct simulated *s, uint32_t rank, uint64_t clock,
                     const uint64_t *weights, uint64_t *read) {
    const struct simulated_scenario *scenario = &s->scenario;
    memset(read, 0, SIMULATED_UNITS * sizeof *read);
    memcpy(read, weights, scenario->num_blocks * sizeof *read);
    for (uint32_t b = scenario->num_blocks; b < simulated_units(s); b++)
        for (uint32_t m = 0; m < scenario->micro_batches; m++) {
            uint64_t rows = simulated_oracle_rows(s, rank, clock, m, b);
            if (rows)
                read[b] = simulated_oracle_add_read(
                    read[b], simulated_oracle_read(weights[b], rows));
        }
}

/* Every trainer's GRADIENTS [units] of a round on WEIGHTS, those without bytes
 * left out. */
static void all_gradients(const struct simulated *s, uint64_t clock,
                          const uint64_t *weights,
                          struct simulated_gradients *gradients) {
    uint64_t read[SIMULATED_UNITS];
    memset(gradients, 0, SIMULATED_UNITS * sizeof *gradients);
    for (uint32_t r = 0; r < s->scenario.num_ranks; r++) {
        if (simulated_oracle_empty(s, r, clock))
            continue;
        read_all(s, r, clock, weights, read);
        for (uint32_t b = 0; b < simulated_units(s); b++) {
            gradients[b].divisor++;
            if (simulated_oracle_touches(s, r, clock, b))
                gradients[b].values[gradients[b].count++] =
                    simulated_oracle_gradient(s, r, clock, b, read);
        }
    }
}

void simulated_oracle_begin(struct simulated *s) {
    struct simulated_gradients gradients[SIMULATED_UNITS];
    struct simulated_oracle *t = &s->truth;
    uint64_t start = s->start.step, units = simulated_units(s);
    memset(t->taken, 0, sizeof t->taken);
    memcpy(s->planned_in, s->memories, sizeof s->planned_in);
    memcpy(t->values[start], s->start.values, sizeof t->values[0]);
    if (!simulated_synchronous(s))
        return;
    memcpy(t->expected[start], s->start.values, sizeof t->expected[0]);
    for (uint64_t v = start + 1; v <= s->scenario.total; v++) {
        const uint64_t *old = t->expected[v - 1];
        if (any_void(s, v)) {
            memcpy(t->expected[v], old, sizeof t->expected[v]);
            continue;
        }
        all_gradients(s, v, old, gradients);
        double norm = 0;
        for (uint32_t b = 0; s->scenario.clip && b < units; b++)
            norm += simulated_oracle_square(&gradients[b]);
        for (uint32_t b = 0; b < units; b++) {
            gradients[b].norm = sqrt(norm);
            t->expected[v][b] =
                simulated_oracle_update(s, old[b], v, &gradients[b]);
        }
    }
}

void simulated_oracle_refused(struct simulated *s, uint32_t p,
                              const struct simulated_message *message) {
    uint32_t rank = message->data.rank;
    const struct roster_slot *slot = &s->chief.roster.slots[rank];
    if (message->run == s->ps[p].member.run && message->run == s->chief.run &&
        s->chief.open && s->chief.trainers[rank].viewed &&
        slot->state == ROSTER_HELD && slot->incarnation == message->incarnation)
        simulated_fail(s,
                       "rank %u was told to start and is a stranger to ps "
                       "%u",
                       rank, p);
}

void simulated_oracle_taken(struct simulated *s, uint32_t p, uint32_t b,
                            uint32_t rank,
                            const struct simulated_message *push) {
    const struct gate_slot *slot = &s->ps[p].slots[rank];
    if (push->run != s->ps[p].member.run)
        simulated_fail(s, "ps %u took a push of run %llu in run %llu", p,
                       (unsigned long long)push->run,
                       (unsigned long long)s->ps[p].member.run);
    if (slot->incarnation != push->incarnation)
        simulated_fail(s,
                       "ps %u took a push of incarnation %llu; its view "
                       "has %llu as rank %u",
                       p, (unsigned long long)push->incarnation,
                       (unsigned long long)slot->incarnation, rank);
    if (push->data.clock < slot->from)
        simulated_fail(s, "ps %u took clock %llu of rank %u, from %llu", p,
                       (unsigned long long)push->data.clock, rank,
                       (unsigned long long)slot->from);
    uint64_t *taken = &s->truth.taken[s->ps[p].ids[b]][rank];
    if (push->data.clock > *taken)
        *taken = push->data.clock;
}

/* How many have contributed to the open round of block B. */
static uint32_t count_held(const struct simulated *s, uint32_t p, uint32_t b) {
    uint32_t count = 0;
    for (uint32_t r = 0; r < s->scenario.num_ranks; r++)
        count += s->ps[p].held[b][r].held;
    return count;
}

static void check_round(struct simulated *s, uint32_t p, uint32_t b,
                        uint64_t version) {
    const struct simulated_ps *ps = &s->ps[p];
    uint32_t id = ps->ids[b], count = count_held(s, p, b);
    if (count > simulated_enough(s))
        simulated_fail(s, "block %u closed round %llu with %u contributions",
                       id, (unsigned long long)version, count);
    for (uint32_t r = 0; r < s->scenario.num_ranks; r++) {
        const struct simulated_contribution *c = &ps->held[b][r];
        const struct gate_slot *slot = &ps->slots[r];
        if (slot->live && slot->from <= version && !c->held &&
            count < simulated_enough(s))
            simulated_fail(s, "block %u closed round %llu without rank %u", id,
                           (unsigned long long)version, r);
        if (c->held && c->clock != version)
            simulated_fail(s, "block %u applied clock %llu in round %llu", id,
                           (unsigned long long)c->clock,
                           (unsigned long long)version);
    }
    if (version > s->scenario.total)
        simulated_fail(s, "block %u is past the end", id);
    if (s->scenario.clip && ps->norm_round != version)
        simulated_fail(s, "block %u of round %llu with the norm of %llu", id,
                       (unsigned long long)version,
                       (unsigned long long)ps->norm_round);
}

/* What a step contributes follows from its number: nothing, which does not
 * count in the divisor, or no rows, which does. */
static void check_kind(struct simulated *s, uint32_t id, uint32_t rank,
                       const struct simulated_contribution *c) {
    bool empty = simulated_oracle_empty(s, rank, c->clock) ||
                 simulated_oracle_void(s, rank, c->clock);
    bool zero = !empty && !simulated_oracle_touches(s, rank, c->clock, id);
    if (c->empty != empty || c->zero != zero)
        simulated_fail(s,
                       "clock %llu of rank %u, block %u: it is taken for "
                       "%s",
                       (unsigned long long)c->clock, rank, id,
                       c->empty  ? "nothing"
                       : c->zero ? "zero"
                                 : "gradients");
}

void simulated_oracle_updating(struct simulated *s, uint32_t p, uint32_t b,
                               uint64_t version, bool overflowed) {
    const struct simulated_ps *ps = &s->ps[p];
    bool found_overflow = false;
    for (uint32_t r = 0; r < s->scenario.num_ranks; r++) {
        const struct simulated_contribution *c = &ps->held[b][r];
        if (!c->held)
            continue;
        found_overflow |= c->overflowed;
        check_kind(s, ps->ids[b], r, c);
        if (c->clock >= SIMULATED_CLOCKS)
            simulated_fail(s, "clock %llu", (unsigned long long)c->clock);
        else if (s->truth.applied[c->incarnation][ps->ids[b]][c->clock]++)
            simulated_fail(s, "clock %llu of rank %u, block %u: applied twice",
                           (unsigned long long)c->clock, r, ps->ids[b]);
    }
    if (found_overflow != overflowed)
        simulated_fail(s, "block %u at %llu: gradients %s, the update %s",
                       ps->ids[b], (unsigned long long)version,
                       found_overflow ? "overflowed" : "did not overflow",
                       overflowed ? "is void" : "is not void");
    if (simulated_synchronous(s))
        check_round(s, p, b, version);
}

void simulated_oracle_updated(struct simulated *s, uint32_t p, uint32_t b,
                              uint64_t version) {
    uint32_t id = s->ps[p].ids[b];
    uint64_t value = s->ps[p].values[b];
    if (version >= SIMULATED_CLOCKS) {
        simulated_fail(s, "version %llu", (unsigned long long)version);
        return;
    }
    s->truth.values[version][id] = value;
    s->truth.runs[version] = s->ps[p].member.run;
    if (simulated_synchronous(s) && s->truth.whole &&
        value != s->truth.expected[version][id])
        simulated_fail(s, "block %u has other bits at round %llu", id,
                       (unsigned long long)version);
}

/* Is a live trainer more than N clocks behind CLOCK on block B? */
static bool leaves_behind(const struct simulated *s, uint32_t p, uint32_t b,
                          uint64_t clock) {
    const struct simulated_ps *ps = &s->ps[p];
    for (uint32_t r = 0; r < s->scenario.num_ranks; r++) {
        const struct gate_slot *slot = &ps->slots[r];
        uint64_t theirs = s->truth.taken[ps->ids[b]][r];
        if (theirs < slot->from)
            theirs = slot->from - 1;
        if (slot->live && theirs < clock &&
            clock - theirs > s->scenario.staleness)
            return true;
    }
    return false;
}

void simulated_oracle_replied(struct simulated *s, uint32_t p, uint32_t b,
                              uint32_t rank, uint64_t clock) {
    const struct simulated_ps *ps = &s->ps[p];
    uint64_t version = update_core_version(ps->update_core, b);
    if (simulated_synchronous(s) && version < clock)
        simulated_fail(s, "block %u answered clock %llu at round %llu",
                       ps->ids[b], (unsigned long long)clock,
                       (unsigned long long)version);
    if (!simulated_synchronous(s) && leaves_behind(s, p, b, clock))
        simulated_fail(s, "rank %u is let more than %llu clocks ahead to %llu",
                       rank, (unsigned long long)s->scenario.staleness,
                       (unsigned long long)clock);
}

/* The highest clock of RANK that block B has taken, at least one below its
 * first. */
static uint64_t taken_of(const struct simulated *s, uint32_t p, uint32_t b,
                         uint32_t rank) {
    const struct simulated_ps *ps = &s->ps[p];
    uint64_t taken = s->truth.taken[ps->ids[b]][rank];
    uint64_t from = ps->slots[rank].from;
    return taken < from ? from - 1 : taken;
}

void simulated_oracle_looked_up(struct simulated *s, uint32_t p, uint32_t b,
                                uint32_t rank, uint64_t clock) {
    simulated_oracle_replied(s, p, b, rank, clock);
    if (taken_of(s, p, b, rank) + s->ps[p].lookups[b][rank].early < clock)
        simulated_fail(s,
                       "rank %u reads partition %u at clock %llu without its "
                       "own push",
                       rank, s->ps[p].ids[b], (unsigned long long)clock);
}

/* A reason for the open round of block B to stay open. */
static bool has_to_wait(const struct simulated *s, uint32_t p, uint32_t b) {
    const struct simulated_ps *ps = &s->ps[p];
    uint64_t round = update_core_version(ps->update_core, b) + 1;
    bool anybody = false;
    bool enough = count_held(s, p, b) >= simulated_enough(s);
    for (uint32_t r = 0; r < s->scenario.num_ranks; r++) {
        const struct gate_slot *slot = &ps->slots[r];
        anybody |= slot->live || ps->held[b][r].held;
        if (slot->live && slot->from <= round && !ps->held[b][r].held &&
            !enough)
            return true;
    }
    return !anybody || ps->frozen ||
           (s->scenario.clip && ps->norm_round < round);
}

static void check_reader(struct simulated *s, uint32_t p, uint32_t b,
                         uint32_t r) {
    const struct simulated_ps *ps = &s->ps[p];
    uint64_t clock = ps->readers[b][r].clock;
    bool may = simulated_synchronous(s)
                   ? update_core_version(ps->update_core, b) >= clock ||
                         !has_to_wait(s, p, b)
                   : !leaves_behind(s, p, b, clock);
    if (may)
        simulated_fail(
            s,
            "rank %u waits for block %u at clock %llu and need "
            "not: it is at %llu",
            r, ps->ids[b], (unsigned long long)clock,
            (unsigned long long)update_core_version(ps->update_core, b));
}

static void check_lookup(struct simulated *s, uint32_t p, uint32_t b,
                         uint32_t r) {
    const struct simulated_ps *ps = &s->ps[p];
    uint64_t clock = ps->lookups[b][r].clock;
    bool may = simulated_synchronous(s)
                   ? update_core_version(ps->update_core, b) >= clock
                   : !leaves_behind(s, p, b, clock);
    if (may && taken_of(s, p, b, r) + ps->lookups[b][r].early >= clock)
        simulated_fail(s,
                       "rank %u waits for rows of partition %u at clock %llu "
                       "and need not",
                       r, ps->ids[b], (unsigned long long)clock);
}

void simulated_oracle_event_handled(struct simulated *s, uint32_t p) {
    const struct simulated_ps *ps = &s->ps[p];
    for (uint32_t r = 0; r < s->scenario.num_ranks; r++) {
        uint64_t bytes = 0;
        uint32_t blocks = 0;
        for (uint32_t b = 0; b < ps->count; b++) {
            if (ps->readers[b][r].waiting)
                check_reader(s, p, b, r);
            if (ps->lookups[b][r].waiting)
                check_lookup(s, p, b, r);
            const struct simulated_contribution *c = &ps->held[b][r];
            if (!c->held || c->empty || c->zero)
                continue;
            blocks++;
            bytes += simulated_oracle_bytes(s, r, c->clock, ps->ids[b]);
        }
        if (blocks > 1 && bytes > s->scenario.credit)
            simulated_fail(s,
                           "ps %u holds %llu bytes of rank %u, whose credit "
                           "is %llu",
                           p, (unsigned long long)bytes, r,
                           (unsigned long long)s->scenario.credit);
    }
}

void simulated_oracle_saved(struct simulated *s, uint32_t p, uint32_t b,
                            uint64_t version, const struct ledger_entry *row) {
    const struct simulated_ps *ps = &s->ps[p];
    uint32_t id = ps->ids[b];
    for (uint32_t r = 0; r < s->scenario.num_ranks; r++) {
        uint64_t clock = row[r].clock, life = row[r].incarnation;
        if (!life || clock < s->truth.from[life] ||
            clock >= SIMULATED_CLOCKS - 1)
            continue;
        bool has = s->truth.applied[life][id][clock];
        has |= s->scenario.backup_workers > 0; /* or it can no longer be */
        if (!has || s->truth.applied[life][id][clock + 1])
            simulated_fail(s,
                           "the saved row of block %u at %llu says clock "
                           "%llu of rank %u, the weights %s",
                           id, (unsigned long long)version,
                           (unsigned long long)clock, r,
                           has ? "have more" : "lack it");
    }
}

void simulated_oracle_placed(struct simulated *s) {
    for (uint32_t b = 0; b < simulated_units(s); b++) {
        uint32_t here = 0;
        bool all = true;
        for (uint32_t p = 0; p < s->scenario.num_ps; p++) {
            const struct simulated_ps *ps = &s->ps[p];
            bool ready = ps->update_core && ps->member.run == s->chief.run;
            all &= ready;
            if (!ready || ps->local[b] == UINT32_MAX)
                continue;
            here++;
            if (ps->values[ps->local[b]] != s->start.values[b])
                simulated_fail(s, "block %u is not restored", b);
        }
        if (here > 1 || (all && !here))
            simulated_fail(s, "block %u is on %u ps", b, here);
    }
}

void simulated_oracle_cut(struct simulated *s,
                          const struct simulated_cut *cut) {
    if (cut->step < s->disk.step)
        simulated_fail(s,
                       "the checkpoint of step %llu comes after that of "
                       "%llu",
                       (unsigned long long)cut->step,
                       (unsigned long long)s->disk.step);
    for (uint32_t p = 0; p < s->scenario.num_ps; p++)
        if (cut->bases[p] && (cut->known_from[p] > cut->bases[p] ||
                              cut->bases[p] > s->disk.base))
            simulated_fail(s,
                           "the delta of step %llu on %llu has what changed "
                           "since %llu alone",
                           (unsigned long long)cut->step,
                           (unsigned long long)cut->bases[p],
                           (unsigned long long)cut->known_from[p]);
    for (uint32_t b = 0; b < simulated_units(s); b++) {
        uint64_t version = cut->versions[b];
        if (simulated_synchronous(s) && version != cut->step)
            simulated_fail(s, "the cut of round %llu has block %u at %llu",
                           (unsigned long long)cut->step, b,
                           (unsigned long long)version);
        else if (cut->values[b] != s->truth.values[version][b])
            simulated_fail(s,
                           "the cut of step %llu has other weights of "
                           "block %u",
                           (unsigned long long)cut->step, b);
    }
}

/* Is the part of ps PART of STEP in the memory of a member? */
static bool is_part_held(struct simulated *s, uint64_t step, uint32_t part) {
    for (uint32_t p = 0; p < s->scenario.num_ps; p++)
        if (simulated_copies_has(s, p, step, part, NULL))
            return true;
    return false;
}

/* The newest of which a member that has joined or the chief knows. */
static uint64_t newest_copy(const struct simulated *s) {
    uint64_t newest = s->chief.lineage.copy;
    for (uint32_t p = 0; s->chief.is_fresh && p < s->scenario.num_ps; p++)
        if (s->copies[p].manifest && s->copies[p].described > newest)
            newest = s->copies[p].described;
    return newest;
}

void simulated_oracle_chosen(struct simulated *s, bool memory) {
    uint64_t newest = newest_copy(s);
    bool newer = newest > s->disk.step && s->chief.lineage.in_vain < 3;
    for (uint32_t p = 0; newer && p < s->memory_parts; p++)
        newer = is_part_held(s, newest, p);
    if (newer && !memory)
        simulated_fail(s, "the run goes back to step %llu and not to %llu",
                       (unsigned long long)s->disk.step,
                       (unsigned long long)newest);
    if (memory && newest <= s->disk.step)
        simulated_fail(s, "the run goes back to the copy of %llu, before %llu",
                       (unsigned long long)newest,
                       (unsigned long long)s->disk.step);
}

/* All ps know the ranks as the newest view of any has them. One that has
 * answered and died may have had a newer one. */
void simulated_oracle_adopted(struct simulated *s) {
    const struct simulated_ps *newest = NULL;
    for (uint32_t p = 0; p < s->scenario.num_ps; p++)
        if (s->ps[p].member.run == s->chief.run &&
            (!newest || s->ps[p].view > newest->view))
            newest = &s->ps[p];
    if (newest && s->chief.adopt.core.view > newest->view)
        newest = NULL;
    for (uint32_t r = 0; newest && r < s->scenario.num_ranks; r++) {
        const struct gate_slot *slot = &newest->slots[r];
        if (s->chief.adopt.core.ranks[r].incarnation != slot->incarnation ||
            s->chief.adopt.core.ranks[r].live != slot->live)
            simulated_fail(s, "the run is adopted by an older view than %llu",
                           (unsigned long long)newest->view);
    }
}

/* Is HELD of STEP as it was computed last, or as the run began with it? */
static void check_part(struct simulated *s, uint64_t step,
                       const struct simulated_part *held) {
    bool start = step == s->start.step;
    if (!start && held->run != (simulated_synchronous(s) ? s->truth.runs[step]
                                                         : s->chief.run))
        simulated_fail(s, "there is a copy of step %llu of run %llu",
                       (unsigned long long)step, (unsigned long long)held->run);
    for (uint32_t b = 0; b < held->count; b++) {
        uint32_t id = held->ids[b];
        uint64_t version = held->versions[b];
        uint64_t value =
            start ? s->start.values[id] : s->truth.values[version][id];
        if ((simulated_synchronous(s) && version != step) ||
            held->values[b] != value)
            simulated_fail(s, "the copy of step %llu has other weights",
                           (unsigned long long)step);
    }
}

/* How many ps have the part of ps PART of STEP as it was computed last. */
static uint32_t count_copies(struct simulated *s, uint64_t step,
                             uint32_t part) {
    uint32_t count = 0;
    uint64_t number;
    for (uint32_t p = 0; p < s->scenario.num_ps; p++) {
        if (s->memories[p] != s->planned_in[p])
            count += 2; /* nobody knows of its death yet */
        if (!simulated_copies_has(s, p, step, part, &number))
            continue;
        const struct simulated_part *held = &s->parts[number];
        count++;
        check_part(s, step, held);
        for (uint32_t b = 0; b < held->count; b++)
            s->memory.values[held->ids[b]] = held->values[b];
    }
    return count;
}

void simulated_oracle_copied(struct simulated *s, uint64_t step) {
    s->memory_parts = simulated_coordinator_num_parts(s);
    for (uint32_t p = 0; p < s->memory_parts; p++)
        if (count_copies(s, step, p) < 2)
            simulated_fail(s, "the part of ps %u of step %llu is on one ps", p,
                           (unsigned long long)step);
    s->memory.step = step;
    memcpy(s->truth.copied[step], s->memory.values, sizeof s->memory.values);
    memcpy(s->copied_in, s->planned_in, sizeof s->copied_in);
}

void simulated_oracle_copies_held(struct simulated *s, uint32_t p) {
    uint32_t parts = s->memory_parts, other = p ? p - 1 : parts - 1;
    uint64_t step = s->memory.step;
    if (!step || p >= parts || s->memories[p] != s->copied_in[p])
        return;
    if (!simulated_copies_has(s, p, step, p, NULL) ||
        !simulated_copies_has(s, p, step, other, NULL))
        simulated_fail(s, "ps %u has no longer the copy of step %llu", p,
                       (unsigned long long)step);
}

void simulated_oracle_answered(struct simulated *s, uint32_t rank, uint32_t b,
                               uint64_t clock, bool late) {
    const struct simulated_worker *w = &s->workers[rank];
    uint64_t life = s->processes[simulated_worker_process(s, rank)].incarnation;
    if (clock >= w->from && clock < SIMULATED_CLOCKS &&
        s->truth.applied[life][b][clock] != !late)
        simulated_fail(s,
                       "rank %u was answered for block %u of clock %llu, "
                       "which is %s",
                       rank, b, (unsigned long long)clock,
                       late ? "late and applied" : "not applied");
}

/* Its next push is not made yet, so a synchronous round cannot be later. */
void simulated_oracle_took_rows(struct simulated *s, uint32_t rank, uint32_t b,
                                uint64_t version, uint64_t value) {
    const struct simulated_worker *w = &s->workers[rank];
    bool without_own = w->looks_up_early && !simulated_synchronous(s);
    simulated_oracle_answered(s, rank, b, w->clock - without_own, false);
    if (simulated_synchronous(s) && version != w->clock)
        simulated_fail(s, "rank %u after step %llu reads rows of round %llu",
                       rank, (unsigned long long)w->clock,
                       (unsigned long long)version);
    else if (value !=
             simulated_oracle_read(s->truth.values[version][b], w->ids[b]))
        simulated_fail(s,
                       "rank %u reads other rows of partition %u than those "
                       "that it wants at version %llu",
                       rank, b, (unsigned long long)version);
}

/* First sendings to a ps go in the plan's order, and so does each request. */
void simulated_oracle_sent(struct simulated *s, uint32_t rank,
                           const struct window_request *request) {
    struct simulated_worker *w = &s->workers[rank];
    for (uint32_t i = 0; i < request->count; i++) {
        uint32_t b = request->blocks[i];
        if (i && b <= request->blocks[i - 1])
            simulated_fail(s, "rank %u sends block %u after %u", rank, b,
                           request->blocks[i - 1]);
        if (w->first_sent[b] == request->clock)
            continue;
        w->first_sent[b] = request->clock;
        for (uint32_t later = b + 1; later < simulated_units(s); later++)
            if (w->first_sent[later] == request->clock &&
                w->block_ps[later] == request->ps)
                simulated_fail(s, "rank %u sends block %u after %u", rank, b,
                               later);
    }
}

/* With backup workers the step follows the block that is least far. */
void simulated_oracle_step(struct simulated *s, uint32_t rank) {
    const struct simulated_worker *w = &s->workers[rank];
    bool backup = s->scenario.backup_workers > 0, follows = !backup;
    for (uint32_t b = 0; simulated_synchronous(s) && b < s->scenario.num_blocks;
         b++) {
        follows |= w->versions[b] == w->clock;
        if (backup ? w->versions[b] < w->clock : w->versions[b] != w->clock)
            simulated_fail(s,
                           "rank %u begins step %llu with block %u of "
                           "round %llu",
                           rank, (unsigned long long)w->clock + 1, b,
                           (unsigned long long)w->versions[b]);
    }
    if (!follows)
        simulated_fail(s, "rank %u begins step %llu, which all have passed",
                       rank, (unsigned long long)w->clock + 1);
}

void simulated_oracle_end(struct simulated *s) {
    for (uint32_t p = 0; p < s->scenario.num_ps; p++) {
        const struct simulated_ps *ps = &s->ps[p];
        for (uint32_t b = 0; ps->update_core && b < ps->count; b++) {
            uint64_t version = update_core_version(ps->update_core, b);
            if (simulated_synchronous(s) && version != s->scenario.total)
                simulated_fail(s, "the run ended with block %u at %llu",
                               ps->ids[b], (unsigned long long)version);
        }
    }
    if (s->disk.step < s->scenario.total)
        simulated_fail(s, "the run ended without its last checkpoint");
}
