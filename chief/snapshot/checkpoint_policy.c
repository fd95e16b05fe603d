/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint_commit.c writes a checkpoint; this file finds the one to start
 * from, locks the directory and removes old checkpoints. Removal deletes the
 * manifest first: at whatever moment the chief dies, a folder with a manifest
 * is complete, and one without is a remnant. Only files of this run are
 * deleted: checkpoints of an earlier run that this one does not resume from are
 * moved aside. */
#include "chief/snapshot/checkpoint_policy.h"

#include "chief/control/membership.h"
#include "chief/rewind.h"
#include "chief/run.h"
#include "chief/snapshot/kept_states.h"
#include "core/base/time.h"
#include "core/store/checkpoint.h"
#include "core/store/checkpoint_reader.h"
#include "core/store/dir_lock.h"
#include "core/store/fs_info.h"
#include "core/tensor/initializer.h"
#include "core/tensor/rule.h"

#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NAMED = 8 /* steps in an error text */ };

enum status checkpoint_policy_open(struct run *run, struct failure *why) {
    const char *dir = run->job->checkpoint.dir;
    if (!dir)
        return STATUS_OK;
    struct dir_lock_settings settings = {.dir = dir,
                                         .run = run->id,
                                         .owner = "the chief",
                                         .keeps_dead =
                                             rewind_may_be_adopted(run),
                                         .log = run->log};
    enum status status = fs_info_make_folder(dir, why);
    if (!status)
        status = dir_lock_acquire(&run->checkpoints.dir_lock, &settings, why);
    if (status) {
        status_context(why, "checkpoint.dir");
        if (status == STATUS_FAILED)
            why->code = FAILURE_OUTPUT_UNUSABLE;
        return failure_code_status(why->code);
    }
    run->checkpoints.saved_at = time_now();
    return STATUS_OK;
}

void checkpoint_policy_close(struct run *run) {
    dir_lock_release(&run->checkpoints.dir_lock);
    kept_states_free(run);
}

/* A job may group the parameters otherwise: their optimizers are compared. */
static bool is_same_parameter(const struct run *run, const struct layout *there,
                              uint32_t p) {
    struct parameter here = run->plan.layout->parameters[p];
    if (run->job->model.type != JOB_EXTERNAL)
        here.group = there->parameters[p].group;
    return !memcmp(&here, &there->parameters[p], sizeof here);
}

/* What to do where tensor P is another one; else REMEDY. Python's packages keep
 * this tensor for a model's optimiser. */
static const char *remedy_of(const struct layout *here,
                             const struct layout *there, uint32_t p,
                             const char *remedy) {
    static const char numbers[] = "capstan.hyperparameters";
    bool is_in_both = p < here->num_parameters && p < there->num_parameters;
    if (is_in_both && !strcmp(here->parameters[p].name, numbers) &&
        !strcmp(there->parameters[p].name, numbers))
        return "it was written by an older capstan.torch or capstan.keras, or "
               "with another optimizer: go on with those that wrote it, "
               "or begin another run, in an empty checkpoint.dir, with the "
               "weights that capstan ckpt export takes from this one";
    return remedy;
}

static enum status check_parameters(const struct run *run,
                                    const struct manifest *manifest,
                                    const char *remedy, struct failure *why) {
    const struct layout *here = run->plan.layout, *there = manifest->layout;
    bool external = run->job->model.type == JOB_EXTERNAL;
    char was[320], is[320];
    uint32_t p = 0;
    while (p < here->num_parameters && p < there->num_parameters &&
           is_same_parameter(run, there, p))
        p++;
    if (p == here->num_parameters && p == there->num_parameters)
        return STATUS_OK;
    layout_describe_parameter(there, p, was, sizeof was);
    layout_describe_parameter(here, p, is, sizeof is);
    return status_fail(
        why, FAILURE_CHECKPOINT_INCOMPATIBLE,
        "the checkpoint of step %llu in %s holds another model than %s: "
        "tensor number %u is %s there, %s here%s: %s",
        (unsigned long long)manifest->step, run->job->checkpoint.dir,
        external ? "the trainers declare" : "the job describes", p, was, is,
        strcmp(was, is) ? "" : ", with other initial values",
        remedy_of(here, there, p, remedy));
}

