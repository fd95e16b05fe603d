/* Very many small requests, and what the ps keeps of them: nothing. */
#ifndef CAPSTAN_ENDURE_H
#define CAPSTAN_ENDURE_H

#include "proto/base/status.h"
#include "proto/math/layout.h"
#include "worker/stream.h"

#include <jansson.h>
#include <stdatomic.h>
#include <stdint.h>

/* Pushes the first parameter of LAYOUT REQUESTS times, one a message, through
 * STREAM. PS_PIDS: process numbers of the ps on this machine, separated by
 * commas, whose resident memory is told; NULL: they are elsewhere. STOP ends it
 * early. *OUT is the object, the caller's. */
enum status endure_run(json_t **out, struct stream *stream,
                       const struct layout *layout, uint64_t requests,
                       const char *ps_pids, const atomic_bool *stop,
                       struct failure *why) MUST_CHECK;

#endif
