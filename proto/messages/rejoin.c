/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/messages/rejoin.h"

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
    for (uint32_t i = 0; i < rejoin->num_reports; i++)
        message_free_control(&rejoin->reports[i]);
    rejoin->num_reports = 0;
}

/* Those of checkpoints up to STEP have their manifest, or a newer one. */
static void drop_reports(struct rejoin *rejoin, uint64_t step) {
    uint32_t left = 0;
    for (uint32_t i = 0; i < rejoin->num_reports; i++) {
        Capstan__Control *report = rejoin->reports[i];
        rejoin->reports[i] = NULL;
        if (report->snapshot_report->id <= step)
            message_free_control(&report);
        else
            rejoin->reports[left++] = report;
    }
    rejoin->num_reports = left;
}

static void keep_report(struct rejoin *rejoin,
                        const Capstan__Control *control) {
    if (control->snapshot_report->id >= MESSAGE_REQUESTED_SNAPSHOT)
        return;
    if (rejoin->num_reports == REJOIN_REPORTS)
        drop_reports(rejoin, rejoin->reports[0]->snapshot_report->id);
    Capstan__Control *copy = message_copy_control(control);
    if (copy)
        rejoin->reports[rejoin->num_reports++] = copy;
}

void rejoin_note_received(struct rejoin *rejoin,
                          const Capstan__Control *control) {
    const Capstan__Retain *retain = control->retain;
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
}

/* The new chief asks for the rest anew, or has it from the Rejoin. It drops
 * points up to the step at which it adopts the run. */
static bool is_for_any_chief(const Capstan__Control *control) {
    return control->body_case == CAPSTAN__CONTROL__BODY_EVALUATED ||
           control->body_case == CAPSTAN__CONTROL__BODY_POINTS ||
           control->body_case == CAPSTAN__CONTROL__BODY_FAILED;
}

static bool put_kept(struct channel *channel, Capstan__Control *kept) {
    return !kept || channel_put(channel, kept);
}

/* In the order in which they came. */
static bool put_unacknowledged(const struct channel *old,
                               struct channel *channel) {
    bool all = true;
    for (const struct channel_entry *entry = old->first; entry;
         entry = entry->next) {
        Capstan__Control *control =
            capstan__control__unpack(NULL, entry->size, entry->bytes);
        all &= control != NULL;
        if (control && is_for_any_chief(control))
            all &= channel_put(channel, control);
        message_free_control(&control);
    }
    return all;
}

bool rejoin_begin_channel(struct rejoin *rejoin,
                          const Capstan__Adopted *adopted,
                          struct channel *channel) {
    struct channel old = *channel;
    *channel = (struct channel){0};
    rejoin->term = adopted->term;
    drop_reports(rejoin, adopted->saved);
    bool all = put_kept(channel, rejoin->sums);
    for (uint32_t i = 0; i < rejoin->num_reports; i++)
        all &= put_kept(channel, rejoin->reports[i]);
    all &= put_unacknowledged(&old, channel);
    all &= put_kept(channel, rejoin->finished) &&
           put_kept(channel, rejoin->interrupted);
    channel_close(&old);
    return all;
}
