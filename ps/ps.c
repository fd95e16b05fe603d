/* SPDX-License-Identifier: Apache-2.0 */
/* One thread takes turns: frames alone, for a millisecond, while they keep
 * coming; then all else. Who sends more than copies have room for waits.
 *
 * Two links: the data link, bound here, that trainers and callers come to, and
 * the member's, to the chief. What the chief orders is in ps_orders.c; what
 * trainers want, in service.c; cuts, in cutter.c. Each says by a status when
 * the run cannot go on, and the turn ends with it: nobody else may end a ps but
 * the chief's stop and a signal. */
#include "ps/ps.h"

#include "proto/base/time.h"
#include "ps/ps_parts.h"

#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { RECEIVE_FRAMES = 1032, FRAMES_A_TURN = 64 };
/* Trainers connect when a view lists them, and then speak at once. */
static const int64_t SPOKEN_WITHIN = 30 * TIME_S;

static enum status open_links(struct ps *ps, struct failure *why) {
    const struct ps_settings *settings = ps->settings;
    struct link_settings link = {.max_frame = MESSAGE_MAX_PAYLOAD,
                                 .receive_frames = RECEIVE_FRAMES,
                                 .linger_ms = 0};
    enum status status =
        link_open(&ps->link, settings->zmq, LINK_SERVER, &link, why);
    if (status)
        return status;
    if (settings->inside)
        status = link_bind_inside(ps->link, settings->inside, why);
    if (!status && settings->self)
        status = link_bind(ps->link, settings->self->port, why);
    if (status)
        return status;
    link_admit_within(ps->link, SPOKEN_WITHIN);
    ps->calls =
        (struct call_guard){.cluster = settings->callers, .log = settings->log};
    ps->lane = settings->lanes ? message_random() : 0;
    struct member_settings member = {
        .zmq = settings->zmq,
        .log = settings->log,
        .role = CLUSTER_PS,
        .lane = ps->lane,
        .index = settings->index,
        .port = link_port(ps->link),
        .host = settings->self ? settings->self->host : NULL,
        .device = "cpu",
        .chief_inside = settings->chief_inside,
        .chief = settings->chief,
        .chief_ports = settings->chief_ports,
        .key = settings->key,
        .size = settings->size,
        .join_timeout = settings->join_timeout,
        .record = settings->record,
    };
    return member_open(&ps->member, &member, why);
}

static void close_all(struct ps *ps) {
    call_guard_close(&ps->calls);
    cutter_close(&ps->cutter);
    filler_close(&ps->filler);
    service_close(&ps->service);
    plan_close(&ps->plan);
    job_free(&ps->job);
    member_close(&ps->member);
    link_close(&ps->link);
    free(ps->ids);
}

static void tell_ready(struct ps *ps) {
    Capstan__Ready ready = CAPSTAN__READY__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    ready.shares_folder = cutter_shares_folder(ps->cutter);
    control.body_case = CAPSTAN__CONTROL__BODY_READY;
    control.ready = &ready;
    member_tell(ps->member, &control);
}

static void offer_lane(struct ps *ps) {
    struct failure why;
    if (ps->lane && link_offer_lane(ps->link, ps->lane, &why))
        log_info(ps->settings->log, "%s", why.text);
}

/* Ready is told once, when the blocks are filled: the first view, with which
 * training begins, comes after it. */
static enum status await_weights(struct ps *ps, struct failure *why) {
    enum status status;
    if (!filler_done(ps->filler, &status, why))
        return STATUS_OK;
    filler_close(&ps->filler);
    if (status)
        return status;
    ps->told = ps->plan->rounds.start;
    offer_lane(ps);
    tell_ready(ps);
    return STATUS_OK;
}

static enum status obey_all(struct ps *ps, struct failure *why) {
    const Capstan__Control *order;
    enum status status;
    do {
        status = member_receive(ps->member, time_now(), &order, why);
        if (!status && order)
            status = ps_obey(ps, order, why);
    } while (!status && order && !ps->stopped);
    return status;
}

