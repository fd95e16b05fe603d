/* SPDX-License-Identifier: Apache-2.0 */
/* How the ranks of all-reduce find each other: what one tells under a key, all
 * get, through the chief. Two threads: the reducer's sets and gets, the
 * communication thread moves the words. */
#ifndef CAPSTAN_MEETING_H
#define CAPSTAN_MEETING_H

#include "proto/base/status.h"
#include "proto/net/messages/control.pb-c.h"
#include "worker/collective/collective.h"

#include <stdint.h>

enum { MEETING_MAX_KEY = 255, MEETING_MAX_VALUE = 1 << 20 };

struct meeting;

/* Tells the chief CONTROL: member_tell, or a test's. */
typedef void meeting_tell(void *context, Capstan__Control *control);

/* TELL is called with CONTEXT on the communication thread. STATUS_RETRY: no
 * memory, or no descriptor. */
enum status meeting_open(struct meeting **out, meeting_tell *tell,
                         void *context, struct failure *why) MUST_CHECK;

/* Clears *MEETING (may be NULL); nobody waits in it any more. */
void meeting_close(struct meeting **meeting);

/* For collective_settings; a view. */
const struct collective_store *meeting_store(const struct meeting *meeting);

/* Ends every wait, for good; any thread. */
void meeting_cancel(struct meeting *meeting);

/* Communication thread: the chief passes on what a rank has told. */
enum status meeting_take(struct meeting *meeting,
                         const Capstan__Meeting *message,
                         struct failure *why) MUST_CHECK;

/* Communication thread: tells the chief what was set here. */
void meeting_step(struct meeting *meeting);

/* Polls readable when meeting_step has something to tell. */
int meeting_descriptor(const struct meeting *meeting);

#endif
