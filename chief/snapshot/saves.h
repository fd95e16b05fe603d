/* SPDX-License-Identifier: Apache-2.0 */
/* The chief's part of checkpoints: where a run starts, and what becomes of
 * those that stand. */
#ifndef CAPSTAN_SAVES_H
#define CAPSTAN_SAVES_H

#include "chief/run.h"

enum { SAVES_WAY_ON = 4400 /* bytes of any way on */ };

/* Claims the checkpoint directory for this run (claim.h): another that lives is
 * STATUS_CONFIG, and each ps can tell whether it sees the same directory. */
enum status saves_open(struct run *run, struct failure *why) MUST_CHECK;

/* SIGUSR1: a checkpoint as soon as one can be cut, and the run goes on. */
void saves_signal(struct run *run);

/* Lets the directory go. */
void saves_close(struct run *run);

/* Finds the checkpoint that the job's `resume` names and fills
 * run->restored. Nothing starts from nothing over a checkpoint that cannot be
 * used; one of another shape, optimiser or seed is STATUS_CONFIG. */
enum status saves_find_start(struct run *run, struct failure *why) MUST_CHECK;

/* The optimiser as a manifest names it; static. */
const char *saves_rule(const struct run *run);

/* What the command that began RUN does when it is given again, as the rest of a
 * sentence: "resumes from /x/step-000000500", where the job lets it. */
void saves_way_on(const struct run *run, char *text, size_t size);

/* Tells the ps which checkpoints stand. */
void saves_tell(struct run *run);

/* CUT was not written everywhere: what there is of it goes. */
void saves_discard(struct run *run, const struct run_cut *cut);

#endif
