/* SPDX-License-Identifier: Apache-2.0 */
/* Gloo's own threads throw if a connection to a listening address is reset
 * before it has sent anything (Gloo of 2023: read, then getpeername), and an
 * exception that leaves a thread ends the process. Any peer can reset a
 * connection: a rank that dies during the rendezvous, or an unknown peer. */
#ifndef CAPSTAN_GLOO_THREAD_H
#define CAPSTAN_GLOO_THREAD_H

/* From now on a thread of Gloo's that would end the process stops instead.
 * Connected data connections continue; no further rank connects through the
 * thread, no verdicts are received, and its objects must not be freed, as Gloo
 * would wait for it. Once per process; any thread may call it. */
void gloo_thread_guard() noexcept;

/* True if a thread of Gloo's has stopped in this process. */
bool gloo_thread_stopped() noexcept;

/* While one exists, this thread runs Capstan's own code: an exception that
 * leaves it is not a peer's fault and ends the process. */
class gloo_thread_own_code {
  public:
    gloo_thread_own_code() noexcept;
    ~gloo_thread_own_code() noexcept;
};

#endif
