/* SPDX-License-Identifier: Apache-2.0 */
/* collective_fixture_ops as a collective that joins a stream of a fake device
 * (fake_streams.h): a call is made when it is the stream's turn, by the thread
 * that works there then. Without a stream it is the other itself. */
#ifndef CAPSTAN_STREAM_COLLECTIVE_H
#define CAPSTAN_STREAM_COLLECTIVE_H

#include "worker/collective/collective.h"

extern const struct collective_ops stream_collective_ops;

#endif