/* A caller's own optimizer is None where it is synchronous, and with staleness
 * the one that adds its changes. */
static bool is_callers_own(const struct run *run,
                           const struct manifest_rule *there,
                           const struct optimizer *here) {
    const char *none = rule_name(OPTIMIZER_NONE);
    bool changes =
        run->plan.groups && optimizer_group_is_changes(&run->plan.groups[0]);
    if (here->type == OPTIMIZER_NONE)
        return !strcmp(there->name, rule_name(OPTIMIZER_SGD)) &&
               there->num_slots == 0;
    return changes && !strcmp(there->name, none);
}

/* The first parameter with another optimizer than in the checkpoint, or with
 * another number of state tensors. */
static enum status check_rules(const struct run *run,
                               const struct manifest *manifest,
                               const char *remedy, struct failure *why) {
    const struct layout *layout = run->plan.layout;
    for (uint32_t p = 0; p < layout->num_parameters; p++) {
        const struct manifest_rule *there = manifest_rule(manifest, p);
        const struct optimizer *here =
            optimizer_group_find(run->plan.groups, layout->parameters[p].group,
                                 &run->job->optimizer);
        const char *name = rule_name(here->type);
        if (is_callers_own(run, there, here) ||
            (!strcmp(there->name, name) &&
             there->num_slots == rule_slots(here)))
            continue;
        return status_fail(
            why, FAILURE_CHECKPOINT_INCOMPATIBLE,
            "the checkpoint of step %llu in %s was written by optimizer %s "
            "with %u state tensors for \"%s\", the job says %s with %u: %s",
            (unsigned long long)manifest->step, run->job->checkpoint.dir,
            there->name, there->num_slots, layout->parameters[p].name, name,
            rule_slots(here), remedy);
    }
    return STATUS_OK;
}

/* The key of the job, or the argument of a caller's, that gave TABLE the values
 * of its initial rows. */
static void rows_key(const struct run *run, const char *table, char *key,
                     size_t size) {
    const char *text = run->job->features;
    json_t *features = text ? json_loads(text, 0, NULL) : NULL;
    const json_t *feature = json_object_get(features, table);
    if (feature)
        snprintf(key, size, "features.%s.%s", table,
                 json_object_get(feature, "init") ? "init" : "init_range");
    else if (run->job->model.type != JOB_EXTERNAL && strchr(table, '/'))
        snprintf(key, size, "model.factors_init of table \"%s\"", table);
    else
        snprintf(key, size, "init_range of table \"%s\"", table);
    json_decref(features);
}

/* How the initial rows of a table differ, or an empty text. */
static void rows_difference(const struct run *run, const struct table *there,
                            const struct table *here, char *text, size_t size) {
    static const char *const kinds[] = {[INITIALIZER_UNIFORM] = "uniform",
                                        [INITIALIZER_NORMAL] = "normal",
                                        [INITIALIZER_TRUNCATED_NORMAL] =
                                            "truncated normal"};
    char key[LAYOUT_MAX_NAME + 32];
    if (there->init_kind == here->init_kind &&
        there->init_bound == here->init_bound &&
        there->init_shift == here->init_shift)
        return;
    rows_key(run, here->name, key, sizeof key);
    snprintf(text, size,
             "%s has %.9g there, %.9g here (%s around %.9g there, %s around "
             "%.9g here)",
             key, (double)there->init_bound, (double)here->init_bound,
             kinds[there->init_kind], (double)there->init_shift,
             kinds[here->init_kind], (double)here->init_shift);
}

