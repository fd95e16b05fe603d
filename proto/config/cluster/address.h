/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses as descriptions write them: "host:port", "[v6]:port". */
#ifndef CAPSTAN_ADDRESS_H
#define CAPSTAN_ADDRESS_H

#include "proto/base/status.h"
#include "proto/config/cluster/cluster.h"

/* Fills host and port of TASK from TEXT, found at PLACE ("cluster.ps[0] of
 * TF_CONFIG"). An empty host is localhost. Port 0 passes: the caller warns.
 * Names are not resolved. Errors are bad_host and bad_port. */
enum status address_parse(struct cluster_task *task, const char *text,
                          const char *location, struct failure *why) MUST_CHECK;

#endif
