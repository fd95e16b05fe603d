#include "worker/gloo_group.h"

extern "C" {
#include "proto/base/time.h"
}
#include "worker/gloo_address.h"
#include "worker/gloo_thread.h"

#include <gloo/transport/context.h>
#include <gloo/transport/pair.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

using std::chrono::duration;
using std::chrono::duration_cast;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

/* Who has been heard to fail, or has gone, is named within this. */
static constexpr auto GRACE = seconds(1);
/* Seconds in which who has told where it is has to answer there. */
static constexpr double CONNECT_SECONDS = 10;
enum : uint64_t { SLOT_LAST, SLOT_PROBE };

static size_t place(const void *bytes) {
    return reinterpret_cast<uintptr_t>(bytes);
}

/* A wait ended without what was awaited. */
struct wait_ended : std::exception {
    const char *what() const noexcept override {
        return "the wait was ended";
    }
};

static void watch(struct gloo_group *group) {
    gloo_thread_ours ours;
    int64_t longest = time_from_seconds(group->timeout);
    std::unique_lock<std::mutex> lock(group->mutex);
    while (!group->closed) {
        int64_t now = time_now(), deadline = group->deadline.load();
        if (deadline <= now) {
            if (group->deadline.compare_exchange_strong(deadline, TIME_NEVER)) {
                group->late.store(true);
                gloo_lines_cut(&group->lines);
            }
            continue;
        }
        int64_t rest = deadline == TIME_NEVER ? longest : deadline - now;
        group->closing.wait_for(lock, nanoseconds(rest));
    }
}

void gloo_group_begin(struct gloo_group *group, void *data, size_t bytes) {
    if (group->aborted.load() || group->failed)
        throw wait_ended();
    group->waiting_for = GLOO_NOBODY;
    gloo_lines_begin(&group->lines, data, bytes);
    group->deadline.store(time_now() + time_from_seconds(group->timeout));
}

void gloo_group_send(struct gloo_group *group, uint32_t to, const void *bytes,
                     size_t size, enum gloo_goal goal) {
    group->waiting_for = to;
    gloo_lines_send(&group->lines, to, bytes, size, goal);
}

void gloo_group_receive(struct gloo_group *group, uint32_t from,
                        enum gloo_goal goal) {
    group->waiting_for = from;
    gloo_lines_receive(&group->lines, from, goal);
}

/* Who is cut in the last moment fails in the next call. */
void gloo_group_end(struct gloo_group *group) {
    group->deadline.store(TIME_NEVER);
}

/* Written by Gloo's thread before it completes what is waited for. */
static bool has_said(const gloo_word *word) {
    return *static_cast<const volatile uint32_t *>(&word->said) != 0;
}

/* Tells all others; a goodbye blames nobody. */
static void tell(struct gloo_group *group, uint32_t blamed, bool certain) {
    group->own_word = {1, blamed, certain, group->late.load()};
    for (uint32_t i = 0; i < group->size; i++) {
        if (i == group->rank)
            continue;
        try {
            group->last[i]->send((int)i, SLOT_LAST, place(&group->own_word),
                                 sizeof group->own_word);
        } catch (const std::exception &) {
            /* gone as well */
        }
    }
}

/* Ends a wait for BUFFER at UNTIL. Gloo's own limit would end all connections
 * beside this one, and nobody would be told anything any more. */
class alarm_clock {
  public:
    alarm_clock(gloo::transport::UnboundBuffer *buffer,
                gloo_group::clock::time_point until)
        : ringer([=] {
              std::unique_lock<std::mutex> lock(mutex);
              if (!changed.wait_until(lock, until, [=] { return off; }))
                  buffer->abortWaitRecv();
          }) {
    }
    ~alarm_clock() {
        {
            std::lock_guard<std::mutex> lock(mutex);
            off = true;
        }
        changed.notify_all();
        ringer.join();
    }

  private:
    std::mutex mutex;
    std::condition_variable changed;
    bool off = false;
    std::thread ringer; /* the last: it uses the others */
};

/* Waits for the last word of RANK until UNTIL; false: it says nothing. */
static bool hear(struct gloo_group *group, uint32_t rank,
                 gloo_group::clock::time_point until) {
    gloo::transport::UnboundBuffer *buffer = group->last[rank].get();
    if (has_said(&group->words[rank]))
        return true;
    try {
        alarm_clock alarm(buffer, until);
        buffer->waitRecv(nullptr, std::chrono::hours(24));
    } catch (const std::exception &) {
        /* it is gone */
    }
    return has_said(&group->words[rank]);
}

/* Is the connection to RANK lost? Announces a message of no bytes, which is
 * never asked for. */