/* How table T of both layouts differs, or an empty text. max_rows may change:
 * a run that reached it resumes with more. */
static void table_difference(const struct run *run,
                             const struct manifest *manifest, uint32_t t,
                             char *text, size_t size) {
    const struct table *here = &run->plan.layout->tables[t],
                       *there = &manifest->layout->tables[t];
    const struct optimizer *optimizer = run_table_optimizer(run, here);
    const char *rule = rule_name(optimizer->type);
    const struct {
        const char *name;
        double there, here;
    } numbers[] = {{"dim", there->dim, here->dim},
                   {"admit", there->admit, here->admit},
                   {"expire", (double)there->expire, (double)here->expire},
                   {"state tensors", manifest->tables[t].num_slots,
                    rule_slots(optimizer)}};
    *text = '\0';
    if (strcmp(there->name, here->name) != 0)
        snprintf(text, size, "table %" PRIu32 " is \"%s\" there, \"%s\" here",
                 t, there->name, here->name);
    else if (strcmp(manifest->tables[t].rule, rule) != 0)
        snprintf(text, size, "table \"%s\" has optimizer %s there, %s here",
                 here->name, manifest->tables[t].rule, rule);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0] && !*text; i++)
        if (numbers[i].there != numbers[i].here)
            snprintf(text, size, "table \"%s\" has %s %.9g there, %.9g here",
                     here->name, numbers[i].name, numbers[i].there,
                     numbers[i].here);
    if (!*text)
        rows_difference(run, there, here, text, size);
    if (!*text && there->stack != here->stack)
        snprintf(text, size,
                 "the rows of table \"%s\" are stored with those of other "
                 "tables there, as its optimizer was that of other tables",
                 here->name);
}

/* The first difference of the tables, or an empty text. */
static void first_difference(const struct run *run,
                             const struct manifest *manifest, char *text,
                             size_t size) {
    const struct layout *layout = run->plan.layout;
    uint32_t here = layout->num_tables, there = manifest->layout->num_tables;
    *text = '\0';
    for (uint32_t t = 0; t < here && t < there && !*text; t++)
        table_difference(run, manifest, t, text, size);
    if (!*text && here > there)
        snprintf(text, size, "table \"%s\" is not there",
                 layout->tables[there].name);
    else if (!*text && here < there)
        snprintf(text, size, "table \"%s\" is there only",
                 manifest->layout->tables[here].name);
}

static enum status check_tables(const struct run *run,
                                const struct manifest *manifest,
                                const char *remedy, struct failure *why) {
    char text[512];
    first_difference(run, manifest, text, sizeof text);
    return *text ? status_fail(why, FAILURE_CHECKPOINT_INCOMPATIBLE,
                               "the checkpoint of step %llu in %s holds other "
                               "tables than the job describes: %s: %s",
                               (unsigned long long)manifest->step,
                               run->job->checkpoint.dir, text, remedy)
                 : STATUS_OK;
}

/* A feature that the job describes otherwise than THERE, the checkpoint's job,
 * or an empty text. */
static void feature_difference(const struct run *run, const char *there_text,
                               char *text, size_t size) {
    json_t *job = there_text ? json_loads(there_text, 0, NULL) : NULL;
    json_t *here = run->job->features ? json_loads(run->job->features, 0, NULL)
                                      : json_object();
    const json_t *there = json_object_get(job, "features");
    const char *name;
    json_t *value;
    *text = '\0';
    json_object_foreach(here, name, value) {
        const json_t *other = json_object_get(there, name);
        if (*text || json_equal(value, other))
            continue;
        char *was = other ? json_dumps(other, JSON_COMPACT) : NULL;
        char *is = json_dumps(value, JSON_COMPACT);
        snprintf(text, size, "feature \"%s\" is %s there, %s here", name,
                 was ? was : "nothing", is ? is : "another");
        free(was);
        free(is);
    }
    json_object_foreach((json_t *)there, name, value) {
        if (!*text && !json_object_get(here, name))
            snprintf(text, size, "feature \"%s\" is there only", name);
    }
    json_decref(here);
    json_decref(job);
}

