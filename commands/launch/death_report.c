/* SPDX-License-Identifier: Apache-2.0 */
#include "commands/launch/death_report.h"

#include "core/base/secret_file.h"
#include "core/base/time.h"
#include "core/net/link/link.h"
#include "proto/cluster/cluster.h"
#include "proto/messages/launch_record.h"
#include "proto/messages/message.h"

#include <stdlib.h>
#include <sys/prctl.h>

static const int64_t FLUSH_TIMEOUT = 2 * TIME_S;

static enum status death_report_open_keys(struct death_report *report,
                                          struct failure *why) {
    const char *named = getenv(SECRET_FILE_VARIABLE);
    const char *path = named ? named : getenv(SECRET_OWN_VARIABLE);
    struct link_party self = {DEATH_REPORT_ROLE, 0};
    struct link_keys_settings settings = {
        .roles = {{cluster_role_name(CLUSTER_CHIEF), 0, 1}}, .client = self};
    unsigned char *secret = NULL;
    if (!path || report->keys)
        return STATUS_OK;
    if (named) /* else its processes open the secret of this one */
        prctl(PR_SET_DUMPABLE, 0);
    enum status status =
        secret_file_read(&secret, path, SECRET_FILE_VARIABLE, why);
    if (!status)
        status = link_keys_open(&report->keys, secret, &settings, why);
    secret_file_forget(&secret);
    return status;
}

/* Unlike other links, a launcher does not wait for the connection. */
static enum status death_report_open_link(struct death_report *report,
                                          struct failure *why) {
    enum status status = death_report_open_keys(report, why);
    struct link_settings settings = {.max_frame = MESSAGE_MAX_CONTROL,
                                     .keys = report->keys,
                                     .party = cluster_party(CLUSTER_CHIEF, 0)};
    int at_once = 0;
    if (status)
        return status;
    report->zmq = report->zmq ? report->zmq : zmq_ctx_new();
    if (!report->zmq)
        return status_fail(why, FAILURE_SYSTEM_REFUSED, "cannot start ZeroMQ");
    status = link_open(&report->link, report->zmq, LINK_CLIENT, &settings, why);
    if (!status)
        zmq_setsockopt(link_socket(report->link), ZMQ_IMMEDIATE, &at_once,
                       sizeof at_once);
    return status;
}

/* The child's own key proves that the sender is its launcher. */
static bool death_report_send_one(struct link *link,
                                  const struct launch_record *record,
                                  int wait_status, bool last) {
    Capstan__ExitReport report = CAPSTAN__EXIT_REPORT__INIT;
    Capstan__Control control = CAPSTAN__CONTROL__INIT;
    uint8_t bytes[256];
    report.wait_status = (uint32_t)wait_status;
    report.key = record->key;
    report.last = last;
    control.version = MESSAGE_VERSION;
    control.run = record->run;
    control.incarnation = record->incarnation;
    control.body_case = CAPSTAN__CONTROL__BODY_EXIT_REPORT;
    control.exit_report = &report;
    size_t size = capstan__control__pack(&control, bytes);
    return link_commit(link, 0, bytes, size, NULL);
}

bool death_report_send(struct death_report *report, int file, int wait_status,
                       bool last, const struct log *log) {
    struct launch_record record;
    struct failure why;
    enum status status = STATUS_OK;
    if (!launch_record_read(file, &record))
        return false;
    if (!report->link)
        status = death_report_open_link(report, &why);
    if (!status)
        status = link_connect(report->link, record.chief, &why);
    if (status)
        log_warning(log, "death_not_reported",
                    "the chief cannot be notified: %s", why.text);
    bool sent = !status &&
                death_report_send_one(report->link, &record, wait_status, last);
    report->unacknowledged += sent;
    return sent;
}

void death_report_flush(struct death_report *report) {
    int64_t deadline = time_now() + FLUSH_TIMEOUT, now;
    struct link_frame frame;
    while (report->unacknowledged && (now = time_now()) < deadline) {
        zmq_pollitem_t item = {link_socket(report->link), 0, ZMQ_POLLIN, 0};
        zmq_poll(&item, 1, time_poll_ms(now, deadline));
        while (report->unacknowledged && link_view(report->link, &frame)) {
            link_release(&frame); /* each reply confirms one report */
            report->unacknowledged--;
        }
    }
}

void death_report_close(struct death_report *report) {
    link_close(&report->link);
    if (report->zmq)
        zmq_ctx_term(report->zmq);
    report->zmq = NULL;
    link_keys_close(&report->keys);
}