static bool is_cut(struct gloo_group *group, uint32_t rank) {
    try {
        group->probe->send((int)rank, SLOT_PROBE, 0, 0);
        return false;
    } catch (const std::exception &) {
        return true;
    }
}

/* Who was lost without a word; whom this rank was waiting for above all. */
static uint32_t find_lost(struct gloo_group *group) {
    uint32_t lost = GLOO_NOBODY;
    for (uint32_t i = 0; i < group->size; i++)
        if (i != group->rank && is_cut(group, i) && !has_said(&group->words[i]))
            if (lost == GLOO_NOBODY || i == group->waiting_for)
                lost = i;
    return lost;
}

/* It came over the wire: any other number than a rank's blames nobody. */
static uint32_t blamed_by(const struct gloo_group *group,
                          const gloo_word *word) {
    return word->blamed < group->size ? word->blamed : GLOO_NOBODY;
}

static uint32_t told_lost(const struct gloo_group *group) {
    for (const gloo_word &word : group->words)
        if (has_said(&word) && word.certain &&
            blamed_by(group, &word) != GLOO_NOBODY)
            return word.blamed;
    return GLOO_NOBODY;
}

/* Who is at fault without a word of his own, and who says so. */
struct verdict {
    uint32_t culprit, witness;
    bool late; /* the witness's time was over, else its line had ended */
};

/* Along the chain of who waits for whom, who has nothing to say himself. */
static struct verdict find_silent(struct gloo_group *group) {
    auto until = gloo_group::clock::now() + GRACE;
    struct verdict found = {group->waiting_for, group->rank,
                            group->late.load()};
    for (uint32_t hops = 0; hops < group->size; hops++) {
        if (found.culprit == group->rank || found.culprit == GLOO_NOBODY ||
            !hear(group, found.culprit, until))
            break;
        const gloo_word *word = &group->words[found.culprit];
        uint32_t next = blamed_by(group, word);
        if (next == GLOO_NOBODY)
            break;
        found = {next, found.culprit, word->late != 0};
    }
    return found;
}

/* Gloo begins its texts with "[file:line] ". */
static std::string plain_text(const std::exception &error) {
    std::string text = error.what();
    size_t end = text.find("] ");
    if (!text.empty() && text[0] == '[' && end != std::string::npos)
        text.erase(0, end + 2);
    return text;
}

/* Two that blame each other both live, so it is what lies between them. */
static enum status tell_mutual(const struct gloo_group *group,
                               const struct verdict *found,
                               const std::string &cause, struct failure *why) {
    if (found->late)
        return status_fail(why, STATUS_RETRY,
                           "rank %u and this rank have waited for each other "
                           "for %.3g s",
                           found->witness, group->timeout);
    return status_fail(why, STATUS_RETRY,
                       "rank %u has lost its connection to this rank: %s",
                       found->witness, cause.c_str());
}

/* Time that is over and a connection that is lost are told apart: what they
 * ask for is not the same. */
static enum status tell_silent(const struct gloo_group *group,
                               const struct verdict *found,
                               const std::string &cause, struct failure *why) {
    char witness[48] = "";
    uint32_t culprit = found->culprit;
    if (culprit == GLOO_NOBODY)
        return status_fail(why, STATUS_RETRY, "collective: %s", cause.c_str());
    if (culprit == group->rank)
        return tell_mutual(group, found, cause, why);
    if (found->witness != group->rank)
        snprintf(witness, sizeof witness, ", as rank %u says", found->witness);
    if (has_said(&group->words[culprit]) &&
        blamed_by(group, &group->words[culprit]) == GLOO_NOBODY)
        return status_fail(why, STATUS_RETRY, "rank %u has left the others",
                           culprit);
    if (found->late)
        return status_fail(why, STATUS_RETRY,
                           "rank %u did not come to the collective within %.3g "
                           "s%s",
                           culprit, group->timeout, witness);
    return status_fail(why, STATUS_RETRY, "rank %u was lost%s%s", culprit,
                       *witness ? witness : ": ",
                       *witness ? "" : cause.c_str());
}

