/* SPDX-License-Identifier: Apache-2.0 */
/* The state of an external model, for external.c, its life and tables;
 * external_model.c, what is declared and kept; and external_step.c, the steps.
 */
#ifndef CAPSTAN_EXTERNAL_INTERNAL_H
#define CAPSTAN_EXTERNAL_INTERNAL_H

#include "core/store/dir_lock.h"
#include "core/store/kept_file.h"
#include "worker/train/external.h"
#include "worker/train/row_writes.h"
#include "worker/train/table_steps.h"
#include "worker/train/trainer_internal.h"

struct tensor {
    struct external *external;
    struct buffer *gradient; /* over the caller's bytes */
    bool pushed;             /* in this step */
    bool lent;               /* a message may still read the gradient */
    bool owned;              /* this file has a reference to it */
    bool stale;              /* the last step's result is not taken yet */
    bool answers_push;       /* that result; else weights that were read */
    bool brought;            /* the last result was written */
};

/* A state that is being read, perhaps for a call that has returned, or has been
 * since the last push; FLOATS NULL: none. Of one that is wanted FLOATS are the
 * caller's. */
struct state_read {
    float *floats;
    uint32_t parameter;
    unsigned slot;
    bool step; /* wanted is, in place of it, the step of the rule: one float */
};

/* The rows of a table that are being listed, in the order of their places. */
struct row_listing {
    struct row_batch batch;
    bool awaited; /* its lookup is under way, of a call of capstan_ids for */
    uint64_t clock;
    const uint64_t *ids;
    size_t room;
    uint32_t table, count;
    uint64_t next;
    size_t found;
};

struct external_tables {
    struct table *tables;
    struct optimizer_group *groups; /* [count], one for each table */
    bool *has_group;
    uint32_t count;
    struct table_steps steps;
    struct row_writes writes;
    struct row_listing listing;
    uint64_t awaited_clock; /* of the step, less one, that awaits rows */
    bool open;
};

struct external {
    struct waiter waiter;
    struct trainer *trainer; /* attached, or NULL */
    struct external_place place;
    struct trainer_group *trainers;
    unsigned inside; /* calls that use the trainer */
    bool joined, detached, ended;
    bool rewinds; /* the caller takes steps again where the run goes back */
    bool follows_on_nan, follows_rounds; /* the latter with backup workers */
    bool calls_others;   /* in collectives, which other ranks may not repeat */
    bool loop_over;      /* the caller has said that no step follows */
    _Atomic bool leaves; /* a signal ends this process's part */
    bool is_asked_back;  /* the trainer's end begins such a return */
    bool back;           /* the model is not with the next trainer yet */
    bool anew; /* nor is it, and the caller still waits in the start of
                  a run that did not begin */
    struct external_position left_at; /* where the last trainer left */
    bool returning;                   /* a call is taking it there */
    bool rewound;       /* it is, and the caller does not know yet */
    bool is_read_again; /* its weights are on their way for that */
    enum status status;
    struct failure why;

    struct parameter *parameters;
    float **values, **means;
    struct tensor *tensors;
    uint32_t count, capacity, num_pushed;
    bool declared, sent, requested, started, finished;
    uint64_t epoch, epoch_first;    /* its number, the steps before it */
    bool counted;                   /* the step that ends was counted */
    bool past_end;                  /* no step follows */
    struct optimizer_group *groups; /* [num_groups]; NULL: the job's */
    uint32_t num_groups;
    bool has_optimizer, values_changed;
    bool takes_means;                   /* optimizer None */
    bool sends_changes;                 /* the same, with staleness */
    struct optimizer_group first_group; /* of groups that are not set */
    uint32_t first; /* ps: of the pushes that wait; reducer: announced from here
                       on */
    uint32_t num_waiting;           /* ps: pushes not announced yet, a range */
    uint64_t waiting_elements;      /* of it */
    enum contribution waiting_kind; /* of all of it */

    struct state_read state_read;