static enum status check_features(const struct run *run,
                                  const struct manifest *manifest,
                                  const char *remedy, struct failure *why) {
    char text[512];
    if (!manifest->features || manifest->features == run->plan.features ||
        manifest->features == run->plan.features_unplaced)
        return STATUS_OK;
    feature_difference(run, manifest->job, text, sizeof text);
    return status_fail(
        why, FAILURE_CHECKPOINT_INCOMPATIBLE,
        "the checkpoint of step %llu in %s was trained with other features than "
        "the job describes: %s: %s",
        (unsigned long long)manifest->step, run->job->checkpoint.dir,
        *text ? text
              : "a file of words has changed, or the order of features or "
                "of the data's columns",
        remedy);
}

enum status checkpoint_policy_check(const struct run *run,
                                    const struct manifest *manifest,
                                    struct failure *why) {
    unsigned long long step = manifest->step;
    const char *dir = run->job->checkpoint.dir;
    static const char *const remedy =
        "resume with the job it was written by, or name another checkpoint.dir,"
        " or start over: --set checkpoint.resume=never";
    enum status status = check_parameters(run, manifest, remedy, why);
    if (!status)
        status = check_rules(run, manifest, remedy, why);
    if (!status)
        status = check_tables(run, manifest, remedy, why);
    if (!status)
        status = check_features(run, manifest, remedy, why);
    if (status)
        return status;
    if (manifest->seed != run->job->seed)
        return status_fail(why, FAILURE_CHECKPOINT_INCOMPATIBLE,
                           "the checkpoint of step %llu in %s has seed %llu, "
                           "the job says %llu: %s",
                           step, dir, (unsigned long long)manifest->seed,
                           (unsigned long long)run->job->seed, remedy);
    return STATUS_OK;
}

/* `never` does not permit deletion: checkpoints of another run are moved aside,
 * so that a later `auto` does not resume from one of them. */
static enum status start_fresh(struct run *run, struct failure *why) {
    size_t moved = 0;
    enum status status =
        checkpoint_set_aside(run->job->checkpoint.dir, 0, run->id, &moved, why);
    if (!status && moved)
        log_warning(run->log, "checkpoints_moved_aside",
                    "resume is never: %zu checkpoint%s of an earlier run %s "
                    "moved to %s/aside-%016llx",
                    moved, log_plural(moved), moved == 1 ? "was" : "were",
                    run->job->checkpoint.dir, (unsigned long long)run->id);
    return status;
}

/* If the job names a step that has no checkpoint, the error lists the newest
 * steps that have one. */
static enum status check_step_exists(const struct job_checkpoint *checkpoint,
                                     struct failure *why) {
    uint64_t *steps;
    size_t count;
    char listed[256] = "";
    enum status status = checkpoint_list(checkpoint->dir, &steps, &count, why);
    bool exists = false;
    for (size_t i = 0, used = 0; !status && i < count && !exists; i++) {
        exists = steps[i] == checkpoint->resume_step;
        if (count - i <= MAX_NAMED && used < sizeof listed)
            used += (size_t)snprintf(listed + used, sizeof listed - used,
                                     "%llu, ", (unsigned long long)steps[i]);
    }
    if (status)
        return status;
    free(steps);
    return exists ? STATUS_OK
                  : status_fail(why, FAILURE_RESUME_STEP_MISSING,
                                "checkpoint.resume: found %llu, a step that "
                                "has no checkpoint in %s; allowed: %s\"auto\" "
                                "(the newest) or \"never\"",
                                (unsigned long long)checkpoint->resume_step,
                                checkpoint->dir, listed);
}

/* A named step must verify. Newer checkpoints are moved aside, because this run
 * will write those steps again. */
