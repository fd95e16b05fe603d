/* SPDX-License-Identifier: Apache-2.0 */
/* Rendezvous of the trainers: a key-value store through the chief. A
 * value that one rank sets reaches all ranks. Two threads: the reducer's thread
 * sets and gets; the communication thread moves the values. */
#ifndef CAPSTAN_RENDEZVOUS_H
#define CAPSTAN_RENDEZVOUS_H

#include "core/base/status.h"
#include "proto/messages/control.pb-c.h"
#include "worker/collective/collective.h"

#include <stdint.h>

enum { RENDEZVOUS_MAX_KEY = 255, RENDEZVOUS_MAX_VALUE = 1 << 20 };

struct rendezvous;

/* Sends CONTROL to the chief: control_client_send_reliable, or a test's
 * function. */
typedef void rendezvous_send(void *context, Capstan__Control *control);

/* SEND_MESSAGE is called with CONTEXT on the communication thread.
 * STATUS_RETRY: no memory, or no descriptor. */
enum status rendezvous_open(struct rendezvous **out,
                            rendezvous_send *send_message, void *context,
                            struct failure *why) MUST_CHECK;

/* Clears *RENDEZVOUS (may be NULL); no thread may wait in it. */
void rendezvous_close(struct rendezvous **rendezvous);

/* For collective_settings; a view. */
const struct collective_store *rendezvous_store(
    const struct rendezvous *rendezvous);

/* Ends current and future waits; any thread. */
void rendezvous_cancel(struct rendezvous *rendezvous);

/* Communication thread: stores a value that the chief forwards. */
enum status rendezvous_receive(struct rendezvous *rendezvous,
                               const Capstan__Rendezvous *message,
                               struct failure *why) MUST_CHECK;

/* Communication thread: sends the values set here to the chief. */
void rendezvous_step(struct rendezvous *rendezvous);

/* Polls readable when rendezvous_step has values to send. */
int rendezvous_descriptor(const struct rendezvous *rendezvous);

#endif