/* CAUSE is what Gloo says, which after a cut of one's own is that cut. */
static enum status fail_with(struct gloo_group *group, const std::string &cause,
                             struct failure *why) {
    if (group->failed)
        return status_fail(why, STATUS_RETRY,
                           "the collective has failed before");
    group->failed = true;
    group->deadline.store(TIME_NEVER);
    if (group->aborted.load())
        return status_fail(why, STATUS_RETRY,
                           "the collective was ended by this rank itself");
    /* A line that ends here has ended for who says why, or for a lost one. */
    if (!group->late.load() && group->waiting_for != GLOO_NOBODY)
        hear(group, group->waiting_for, gloo_group::clock::now() + GRACE);
    uint32_t lost = find_lost(group);
    bool certain = lost != GLOO_NOBODY;
    tell(group, certain ? lost : group->waiting_for, certain);
    gloo_lines_cut(&group->lines);
    if (certain && group->late.load())
        return status_fail(why, STATUS_RETRY,
                           "rank %u was lost: its connections have ended",
                           lost);
    if (certain)
        return status_fail(why, STATUS_RETRY, "rank %u was lost: %s", lost,
                           cause.c_str());
    struct verdict found = find_silent(group);
    lost = told_lost(group);
    if (lost != GLOO_NOBODY)
        return status_fail(why, STATUS_RETRY,
                           "rank %u was lost, as another rank says", lost);
    return tell_silent(group, &found, cause, why);
}

/* Before all are connected there is nobody to ask. */
static enum status fail_to_connect(struct gloo_group *group,
                                   const std::string &cause,
                                   struct failure *why) {
    if (group->waiting_for == GLOO_NOBODY)
        return status_fail(why, STATUS_RETRY, "rank %u cannot be reached: %s",
                           group->rank, cause.c_str());
    return status_fail(why, STATUS_RETRY,
                       "rank %u has told where it is, and cannot be reached "
                       "there: %s",
                       group->waiting_for, cause.c_str());
}

enum status gloo_group_failed(struct gloo_group *group,
                              struct failure *why) noexcept try {
    try {
        throw;
    } catch (const std::exception &error) {
        std::string cause = plain_text(error);
        return group->watchdog.joinable() ? fail_with(group, cause, why)
                                          : fail_to_connect(group, cause, why);
    }
} catch (...) {
    return status_fail(why, STATUS_RETRY, "collective: out of memory");
}

/* Tells where each rank reaches this one: two listening addresses, of the line
 * and of last words, for one rank after the other, each of as many bytes. */
static enum status tell_addresses(struct gloo_group *group,
                                  const struct collective_store *store,
                                  struct failure *why) {
    std::vector<char> all;
    for (uint32_t i = 0; i < group->size; i++) {
        if (i == group->rank)
            continue;
        auto line = gloo_lines_address(&group->lines, i);
        auto words = group->context->createPair((int)i)->address().bytes();
        size_t each = line.size();
        all.resize(group->size * 2 * each);
        memcpy(&all[i * 2 * each], line.data(), each);
        memcpy(&all[(i * 2 + 1) * each], words.data(), each);
    }
    std::string key = "gloo.at." + std::to_string(group->rank);
    return store->set(store->context, key.c_str(), all.data(), all.size(), why);
}

/* Two addresses of a rank: of its line to this one, and for last words. */
struct gloo_ends {
    std::vector<char> line, words;
};

static enum status hear_addresses(struct gloo_group *group, uint32_t peer,
                                  const struct collective_store *store,
                                  int64_t until, struct gloo_ends *ends,
                                  struct failure *why) {
    void *value = nullptr;
    size_t size = 0;
    std::string key = "gloo.at." + std::to_string(peer);
    group->waiting_for = peer;
    enum status status =
        store->get(store->context, key.c_str(), until, &value, &size, why);
    if (status) {
        status_context(why, "rank %u did not come", peer);
        return status;
    }
    size_t each = gloo_lines_address(&group->lines, peer).size();
    bool whole = size == group->size * 2 * each;
    auto own = static_cast<const char *>(value) + group->rank * 2 * each;
    if (whole) {
        ends->line.assign(own, own + each);
        ends->words.assign(own + each, own + 2 * each);
    }
    free(value);
    if (!whole)
        return status_fail(why, STATUS_RETRY,
                           "rank %u tells no address: does it run the same "
                           "version?",
                           peer);
    return STATUS_OK;
}

/* What a connection in the making has come to. */
struct gloo_attempt {
    std::mutex mutex;
    std::condition_variable ended;
    bool over;
    std::exception_ptr error;
};

static void attempt_connection(struct gloo_group *group, uint32_t peer,
                               const struct gloo_ends &ends,
                               struct gloo_attempt *attempt) noexcept {
    gloo_thread_ours ours;
    std::exception_ptr error;
    try {
        gloo_lines_connect(&group->lines, peer, ends.line);
        group->context->getPair((int)peer)->connect(ends.words);
    } catch (...) {
        error = std::current_exception();
    }
    std::lock_guard<std::mutex> lock(attempt->mutex);
    attempt->error = error;
    attempt->over = true;
    attempt->ended.notify_all();
}