/* A chief calls, or a worker asks who it is: also before the run. */
static bool introduce(struct ps *ps, struct link_frame *frame,
                      const Capstan__DataHeader *header) {
    if (header->kind == CAPSTAN__DATA_HEADER__KIND__CALL) {
        if (!member_joined(ps->member))
            call_guard_take(&ps->calls, ps->link, frame, header->text);
        return true;
    }
    if (header->kind != CAPSTAN__DATA_HEADER__KIND__WHO)
        return false;
    char address[300];
    if (!member_chief_address(ps->member, address, sizeof address))
        return true;
    Capstan__DataHeader answer = CAPSTAN__DATA_HEADER__INIT;
    unsigned char space[1024];
    answer.kind = CAPSTAN__DATA_HEADER__KIND__CALL;
    answer.text = address;
    size_t bytes = message_write_data(&answer, space);
    link_answer(ps->link, frame->peer, space, bytes);
    return true;
}

/* Before there is a view nobody trains, and nobody is disturbed. */
static void send_back(struct ps *ps, const struct link_frame *frame,
                      const Capstan__DataHeader *header) {
    struct link_payload payload;
    Capstan__DataHeader answer = CAPSTAN__DATA_HEADER__INIT;
    unsigned char space[256];
    size_t size = frame->payload.size;
    if (!ps->service || header->run != member_run(ps->member) ||
        exchange_gate(service_exchange(ps->service))->view ||
        size > MESSAGE_GROUP_BYTES || !size ||
        !link_reserve(ps->link, frame->peer, &payload, size))
        return;
    memcpy(link_reserved(&payload), frame->payload.data, size);
    answer.kind = CAPSTAN__DATA_HEADER__KIND__PROBED;
    answer.run = header->run;
    answer.incarnation = member_incarnation(ps->member);
    answer.seq = header->seq;
    size_t bytes = message_write_data(&answer, space);
    link_commit(ps->link, frame->peer, space, bytes, &payload);
}

/* What cannot be read costs its sender the connection, and one line. */
static enum status serve_frame(struct ps *ps, struct link_frame *frame,
                               struct failure *why) {
    struct failure bad;
    Capstan__DataHeader *header;
    if (message_read_data(&header, &ps->arena, frame->header.data,
                          frame->header.size, &bad)) {
        if (link_may_say(ps->link, bad.text))
            log_warning(ps->settings->log,
                        "a peer sent %s; its connection is not read any more",
                        bad.text);
        link_ban(ps->link, frame->peer);
        link_release(frame);
        return STATUS_OK;
    }
    bool probe = header->kind == CAPSTAN__DATA_HEADER__KIND__PROBE;
    if (probe)
        send_back(ps, frame, header);
    if (probe || introduce(ps, frame, header) || !ps->service) {
        link_release(frame);
        return STATUS_OK;
    }
    return service_handle(ps->service, frame, header, why);
}

static bool holds_first_block(const struct ps *ps) {
    return ps->num_blocks && ps->ids[0] == 0;
}

static void fill_beat(struct ps *ps) {
    Capstan__Beat *beat = member_beat(ps->member);
    if (!ps->service)
        return;
    beat->clock = exchange_highest(service_exchange(ps->service));
    beat->update_s = service_update_seconds(ps->service);
    if (holds_first_block(ps))
        beat->global_step = exchange_version(service_exchange(ps->service), 0);
}

/* With staleness the chief orders what is due by step when it hears of the
 * step: at once, as a heartbeat's time is many steps. */
static void tell_step(struct ps *ps) {
    if (!ps->service || ps->job->staleness == 0 || !holds_first_block(ps))
        return;
    uint64_t step = exchange_version(service_exchange(ps->service), 0);
    if (!rounds_passed(&ps->plan->rounds, ps->told, step))
        return;
    ps->told = step;
    fill_beat(ps);
    member_beat_now(ps->member);
}

static enum status serve(struct ps *ps, struct failure *why) {
    struct link_frame frame;
    char text[128];
    enum status status = STATUS_OK;
    ps->busy = false;
    for (int i = 0; !status && i < FRAMES_A_TURN; i++) {
        if (!link_view(ps->link, &frame))
            break;
        ps->busy = true;
        status = serve_frame(ps, &frame, why);
        tell_step(ps);
    }
    if (ps->service)
        service_flush(ps->service);
    while (link_stranger(ps->link, text, sizeof text))
        log_warning(ps->settings->log, "a stranger on port %u %s",
                    link_port(ps->link), text);
    return status;
}

