/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/collective/gloo_thread.h"

#include <gloo/common/error.h>
#include <gloo/common/logging.h>

#include <atomic>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <unistd.h>

/* A process has one terminate handler, so this state is global. */
static std::atomic<bool> stopped;
static std::terminate_handler before;
static thread_local int calls_of_ours;

static bool is_gloo_thread(const std::exception_ptr &thrown) {
    if (!thrown || calls_of_ours)
        return false;
    try {
        std::rethrow_exception(thrown);
    } catch (const gloo::EnforceNotMet &) {
        return true;
    } catch (const gloo::Exception &) {
        return true;
    } catch (...) {
        return false;
    }
}

static void park_thread() {
    if (is_gloo_thread(std::current_exception())) {
        stopped.store(true);
        for (;;)
            pause();
    }
    if (before)
        before();
    abort();
}

void gloo_thread_guard() noexcept {
    static std::once_flag once;
    std::call_once(once, [] { before = std::set_terminate(park_thread); });
}

bool gloo_thread_stopped() noexcept {
    return stopped.load();
}

gloo_thread_own_code::gloo_thread_own_code() noexcept {
    calls_of_ours++;
}

gloo_thread_own_code::~gloo_thread_own_code() noexcept {
    calls_of_ours--;
}