/* On a thread of its own: Gloo waits for its own threads without a limit, and
 * one of them may have stopped. */
static void connect_to(struct gloo_group *group, uint32_t peer,
                       const struct gloo_ends &ends) {
    auto attempt = std::make_shared<struct gloo_attempt>();
    std::thread([=] {
        attempt_connection(group, peer, ends, attempt.get());
    }).detach();
    std::unique_lock<std::mutex> lock(attempt->mutex);
    group->stuck =
        !attempt->ended.wait_for(lock, duration<double>(group->patience + 1),
                                 [&] { return attempt->over; });
    if (group->stuck)
        throw wait_ended();
    if (attempt->error)
        std::rethrow_exception(attempt->error);
}

/* All have told where they are before any connects: from here on who does not
 * answer at once is gone, and Gloo's wait for it, which nothing can end, is
 * short. */
static enum status connect_all(struct gloo_group *group,
                               const struct collective_store *store,
                               int64_t until, struct failure *why) {
    std::vector<struct gloo_ends> ends(group->size);
    for (uint32_t i = 0; i < group->size; i++) {
        enum status status =
            i == group->rank
                ? STATUS_OK
                : hear_addresses(group, i, store, until, &ends[i], why);
        if (status)
            return status;
    }
    for (uint32_t i = 0; i < group->size; i++) {
        if (i == group->rank)
            continue;
        group->waiting_for = i;
        connect_to(group, i, ends[i]);
    }
    return STATUS_OK;
}

/* What others may have to say is awaited from the beginning. */
static void listen_for_words(struct gloo_group *group) {
    for (uint32_t i = 0; i < group->size; i++)
        if (i != group->rank)
            group->last[i]->recv((int)i, SLOT_LAST, place(&group->words[i]),
                                 sizeof(gloo_word));
}

enum status gloo_group_open(struct gloo_group *group,
                            const struct collective_settings *settings,
                            struct failure *why) {
    group->rank = settings->rank;
    group->size = settings->size;
    group->timeout = settings->timeout;
    group->deadline.store(TIME_NEVER);
    group->words.resize(group->size);
    group->waiting_for = GLOO_NOBODY;
    int64_t until = time_now() + time_from_seconds(settings->timeout);
    std::string host;
    enum status status = gloo_address_choose(settings, until, &host, why);
    if (status)
        return status;
    gloo::transport::tcp::attr attr(host.c_str());
    group->device = gloo::transport::tcp::CreateDevice(attr);
    group->context =
        group->device->createContext((int)group->rank, (int)group->size);
    group->patience = std::min(group->timeout, CONNECT_SECONDS);
    /* Gloo waits five times as long for a connection. */
    group->context->setTimeout(milliseconds((int64_t)(group->patience * 200)));
    group->probe = group->context->createUnboundBuffer(nullptr, SIZE_MAX);
    for (uint32_t i = 0; i < group->size; i++)
        group->last.push_back(
            group->context->createUnboundBuffer(nullptr, SIZE_MAX));
    gloo_lines_listen(&group->lines, host.c_str(), group->rank, group->size,
                      group->patience);
    status = tell_addresses(group, settings->store, why);
    if (!status)
        status = connect_all(group, settings->store, until, why);
    if (status)
        return status;
    listen_for_words(group);
    group->watchdog = std::thread(watch, group);
    return STATUS_OK;
}

/* A connection that is closed too early takes what is under way with it: each
 * waits until all others have said that they need nothing more. */
static void say_goodbye(struct gloo_group *group) {
    auto longest = duration<double>(std::min(group->timeout, 5.0));
    auto until = gloo_group::clock::now() +
                 duration_cast<gloo_group::clock::duration>(longest);
    tell(group, GLOO_NOBODY, false);
    for (uint32_t i = 0; i < group->size; i++)
        if (i != group->rank && !hear(group, i, until))
            break;
}

bool gloo_group_close(struct gloo_group *group) noexcept {
    bool whole = !group->stuck && !gloo_thread_stopped();
    if (group->watchdog.joinable()) {
        {
            std::lock_guard<std::mutex> lock(group->mutex);
            group->closed = true;
        }
        group->closing.notify_all();
        group->watchdog.join();
        if (whole && !group->failed && !group->aborted.load())
            say_goodbye(group);
    }
    if (!whole) {
        gloo_lines_cut(&group->lines);
        return false;
    }
    gloo_lines_close(&group->lines);
    group->probe.reset();
    group->last.clear();
    group->context.reset();
    group->device.reset();
    return true;
}

void gloo_group_abort(struct gloo_group *group) noexcept {
    group->aborted.store(true);
    gloo_lines_cut(&group->lines);
}
