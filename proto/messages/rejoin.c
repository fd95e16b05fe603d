/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/messages/rejoin.h"

#include <stdio.h>
#include <string.h>

static void keep_copy(Capstan__Control **kept,
                      const Capstan__Control *control) {
    message_free_control(kept);
    *kept = message_copy_control(control);
}

void rejoin_clear(struct rejoin *rejoin) {
    message_free_control(&rejoin->plan);
    message_free_control(&rejoin->view);
    message_free_control(&rejoin->model_spec);
    message_free_control(&rejoin->visible_devices);
    message_free_control(&rejoin->finished);
    message_free_control(&rejoin->sums);
    message_free_control(&rejoin->interrupted);
    message_free_control(&rejoin->save_request);
    for (uint32_t i = 0; i < rejoin->num_reports; i++)
        message_free_control(&rejoin->reports[i]);
    for (uint32_t i = 0; i < rejoin->num_epochs; i++)
        message_free_control(&rejoin->epochs[i]);
    rejoin->num_reports = rejoin->num_epochs = 0;
    channel_close(&rejoin->rendezvous);
}

static uint64_t step_of_report(const Capstan__Control *report) {
    return report->body_case == CAPSTAN__CONTROL__BODY_KEPT
               ? report->kept->step
               : report->snapshot_report->id;
}

/* Those of checkpoints up to STEP have their manifest, or a newer one. */
static void drop_reports(struct rejoin *rejoin, uint64_t step) {
    uint32_t left = 0;
    for (uint32_t i = 0; i < rejoin->num_reports; i++) {
        Capstan__Control *report = rejoin->reports[i];
        rejoin->reports[i] = NULL;
        if (step_of_report(report) <= step)
            message_free_control(&report);
        else
            rejoin->reports[left++] = report;
    }
    rejoin->num_reports = left;
}

static void keep_report(struct rejoin *rejoin,
                        const Capstan__Control *control) {
    uint32_t most = control->body_case == CAPSTAN__CONTROL__BODY_KEPT
                        ? REJOIN_KEPT
                        : REJOIN_REPORTS;
    if (step_of_report(control) >= MESSAGE_REQUESTED_SNAPSHOT)
        return;
    if (rejoin->num_reports == most)
        drop_reports(rejoin, step_of_report(rejoin->reports[0]));
    Capstan__Control *copy = message_copy_control(control);
    if (copy)
        rejoin->reports[rejoin->num_reports++] = copy;
}

/* A copy in memory is begun anew by the next chief. */
static void note_kept(struct rejoin *rejoin, const Capstan__Control *control) {
    const Capstan__Kept *kept = control->kept;
    rejoin->keeps = true;
    if (kept->copy || !kept->step || rejoin->keeps_on_order)
        return;
    rejoin->leads |= kept->lead;
    keep_report(rejoin, control);
}

static void keep_epoch(struct rejoin *rejoin, const Capstan__Control *control) {
    Capstan__Control *copy = message_copy_control(control);
    if (!copy)
        return;
    if (rejoin->num_epochs == MESSAGE_EPOCHS) {
        message_free_control(&rejoin->epochs[0]);
        memmove(rejoin->epochs, rejoin->epochs + 1,
                --rejoin->num_epochs * sizeof *rejoin->epochs);
    }
    rejoin->epochs[rejoin->num_epochs++] = copy;
    for (uint32_t i = 0; i < rejoin->num_epochs; i++)
        rejoin->epoch_list[i] = rejoin->epochs[i]->epoch;
}

static void keep_rendezvous(struct rejoin *rejoin,
                            const Capstan__Control *control) {
    Capstan__Control numbered = *control;
    bool kept = channel_put(&rejoin->rendezvous, &numbered);
    (void)kept; /* without memory a collective names the rank that it lacks */
}

/* May a rank still ask for what CONTROL sets? Nobody meets in an older
 * generation of the trainers' group. A rank says once for which step it waits,
 * and the others look that up in all generations. */
static bool may_be_asked_for(const struct rejoin *rejoin,
                             const Capstan__Control *control) {
    const char *key = control->rendezvous->key;
    unsigned number, rank;
    if (sscanf(key, RENDEZVOUS_START_KEY, &number, &rank) == 2 ||
        sscanf(key, RENDEZVOUS_STEP_KEY, &number, &rank) == 2)
        return true;
    bool is_of_one = sscanf(key, RENDEZVOUS_AGAIN_KEY, &number) == 1 ||
                     sscanf(key, RENDEZVOUS_PREFIX, &number) == 1;
    return !is_of_one || number >= rejoin->generation;
}

/* Those of OLD that are WANTED, in the order in which they came. */
static bool put_wanted(const struct rejoin *rejoin, const struct channel *old,
                       bool (*wanted)(const struct rejoin *,
                                      const Capstan__Control *),
                       struct channel *channel) {
    bool all = true;
    for (const struct channel_entry *entry = old->first; entry;
         entry = entry->next) {
        Capstan__Control *control =
            capstan__control__unpack(NULL, entry->size, entry->bytes);
        all &= control != NULL;
        if (control && wanted(rejoin, control))
            all &= channel_put(channel, control);
        message_free_control(&control);
    }
    return all;
}