static void tell_left(struct ps *ps, enum status status, const char *text) {
    Capstan__Left left = CAPSTAN__LEFT__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    left.goodbye = true;
    left.status = status;
    left.text = (char *)text;
    control.body_case = CAPSTAN__CONTROL__BODY_LEFT;
    control.left = &left;
    member_tell(ps->member, &control);
}

/* A signal: the chief is told and sees to the checkpoint; a second one ends
 * this ps at once. */
static enum status interrupt(struct ps *ps, struct failure *why) {
    eventfd_t number = 0;
    if (eventfd_read(ps->settings->interrupts, &number))
        return STATUS_OK;
    enum status status = status_of_signal((int)number);
    if (ps->interrupted || !ps->plan) {
        status_fail(why, status, "ended by signal %d", (int)number);
        return status_heard(why);
    }
    ps->interrupted = status;
    log_info(ps->settings->log, "signal %d: asking the chief for a checkpoint",
             (int)number);
    tell_left(ps, status, "");
    return STATUS_OK;
}

/* Frames may go before everything else, a millisecond long. With threads of its
 * own a ps has their work to collect as well; over lanes it has to ring before
 * it looks. */
static bool goes_on(struct ps *ps) {
    return ps->service && service_descriptor(ps->service) < 0 &&
           ((ps->busy && !link_has_lanes(ps->link)) ||
            link_linger(&ps->link, 1)) &&
           time_now() - ps->polled < TIME_MS;
}

static enum status turn(struct ps *ps, struct failure *why) {
    bool paused = ps->cutter && cutter_full(ps->cutter);
    enum { OWN = 5 };
    if (!paused && goes_on(ps))
        return serve(ps, why);
    zmq_pollitem_t items[OWN + LINK_POLL_ITEMS] = {
        {member_socket(ps->member), 0, ZMQ_POLLIN, 0},
        {NULL, ps->settings->interrupts, ZMQ_POLLIN, 0},
        {NULL, ps->cutter ? cutter_descriptor(ps->cutter) : -1, ZMQ_POLLIN, 0},
        {NULL, ps->filler ? filler_descriptor(ps->filler) : -1, ZMQ_POLLIN, 0},
        {NULL, ps->service ? service_descriptor(ps->service) : -1, ZMQ_POLLIN,
         0},
    };
    int64_t deadline = member_deadline(ps->member);
    int count = OWN + link_poll_items(ps->link, items + OWN);
    if (paused) {
        deadline = time_now() + 2 * TIME_MS;
        count = OWN;
    }
    zmq_poll(items, count, time_poll_ms(time_now(), deadline));
    ps->polled = time_now();
    fill_beat(ps);
    enum status status = member_step(ps->member, time_now(), why);
    if (!status)
        status = obey_all(ps, why);
    if (!status && items[1].revents)
        status = interrupt(ps, why);
    if (!status && ps->cutter)
        status = cutter_step(ps->cutter, why);
    if (!status && ps->filler)
        status = await_weights(ps, why);
    if (!status && items[4].revents)
        status = service_collect(ps->service, why);
    if (!status && !paused && !ps->stopped)
        status = serve(ps, why);
    char address[300];
    if (call_guard_step(&ps->calls, ps->link, address, sizeof address))
        member_called(ps->member, address);
    return status;
}

enum status ps_run(const struct ps_settings *settings, struct failure *why) {
    struct ps *ps = calloc(1, sizeof *ps);
    if (!ps)
        return status_fail(why, STATUS_RETRY, "no memory for a ps");
    ps->settings = settings;
    enum status status = open_links(ps, why);
    if (!status && settings->self)
        log_info(settings->log, "listening on port %u", link_port(ps->link));
    while (!status && !ps->stopped)
        status = turn(ps, why);
    if (ps->interrupted && (status == STATUS_OK || ps->stopped)) {
        status_fail(why, ps->interrupted, "ended by a signal");
        status = status_heard(why);
    } else if (status && !ps->stopped && ps->member &&
               member_joined(ps->member)) {
        tell_left(ps, status, why->text);
        member_bye(ps->member);
    }
    close_all(ps);
    free(ps);
    return status;
}