static enum status checkpoint_policy_find(struct run *run, bool *found,
                                          struct failure *why) {
    const struct job_checkpoint *checkpoint = &run->job->checkpoint;
    if (checkpoint->resume != JOB_RESUME_STEP || rewind_is_second(run))
        return run_newest_checkpoint(run, &run->plan.restored, found, why);
    char folder[4096];
    checkpoint_folder(checkpoint->dir, checkpoint->resume_step, folder,
                      sizeof folder);
    struct failure wrong;
    enum status status = check_step_exists(checkpoint, why);
    if (status)
        return status;
    status = checkpoint_reader_verify(checkpoint->dir, checkpoint->resume_step,
                                      &wrong);
    if (!status)
        status = manifest_read(&run->plan.restored, folder, &wrong);
    *found = !status;
    if (status)
        return status_fail(
            why, wrong.code,
            "checkpoint.resume names step %llu: %.1500s; "
            "`capstan ckpt verify` shows which others are complete",
            (unsigned long long)checkpoint->resume_step, wrong.text);
    size_t moved;
    return checkpoint_set_aside(checkpoint->dir, checkpoint->resume_step + 1,
                                run->id, &moved, why);
}

enum status checkpoint_policy_find_start(struct run *run, struct failure *why) {
    const struct job_checkpoint *checkpoint = &run->job->checkpoint;
    bool found = false;
    if (!checkpoint->dir)
        return STATUS_OK;
    enum status status =
        dir_lock_settle(run->checkpoints.dir_lock, run->id, why);
    if (status)
        return status_context(why, "checkpoint.dir");
    if (checkpoint->resume == JOB_RESUME_NEVER && !rewind_is_second(run))
        return start_fresh(run, why);
    status = checkpoint_policy_find(run, &found, why);
    if (status)
        return status;
    run->plan.has_restored = found;
    status = rewind_check_start(run, why);
    if (status || !found)
        return status;
    status = checkpoint_policy_check(run, &run->plan.restored, why);
    if (status)
        return status;
    run->plan.layout->num_partitions =
        run->plan.restored.layout->num_partitions;
    checkpoint_folder(checkpoint->dir, run->plan.restored.step,
                      run->plan.restore_folder,
                      sizeof run->plan.restore_folder);
    snprintf(run->checkpoints.folder, sizeof run->checkpoints.folder, "%s",
             run->plan.restore_folder);
    run->checkpoints.has_saved = true;
    run->checkpoints.saved = run->plan.restored.step;
    run->checkpoints.has_base = true;
    run->checkpoints.base =
        run->plan.restored.is_delta
            ? run->plan.restored.base_name
            : (struct manifest_name){run->plan.restored.step,
                                     run->plan.restored.hash};
    return STATUS_OK;
}

/* A trainer of a caller's model may have died while the run had no chief. */
static enum status take_uncounted(struct run *run, struct failure *why) {
    struct manifest manifest;
    if (run->job->model.type != JOB_EXTERNAL)
        return STATUS_OK;
    enum status status =
        manifest_read_alone(&manifest, run->checkpoints.folder, why);
    if (status)
        return status;
    uint64_t counted = run_samples(run, manifest.step);
    if (manifest.samples > counted)
        run->checkpoints.uncounted = manifest.samples - counted;
    manifest_clear(&manifest);
    return STATUS_OK;
}

/* Deltas are against what the ps know as the base, which may be an older
 * one than this: a full checkpoint is due before the next. */
