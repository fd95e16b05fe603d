/* SPDX-License-Identifier: Apache-2.0 */
/* A run that has lost weights, or in all-reduce a rank, goes back to its newest
 * checkpoint without ending: its members join a new run of the same processes,
 * as they join the next run of a series. The new run's number fences off what
 * the old one has sent. */
#ifndef CAPSTAN_REWIND_H
#define CAPSTAN_REWIND_H

#include "chief/plan/device_replicas.h"
#include "core/base/status.h"
#include "proto/messages/message.h"

#include <stdbool.h>
#include <stdint.h>

struct roster_slot;
struct run;

/* A ps with a larger index is always awaited. */
enum { REWIND_MAX_TRAINERS = 1024, REWIND_MAX_PS = 1024 };

/* In place of the slot of the process that was lost. */
#define REWIND_CHIEF UINT32_MAX

/* What is untrained and left out of a rank's data up to a step. */
struct rewind_counts {
    uint64_t first, steps; /* untrained: as of struct run_absence */
    uint64_t bad_lines;    /* left out */
};

/* The newest copy in memory (chief/snapshot/buddies.h). */
struct rewind_copy {
    uint64_t step;
    char *manifest;                 /* owned; NULL: there is none */
    char *base;                     /* owned: of a delta its base's, */
    uint64_t base_step;             /* and that one's step; 0: it is whole */
    bool kept[REWIND_MAX_TRAINERS]; /* ranks that keep something with it */
    struct rewind_counts counts[REWIND_MAX_TRAINERS];
};

/* The runs of one chief's process that go on for each other. */
struct rewind_lineage {
    uint64_t incarnation; /* of the chief's process */
    uint64_t id;          /* as manifests have it */
    uint32_t count;       /* rewinds so far */
    bool follows;         /* another run follows the one that has ended */
    double within;        /* seconds in which its members join */
    uint64_t reached;     /* the step up to which was computed since the last
                             one began */
    uint64_t furthest;    /* of all */
    uint32_t in_vain;     /* rewinds since one of them got further */
    uint64_t saved;       /* the newest checkpoint that members know of who have
                             lost their chief */
    uint64_t adoptions;   /* by chiefs that were started while it went on */
    uint64_t again;       /* steps that were computed more than once */
    int64_t opened;       /* when the first began; 0: the first is not over */
    bool traced;          /* its timeline is written */
    bool requested;       /* a checkpoint is, and not taken yet */
    int64_t lost_at;      /* when a process was lost that is awaited, or the
                             chief that this one takes the place of; 0: none */
    uint32_t lost;        /* its slot in the roster of all, or REWIND_CHIEF */
    bool needs_all;       /* ps: the others cannot take over the weights */
    char folder[4096]; /* of the checkpoint that the last one had; "": none */
    struct {
        struct rewind_counts counts; /* up to that checkpoint */
        bool is_away;           /* not there when the last run went back, */
        bool is_untrained;      /* and its share was not trained */
        uint32_t devices;       /* of the last plan, */
        uint64_t share_samples; /* and of its data */
        struct visible_devices visible_devices;
    } ranks[REWIND_MAX_TRAINERS];
    struct {
        bool is_left_out; /* the run that begins has no such ps */
        bool is_lost;     /* when the last run went back, */
        bool is_last;     /* and its launcher starts none in its place */
        int64_t asked;    /* when one asked for its place last; 0: none has */
    } ps[REWIND_MAX_PS];
    struct rewind_copy copy;
};

/* STATUS_CONFIG: RUN's job wants it to go back, and such a run cannot. */
enum status rewind_check(const struct run *run, struct failure *why) MUST_CHECK;

/* The member of SLOT has died while RUN ends to go back: the next run does not
 * await it as one that lives. */
void rewind_note_death(struct run *run, const struct roster_slot *slot);

/* Ends RUN to go back, since the member of SLOT is gone, which DEPARTED
 * describes ("ps 1 on host a (pid 7) ..."). False: it goes on without it, or it
 * cannot go back. */