    struct external_tables *tables; /* NULL: none is declared */
    bool trained_pushed;            /* a trained tensor, in this step */
    enum contribution last_kind;    /* of the last such push that counts */

    pthread_mutex_t kept_mutex;
    struct kept_item kept[KEPT_FILE_KEYS];
    uint32_t num_kept;
    uint64_t kept_checked; /* the last step that was checked for being due */
    uint64_t saved_kept;   /* the last step whose kept bytes were written */
    uint64_t save_with;    /* with staleness: the last that the chief told, */
    bool must_save;        /* and nothing was written with it yet */
    bool asks_due;         /* the caller has called external_due, */
    bool due_seen;         /* which said so since the last save */
    bool pushes_over;      /* what is kept changes no more */
    uint64_t due_as_lead;  /* one above the last step for which external_due
                            said EXTERNAL_DUE_LEAD */
    bool keeps;            /* has kept something once */
    struct dir_lock *dir_lock; /* of the checkpoint directory, if the chief's is
                                  another; NULL: it is the same, or not known */
    void *given;               /* to the caller by external_kept */
};

/* Begins a call that uses the trainer; NULL if the run is over. */
struct trainer *external_enter(struct external *external);
void external_leave(struct external *external);

/* The same while the run goes back. */
struct trainer *external_enter_any(struct external *external);

/* EXTERNAL_DONE for a call that is left out while the run goes back; else
 * EXTERNAL_OVER. */
enum external_result external_left_out(struct external *external);

/* Where the run is, by TRAINER. */
void external_find_position(const struct external *external,
                            const struct trainer *trainer,
                            struct external_position *position);

/* The rows that were written before the start, if the plan's tables await rank
 * 0's; else *BATCH is NULL. A view until row_writes_sent. */
enum status external_first_rows(struct external *external,
                                struct trainer *trainer,
                                struct row_batch **batch,
                                struct failure *why) MUST_CHECK;

/* Has TRAINER joined a run that was under way? */
bool external_has_joined(const struct trainer *trainer);

/* TRAINER's last step, of the run. */
uint64_t external_step_of_run(const struct trainer *trainer);

/* Takes the declared model to TRAINER: its VALUES are those of the run then. */
enum external_result external_start_again(struct external *external,
                                          struct trainer *trainer,
                                          int64_t until);

/* Is the run over, or its end on the way? */
bool external_is_over(struct external *external);

/* Does no step follow, as the last was taken, or the run was complete at its
 * start? What is pushed then is left out. */
bool external_is_past_end(struct external *external);

/* The same, or the run has gone back and the caller does not know yet. */
bool external_leaves_out(struct external *external);

/* A wait has ended early: the run is over, or its end is on the way, which then
 * is waited for in place of what does not come. */
enum external_result external_late(struct external *external, int64_t until);

/* Ends the run on all ranks for the reason WHY. */
void external_report(struct trainer *trainer, const struct failure *why);

/* The same for a call that was not allowed at this time. */
void external_misused(struct trainer *trainer, const char *text);

/* Writes what is kept if a checkpoint is due at the step that ended last, or it
 * is the LAST one; once a step. */
void external_save_kept(struct external *external, struct trainer *trainer,
                        bool last);

/* Adds the declared tables to LAYOUT. */
enum status external_add_tables(struct external *external,
                                struct layout *layout,
                                struct failure *why) MUST_CHECK;

/* Pushes the rows of the step that ends. */
enum status external_flush_rows(struct external *external,
                                struct trainer *trainer,
                                struct failure *why) MUST_CHECK;

/* The optimizer TYPE with its defaults, as the job has them. */
enum status external_default_group(struct optimizer_group *group,
                                   const char *type,
                                   struct failure *why) MUST_CHECK;

/* Waits until PARAMETER's weights, or all, are those after the last push and
 * its gradient may be changed. False: not until then. */
bool external_wait_weights(struct external *external, struct trainer *trainer,
                           uint32_t parameter, int64_t until);
bool external_wait_all(struct external *external, struct trainer *trainer,
                       int64_t until);

#endif
