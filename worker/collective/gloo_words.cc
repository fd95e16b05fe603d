/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/collective/gloo_words.h"

extern "C" {
#include "proto/base/time.h"
}

#include <cstdio>

using std::chrono::seconds;

/* Who has been heard to fail, or has gone, is named within this. */
static constexpr auto GRACE = seconds(1);
enum : uint64_t { SLOT_LAST, SLOT_PROBE };

static size_t place(const void *bytes) {
    return reinterpret_cast<uintptr_t>(bytes);
}

/* Written by Gloo's thread before it completes what is waited for. */
static bool has_said(const gloo_word *word) {
    return *static_cast<const volatile uint32_t *>(&word->said) != 0;
}

void gloo_words_tell(struct gloo_group *group, uint32_t blamed, bool certain) {
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

bool gloo_words_hear(struct gloo_group *group, uint32_t rank,
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
            !gloo_words_hear(group, found.culprit, until))
            break;
        const gloo_word *word = &group->words[found.culprit];
        uint32_t next = blamed_by(group, word);
        if (next == GLOO_NOBODY)
            break;
        found = {next, found.culprit, word->late != 0};
    }
    return found;
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

enum status gloo_words_fail(struct gloo_group *group, const std::string &cause,
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
        gloo_words_hear(group, group->waiting_for,
                        gloo_group::clock::now() + GRACE);
    uint32_t lost = find_lost(group);
    bool certain = lost != GLOO_NOBODY;
    gloo_words_tell(group, certain ? lost : group->waiting_for, certain);
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

void gloo_words_listen(struct gloo_group *group) {
    for (uint32_t i = 0; i < group->size; i++)
        if (i != group->rank)
            group->last[i]->recv((int)i, SLOT_LAST, place(&group->words[i]),
                                 sizeof(gloo_word));
}
