/* SPDX-License-Identifier: Apache-2.0 */
/* How the ranks of all-reduce find each other: what one tells under a key, all
 * get, through the chief. Two threads: the reducer's sets and gets, the
 * communication thread moves the words. */
#ifndef CAPSTAN_RENDEZVOUS_H
#define CAPSTAN_RENDEZVOUS_H

#include "proto/base/status.h"
#include "proto/net/messages/control.pb-c.h"
#include "worker/collective/collective.h"

#include <stdint.h>

enum { RENDEZVOUS_MAX_KEY = 255, RENDEZVOUS_MAX_VALUE = 1 << 20 };

struct rendezvous;

/* Tells the chief CONTROL: control_client_send_reliable, or a test's. */
typedef void rendezvous_send(void *context, Capstan__Control *control);

/* TELL is called with CONTEXT on the communication thread. STATUS_RETRY: no
 * memory, or no descriptor. */
enum status rendezvous_open(struct rendezvous **out,
                            rendezvous_send *send_message, void *context,
                            struct failure *why) MUST_CHECK;

/* Clears *MEETING (may be NULL); nobody waits in it any more. */
void rendezvous_close(struct rendezvous **rendezvous);

/* For collective_settings; a view. */
const struct collective_store *rendezvous_store(
    const struct rendezvous *rendezvous);

/* Ends every wait, for good; any thread. */
void rendezvous_cancel(struct rendezvous *rendezvous);

/* Communication thread: the chief passes on what a rank has told. */
enum status rendezvous_receive(struct rendezvous *rendezvous,
                               const Capstan__Rendezvous *message,
                               struct failure *why) MUST_CHECK;

/* Communication thread: tells the chief what was set here. */
void rendezvous_step(struct rendezvous *rendezvous);

/* Polls readable when rendezvous_step has something to tell. */
int rendezvous_descriptor(const struct rendezvous *rendezvous);

#endif