static void note_generation(struct rejoin *rejoin, const char *key) {
    unsigned number;
    if (sscanf(key, RENDEZVOUS_GENERATION_KEY, &number) != 1 ||
        number <= rejoin->generation)
        return;
    struct channel old = rejoin->rendezvous;
    rejoin->generation = number;
    rejoin->rendezvous = (struct channel){0};
    bool kept = put_wanted(rejoin, &old, may_be_asked_for, &rejoin->rendezvous);
    (void)kept; /* as in keep_rendezvous */
    channel_close(&old);
}

void rejoin_note_received(struct rejoin *rejoin,
                          const Capstan__Control *control) {
    const Capstan__Retain *retain = control->retain;
    rejoin->keeps_on_order |=
        control->body_case == CAPSTAN__CONTROL__BODY_SNAPSHOT;
    if (control->body_case == CAPSTAN__CONTROL__BODY_RENDEZVOUS)
        note_generation(rejoin, control->rendezvous->key);
    if (control->body_case == CAPSTAN__CONTROL__BODY_PLAN)
        keep_copy(&rejoin->plan, control);
    else if (control->body_case == CAPSTAN__CONTROL__BODY_VIEW)
        keep_copy(&rejoin->view, control);
    else if (control->body_case == CAPSTAN__CONTROL__BODY_RETAIN &&
             retain->n_steps)
        drop_reports(rejoin, retain->steps[retain->n_steps - 1]);
}

void rejoin_note_sent(struct rejoin *rejoin, const Capstan__Control *control) {
    switch (control->body_case) {
    case CAPSTAN__CONTROL__BODY_MODEL_SPEC:
        keep_copy(&rejoin->model_spec, control);
        break;
    case CAPSTAN__CONTROL__BODY_VISIBLE_DEVICES:
        keep_copy(&rejoin->visible_devices, control);
        break;
    case CAPSTAN__CONTROL__BODY_FINISHED:
        keep_copy(&rejoin->finished, control);
        break;
    case CAPSTAN__CONTROL__BODY_SQUARE_SUMS:
        keep_copy(&rejoin->sums, control);
        break;
    case CAPSTAN__CONTROL__BODY_INTERRUPTED:
        keep_copy(&rejoin->interrupted, control);
        break;
    case CAPSTAN__CONTROL__BODY_SNAPSHOT_REPORT:
        keep_report(rejoin, control);
        break;
    case CAPSTAN__CONTROL__BODY_KEPT:
        note_kept(rejoin, control);
        break;
    case CAPSTAN__CONTROL__BODY_RENDEZVOUS:
        keep_rendezvous(rejoin, control);
        break;
    case CAPSTAN__CONTROL__BODY_SAVE_REQUEST:
        keep_copy(&rejoin->save_request, control);
        break;
    case CAPSTAN__CONTROL__BODY_EPOCH:
        keep_epoch(rejoin, control);
        break;
    default:
        break;
    }
}

void rejoin_fill(const struct rejoin *rejoin, Capstan__Heartbeat *heartbeat,
                 Capstan__Rejoin *message) {
    capstan__rejoin__init(message);
    message->term = rejoin->term;
    message->heartbeat = heartbeat;
    if (rejoin->plan)
        message->plan = rejoin->plan->plan;
    if (rejoin->view)
        message->view = rejoin->view->view;
    if (rejoin->model_spec)
        message->model_spec = rejoin->model_spec->model_spec;
    if (rejoin->visible_devices)
        message->visible_devices = rejoin->visible_devices->visible_devices;
    message->epochs = (Capstan__Epoch **)rejoin->epoch_list;
    message->n_epochs = rejoin->num_epochs;
    message->keeps = rejoin->keeps;
    message->leads = rejoin->leads;
    message->generation = rejoin->generation;
}

/* The new chief asks for the rest anew, or has it from the Rejoin. It drops
 * points up to the step at which it adopts the run. */
static bool is_for_any_chief(const struct rejoin *rejoin,
                             const Capstan__Control *control) {
    (void)rejoin;
    switch (control->body_case) {
    case CAPSTAN__CONTROL__BODY_EVALUATED:
    case CAPSTAN__CONTROL__BODY_POINTS:
    case CAPSTAN__CONTROL__BODY_FAILED:
    case CAPSTAN__CONTROL__BODY_EPOCH:
        return true;
    case CAPSTAN__CONTROL__BODY_KEPT:
        return !control->kept->step;
    default:
        return false;
    }
}

static bool put_kept(struct channel *channel, Capstan__Control *kept) {
    return !kept || channel_put(channel, kept);
}

bool rejoin_begin_channel(struct rejoin *rejoin,
                          const Capstan__Adopted *adopted,
                          struct channel *channel) {
    struct channel old = *channel;
    *channel = (struct channel){0};
    rejoin->term = adopted->term;
    drop_reports(rejoin, adopted->saved);
    if (rejoin->save_request &&
        rejoin->save_request->save_request->step < adopted->saved)
        message_free_control(&rejoin->save_request); /* it is there */
    bool all = put_kept(channel, rejoin->sums);
    for (uint32_t i = 0; i < rejoin->num_reports; i++)
        all &= put_kept(channel, rejoin->reports[i]);
    all &= put_wanted(rejoin, &rejoin->rendezvous, may_be_asked_for, channel);
    all &= put_wanted(rejoin, &old, is_for_any_chief, channel);
    all &= put_kept(channel, rejoin->save_request) &&
           put_kept(channel, rejoin->finished) &&
           put_kept(channel, rejoin->interrupted);
    channel_close(&old);
    return all;
}
