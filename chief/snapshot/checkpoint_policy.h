/* SPDX-License-Identifier: Apache-2.0 */
/* The chief's part of checkpoints: where a run starts, and what becomes of
 * those that stand. */
#ifndef CAPSTAN_CHECKPOINT_POLICY_H
#define CAPSTAN_CHECKPOINT_POLICY_H

#include "chief/run.h"

enum { CHECKPOINT_POLICY_RESUME_HINT_SIZE = 4400 /* bytes of any way on */ };

/* Claims the checkpoint directory for this run (dir_lock.h): another that lives
 * is STATUS_CONFIG, and each ps can tell whether it sees the same directory. */
enum status checkpoint_policy_open(struct run *run,
                                   struct failure *why) MUST_CHECK;

/* SIGUSR1: a checkpoint as soon as one can be cut, and the run goes on. */
void checkpoint_policy_receive_signal(struct run *run);

/* Lets the directory go. */
void checkpoint_policy_close(struct run *run);

/* Finds the checkpoint that the job's `resume` names and fills
 * run->restored. Nothing starts from nothing over a checkpoint that cannot be
 * used; one of another shape, optimiser or seed is STATUS_CONFIG. */
enum status checkpoint_policy_find_start(struct run *run,
                                         struct failure *why) MUST_CHECK;

/* The optimiser as a manifest names it; static. */
const char *checkpoint_policy_optimizer_name(const struct run *run);

/* What the command that began RUN does when it is given again, as the rest of a
 * sentence: "resumes from /x/step-000000500", where the job lets it. */
void checkpoint_policy_resume_hint(const struct run *run, char *text,
                                   size_t size);

/* Tells the ps which checkpoints stand. */
void checkpoint_policy_send_retained(struct run *run);

/* CUT was not written everywhere: what there is of it goes. */
void checkpoint_policy_discard(struct run *run,
                               const struct run_snapshot *snapshot);

#endif
