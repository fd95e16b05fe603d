/* SPDX-License-Identifier: Apache-2.0 */
/* Serves over HTTP what the roles of a process tell of themselves
 * (core/base/health.h): /healthz for probes, /status as JSON, a page that shows
 * them at /, and what it draws at /points. One thread with libmicrohttpd. */
#ifndef CAPSTAN_STATUS_SERVER_H
#define CAPSTAN_STATUS_SERVER_H

#include "chief/report/page_points.h"
#include "commands/composition.h"
#include "core/base/health.h"
#include "core/base/status.h"
#include "proto/cluster/cluster.h"

struct status_server;

/* Serves HEALTHS[COUNT] (borrowed; the first names the process) and POINTS
 * (likewise; NULL: no role has any) at ADDRESS. STATUS_CONFIG if it cannot
 * listen there; WHY names the flag. */
enum status status_server_open(struct status_server **out,
                               const struct cluster_task *address,
                               struct health *const *healths, unsigned count,
                               struct page_points *points,
                               struct failure *why) MUST_CHECK;

/* Ends the thread and clears *SERVER (may be NULL). */
void status_server_close(struct status_server **server);

#endif