enum status checkpoint_policy_take_over(struct run *run, uint64_t step,
                                        struct failure *why) {
    struct run_checkpoints *own = &run->checkpoints;
    const struct run_schedule *schedule = &run->plan.schedule;
    const char *dir = run->job->checkpoint.dir;
    uint64_t *steps = NULL;
    size_t count = 0;
    enum status status = dir_lock_settle(own->dir_lock, run->id, why);
    if (!status)
        status = checkpoint_list(dir, &steps, &count, why);
    if (!status && count) {
        own->has_saved = true;
        own->saved = steps[count - 1];
        checkpoint_folder(dir, own->saved, own->folder, sizeof own->folder);
        status = take_uncounted(run, why);
    }
    free(steps);
    own->requested = schedule->delta_every_steps > 0;
    if (schedule->every_steps)
        own->every_seen = step / schedule->every_steps;
    if (schedule->delta_every_steps)
        own->delta_every_seen = step / schedule->delta_every_steps;
    return status;
}

/* A ps, or a trainer that keeps something, with a directory of its own cannot
 * see the manifests. */
void checkpoint_policy_send_retained(struct run *run) {
    struct failure why;
    size_t count = 0;
    Capstan__Retain retain = CAPSTAN__RETAIN__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    if (!run->job->checkpoint.dir ||
        checkpoint_list(run->job->checkpoint.dir, &retain.steps, &count, &why))
        return;
    retain.n_steps = count;
    retain.base_snapshot = run->checkpoints.base_id;
    control.body_case = CAPSTAN__CONTROL__BODY_RETAIN;
    control.retain = &retain;
    run_send_to_holders(run, &control);
    kept_states_send(run, &control);
    free(retain.steps);
}

/* They wait for what the checkpoint of the step before their first keeps. */
static void dismiss_joiners(struct run *run,
                            const struct run_snapshot *snapshot) {
    char name[64], text[768];
    if (!snapshot->joins || !kept_states_any(run))
        return;
    for (uint32_t r = 0; r < run->roster.num_ranks; r++) {
        struct roster_slot *slot = &run->roster.slots[r];
        if (run->trainers[r].from != snapshot->step + 1 ||
            slot->state != ROSTER_HELD)
            continue;
        roster_name(slot, name, sizeof name);
        snprintf(text, sizeof text,
                 "%s joins with what the others keep at step %llu, and there "
                 "is no checkpoint of it: %s",
                 name, (unsigned long long)snapshot->step, snapshot->problem);
        membership_dismiss(run, slot, FAILURE_CHECKPOINT_NOT_WRITTEN, text);
    }
}

/* If the same step is already complete, its files stay: it was taken twice, and
 * only the second attempt failed. So do those of trainers, which write what
 * they keep once, of a step that a holder has left out: the last checkpoint may
 * be of the same one. What is of no checkpoint in the end is pruned. If the
 * lock is lost, the files may belong to another run. */
void checkpoint_policy_discard(struct run *run,
                               const struct run_snapshot *snapshot) {
    struct failure why;
    if (snapshot->step > run->checkpoints.last_failed)
        run->checkpoints.last_failed = snapshot->step;
    log_warning(run->log, "checkpoint_failed",
                "there is no checkpoint of step %llu: %s",
                (unsigned long long)snapshot->step, snapshot->problem);
    dismiss_joiners(run, snapshot);
    if (run_schedule_saves(&run->plan.schedule, snapshot->step) &&
        run->job->checkpoint.delta_every_steps &&
        !run_schedule_saves_delta(&run->plan.schedule, snapshot->step))
        run->checkpoints.requested = true; /* a base, lest deltas grow */
    if (!run->checkpoints.has_saved || run->checkpoints.saved < snapshot->step)
        snprintf(run->checkpoints.last_problem,
                 sizeof run->checkpoints.last_problem, "%s", snapshot->problem);
    bool holds = dir_lock_is_held(run->checkpoints.dir_lock);
    run->checkpoints.has_saved &= holds;
    if (!holds || (snapshot->skipped && kept_states_any(run)) ||
        (run->checkpoints.has_saved &&
         run->checkpoints.saved == snapshot->step))
        return;
    if (checkpoint_remove(run->job->checkpoint.dir, snapshot->step, &why))
        log_warning(run->log, "checkpoint_removal_failed",
                    "its files were not removed: %s", why.text);
}
