/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses in cluster descriptions: "host:port" and "[v6]:port". */
#ifndef CAPSTAN_ADDRESS_H
#define CAPSTAN_ADDRESS_H

#include "core/base/status.h"
#include "proto/cluster/cluster.h"

/* Reads the host and port of TASK from TEXT, found at LOCATION ("cluster.ps[0]
 * of TF_CONFIG"). An empty host means localhost. Port 0 is accepted: the caller
 * warns. Names are not resolved. Errors: bad_host, bad_port. */
enum status address_parse(struct cluster_task *task, const char *text,
                          const char *location, struct failure *why) MUST_CHECK;

/* Reads where a server listens: "PORT", of 127.0.0.1, or "ADDRESS:PORT". PORT
 * may be 0. False: TEXT is neither. */
bool address_parse_listener(struct cluster_task *task, const char *text);

#endif