bool rewind_begin(struct run *run, const struct roster_slot *slot,
                  const char *departed);

/* SLOT's trainer is to join RUN. Synchronous, and no trainer is left of those
 * that kept something: ends RUN, to go back where it may. False: it may join.
 */
bool rewind_for_joiner(struct run *run, const struct roster_slot *slot);

/* For how many seconds RUN's members await its chief if it dies; 0: they
 * end. */
double rewind_chief_within(const struct run *run);

/* May another chief adopt RUN, which goes on meanwhile, if its chief dies? */
bool rewind_may_be_adopted(const struct run *run);

/* May the sender of JOIN, which may come from a run whose chief is gone, be a
 * member of RUN? False: TEXT says why not. */
bool rewind_accepts(const struct run *run, const Capstan__Join *join,
                    char *text, size_t size);

/* The sender of JOIN, which is accepted, is a member now: before its plan RUN
 * becomes one that goes on for that member's last. */
void rewind_take_past(struct run *run, const Capstan__Join *join);

/* The sender of JOIN, a ps of the run whose place RUN has, may tell of a copy
 * in memory: the newest is RUN's. */
void rewind_take_copy(struct run *run, const Capstan__Join *join);

/* The plan of RUN is to start from what was restored. STATUS_RETRY: members
 * await another run's checkpoint. */
enum status rewind_check_start(const struct run *run,
                               struct failure *why) MUST_CHECK;

/* The deaths (launch_record.h) that RUN survives now, for a drill that awaits
 * them: all members train, further than any run before this one did, and the
 * last two seconds of the run have not begun. LAUNCH_RECORD_OWN is that of the
 * chief's process, at any time: it ends the run. */
unsigned rewind_deaths(const struct run *run);

/* Each turn of the chief's loop. Once the trainers of
 * an external model train: tells if they cannot go back, else asks for a first
 * checkpoint. */
void rewind_step(struct run *run);

/* Was the run DEAD, whose chief died before RUN's, over but for its chief, with
 * a last checkpoint of STEP? It is looked for once, and export.path written
 * from it: true once that is done, so ask each turn. */
bool rewind_was_over(struct run *run, uint64_t dead, uint64_t *step);

/* Has it been found to be over? Nothing else begins then. */
bool rewind_is_over(const struct run *run);

/* Ends RUN, as DEAD was over: STEP is that of its last checkpoint, and MEMBERS
 * ("members", or so) are gone. */
void rewind_stop_over(struct run *run, uint64_t dead, uint64_t step,
                      const char *members);

/* Once RUN is over: fills in its lineage. Does another run follow? */
bool rewind_end(struct run *run);

/* RUN's checkpoint of STEP is complete: what is untrained and left out up to it
 * stays so. */
void rewind_keep_counts(struct run *run, uint64_t step);

/* The same of a copy in memory, with its MANIFEST, that of its BASE, of
 * BASE_STEP (NULL, 0: it is whole), both taken over, and the ranks that have
 * KEPT something with it. */
void rewind_keep_copy(struct run *run, uint64_t step, char *manifest,
                      uint64_t base_step, char *base, const bool *kept);

/* RUN's first step is planned: tells who is there again and what it computes
 * again, and takes over what the steps before it lack. */
void rewind_go_on(struct run *run);

/* Does RUN begin without RANK, which has not joined, and is beyond the list or
 * was not there when the last run went back? It comes in as into any running
 * run. */
bool rewind_lacks(const struct run *run, uint32_t rank);

/* RUN is about to be planned: of ranks that it lacks the plan has what it had
 * before, of those beyond the list nothing. */
void rewind_fill_in(struct run *run);

/* The folder of RUN's newest checkpoint, or of that to which it was to go back
 * and has not yet; "": there is none. */
const char *rewind_folder(const struct run *run);

/* Does RUN go on for one that has gone back? */
bool rewind_is_second(const struct run *run);

#endif
