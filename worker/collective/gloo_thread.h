/* SPDX-License-Identifier: Apache-2.0 */
/* Gloo's own threads throw when a connection to a listening address is reset
 * before it has said anything (Gloo of 2023: read, then getpeername), and an
 * exception that leaves a thread ends the process. Anybody can reset a
 * connection: a rank that dies as ranks meet, or a stranger. */
#ifndef CAPSTAN_GLOO_THREAD_H
#define CAPSTAN_GLOO_THREAD_H

/* From now on a thread of Gloo's that would end the process so stops where it
 * is instead. Lines that are connected go on; nobody is met through it any
 * more, no last words are heard, and what belongs to it must not be freed, as
 * Gloo would wait for it. Once in a process; any thread may call it. */
void gloo_thread_guard() noexcept;

/* A thread of Gloo's has stopped in this process. */
bool gloo_thread_stopped() noexcept;

/* While one lives, this thread runs our own code: what leaves that is no fault
 * of a peer's and ends the process. */
class gloo_thread_own_code {
  public:
    gloo_thread_own_code() noexcept;
    ~gloo_thread_own_code() noexcept;
};

#endif
