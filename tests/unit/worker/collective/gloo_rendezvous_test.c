/* SPDX-License-Identifier: Apache-2.0 */
/* How ranks of the gloo plugin meet, by TCP, before there is a line of either
 * kind; who does not come or goes, and strangers. */
#include "core/base/time.h"
#include "tests/lib/gloo_fixture.h"
#include "tests/lib/test.h"

#include <sys/socket.h>
#include <unistd.h>

TEST(a_rank_that_never_connects_is_named) {
    struct gloo_fixture fixture = {
        .ops = gloo_fixture_load(), .shm = true, .size = 3, .timeout = 1};
    struct rendezvous_fake *rendezvous = rendezvous_fake_open();
    int64_t begun = time_now();
    rendezvous_fake_start(rendezvous, 0, gloo_fixture_call_forever, &fixture);
    rendezvous_fake_start(rendezvous, 1, gloo_fixture_call_forever, &fixture);
    for (uint32_t i = 0; i < 2; i++) {
        rendezvous_fake_await_exit(rendezvous, i);
        assert_int_equal(rendezvous->ends[i].status, STATUS_RETRY);
        assert_contains(rendezvous->ends[i].text, "rank 2 did not come");
    }
    assert_true(time_now() - begun < 20 * TIME_S);
    rendezvous_fake_close(&rendezvous);
}

/* Shows DO what this process listens to, with the address. */
static void for_each_listener(
    void (*do_with)(int fd, const struct sockaddr_storage *address)) {
    for (int fd = 3; fd < 64; fd++) {
        struct sockaddr_storage address;
        socklen_t size = sizeof address, word = sizeof(int);
        int listens = 0;
        if (!getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &word) &&
            listens && !getsockname(fd, (struct sockaddr *)&address, &size))
            do_with(fd, &address);
    }
}

/* The store of a rank that goes when it has told where it is. */
static struct collective_store last_value;

static enum status set_and_exit(void *context, const char *key,
                                const void *value, size_t size,
                                struct failure *why) {
    struct collective_store *rendezvous = context;
    if (!rendezvous->set(rendezvous->context, key, value, size, why) &&
        !strncmp(key, "gloo.at.", 8))
        _exit(0);
    return STATUS_OK;
}

static enum status receive(void *context, const char *key, int64_t until,
                           void **value, size_t *size, struct failure *why) {
    struct collective_store *rendezvous = context;
    return rendezvous->get(rendezvous->context, key, until, value, size, why);
}

static void exit_during_rendezvous(struct rendezvous_fake *rendezvous,
                                   uint32_t rank, const void *context) {
    last_value = (struct collective_store){
        .context = &rendezvous->store, .set = set_and_exit, .get = receive};
    struct rendezvous_fake *mine = malloc(sizeof *mine);
    *mine = *rendezvous; /* its store alone is another */
    mine->store = last_value;
    gloo_fixture_call_forever(mine, rank, context);
}

/* Rank GONE plays GOES; the other, which plays STAYS, fails within SECONDS,
 * however long a step may take. Returns what it says, for free(3). */
static char *run_with_bad_peers(uint32_t gone, gloo_fixture_body *goes,
                                gloo_fixture_body *stays) {
    struct gloo_fixture fixture = {
        .ops = gloo_fixture_load(), .shm = true, .size = 2, .timeout = 1000};
    struct rendezvous_fake *rendezvous = rendezvous_fake_open();
    struct rank_result *end = &rendezvous->ends[1 - gone];
    int64_t begun = time_now();
    rendezvous_fake_start(rendezvous, gone, goes, &fixture);
    rendezvous_fake_start(rendezvous, 1 - gone, stays, &fixture);
    rendezvous_fake_await_exit(rendezvous, 1 - gone);
    assert_int_equal(end->status, STATUS_RETRY);
    assert_true(time_now() - begun < 20 * TIME_S);
    char *text = strdup(end->text);
    rendezvous_fake_close(&rendezvous);
    return text;
}

/* It may have answered by its last breath. */
TEST(a_rank_that_dies_during_rendezvous_is_named) {
    for (uint32_t gone = 0; gone < 2; gone++) {
        char *text = run_with_bad_peers(gone, exit_during_rendezvous,
                                        gloo_fixture_call_forever);
        const char *name = textf("rank %u ", gone);
        if (strncmp(text, name, strlen(name)))
            fail_msg("%s", text);
        free(text);
    }
}

static void close_listener(int fd, const struct sockaddr_storage *address) {
    (void)address;
    close(fd);
}

/* Nobody meets it: the system answers for a process that still listens. */
static enum status set_unread(void *context, const char *key, const void *value,
                              size_t size, struct failure *why) {
    if (!strncmp(key, "gloo.at.", 8))
        for_each_listener(close_listener);
    return set_and_exit(context, key, value, size, why);
}

static void exit_silently(struct rendezvous_fake *rendezvous, uint32_t rank,
                          const void *context) {
    struct collective_store store = {
        .context = &rendezvous->store, .set = set_unread, .get = receive};
    gloo_fixture_connect_by(&store, rendezvous, rank, context);
}

static enum status set_there(void *context, const char *key, const void *value,
                             size_t size, struct failure *why) {
    (void)context;
    return last_value.set(last_value.context, key, value, size, why);
}

static enum status get_there(void *context, const char *key, int64_t until,
                             void **value, size_t *size, struct failure *why) {
    (void)context;
    return last_value.get(last_value.context, key, until, value, size, why);
}

static bool is_late(void *context) {
    const int64_t *until = context;
    return time_now() > *until;
}

/* Its meeting is given up a little later. */
static void abort_soon(struct rendezvous_fake *rendezvous, uint32_t rank,
                       const void *context) {
    int64_t until = time_now() + TIME_S / 2;
    struct collective_store store = {&until, set_there, get_there, is_late};
    last_value = rendezvous->store;
    gloo_fixture_connect_by(&store, rendezvous, rank, context);
    gloo_fixture_end(rendezvous, rank, STATUS_OK, "it met one that is gone");
}

TEST(a_cancelled_rendezvous_ends_soon) {
    for (uint32_t gone = 0; gone < 2; gone++)
        free(run_with_bad_peers(gone, exit_silently, abort_soon));
}

static void reset(int fd, const struct sockaddr_storage *address) {
    static const struct linger at_once = {1, 0};
    (void)fd;
    int other_socket = socket(address->ss_family, SOCK_STREAM, 0);
    connect(other_socket, (const struct sockaddr *)address, sizeof *address);
    setsockopt(other_socket, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    close(other_socket);
}

static enum status reset_and_set(void *context, const char *key,
                                 const void *value, size_t size,
                                 struct failure *why) {
    struct collective_store *rendezvous = context;
    if (!strncmp(key, "gloo.at.", 8))
        for_each_listener(reset);
    return rendezvous->set(rendezvous->context, key, value, size, why);
}

static void connect_with_bad_peers(struct rendezvous_fake *rendezvous,
                                   uint32_t rank, const void *context) {
    static struct collective_store beset;
    beset = (struct collective_store){
        .context = &rendezvous->store, .set = reset_and_set, .get = receive};
    struct rendezvous_fake *mine = malloc(sizeof *mine);
    *mine = *rendezvous;
    mine->store = beset;
    struct collective *group = gloo_fixture_connect(mine, rank, context);
    const struct gloo_fixture *fixture = context;
    struct failure why = {0};
    float one = 1;
    enum status status = fixture->ops->all_reduce(group, &one, 1, &why);
    fixture->ops->close(&group);
    gloo_fixture_end(mine, rank, status, why.text);
}

TEST(a_bad_peer_that_resets_its_connection_harms_no_rank) {
    for (int round = 0; round < 3; round++) {
        struct gloo_fixture fixture = {
            .ops = gloo_fixture_load(), .shm = true, .size = 2, .timeout = 2};
        struct rendezvous_fake *rendezvous = rendezvous_fake_open();
        for (uint32_t i = 0; i < 2; i++)
            rendezvous_fake_start(rendezvous, i, connect_with_bad_peers,
                                  &fixture);
        gloo_fixture_expect_success(rendezvous, 2);
        rendezvous_fake_close(&rendezvous);
    }
}

static enum status tell(void *context, const char *key, const void *value,
                        size_t size, struct failure *why) {
    struct collective_store *rendezvous = context;
    return rendezvous->set(rendezvous->context, key, value, size, why);
}

static enum status reset_and_fail(void *context, const char *key, int64_t until,
                                  void **value, size_t *size,
                                  struct failure *why) {
    struct collective_store *rendezvous = context;
    if (strncmp(key, "gloo.at.", 8))
        return rendezvous->get(rendezvous->context, key, until, value, size,
                               why);
    for_each_listener(reset);
    return status_fail(why, FAILURE_PEER_SILENT, "nobody else comes");
}

static void fail_with_bad_peers(struct rendezvous_fake *rendezvous,
                                uint32_t rank, const void *context) {
    struct collective_store beset = {
        .context = &rendezvous->store, .set = tell, .get = reset_and_fail};
    gloo_fixture_connect_by(&beset, rendezvous, rank, context);
    gloo_fixture_end(rendezvous, rank, STATUS_OK, "it met nobody");
}

TEST(a_bad_peer_that_resets_does_not_delay_closing) {
    struct gloo_fixture fixture = {
        .ops = gloo_fixture_load(), .shm = true, .size = 2, .timeout = 2};
    for (int round = 0; round < 10; round++) {
        struct rendezvous_fake *rendezvous = rendezvous_fake_open();
        int64_t begun = time_now();
        for (uint32_t i = 0; i < 2; i++)
            rendezvous_fake_start(rendezvous, i, fail_with_bad_peers, &fixture);
        for (uint32_t i = 0; i < 2; i++) {
            assert_int_equal(rendezvous_fake_await_exit(rendezvous, i), 1);
            assert_contains(rendezvous->ends[i].text, "nobody else comes");
        }
        assert_true(time_now() - begun < 20 * TIME_S);
        rendezvous_fake_close(&rendezvous);
    }
}

/* The store as a rank sees it whose others are on another host. */
static enum status get_elsewhere(void *context, const char *key, int64_t until,
                                 void **data, size_t *size,
                                 struct failure *why) {
    struct rendezvous_fake *rendezvous = context;
    enum status status =
        rendezvous->store.get(context, key, until, data, size, why);
    if (!status && !strcmp(key, "gloo.host.1"))
        memset(*data, 'x', 8);
    return status;
}

static void run_on_other_address(struct rendezvous_fake *rendezvous,
                                 uint32_t rank, const void *context) {
    const struct gloo_fixture *fixture = context;
    struct collective *group;
    struct failure why = {0};
    struct collective_store store = {.context = rendezvous,
                                     .set = rendezvous->store.set,
                                     .get = get_elsewhere};
    struct collective_settings settings = {.rank = rank,
                                           .size = 2,
                                           .host = fixture->host,
                                           .store = &store,
                                           .timeout = 1};
    gloo_fixture_end(rendezvous, rank,
                     fixture->ops->open(&group, &settings, &why), why.text);
}

TEST(an_unreachable_address_is_not_chosen) {
    struct gloo_fixture fixture = {.ops = gloo_fixture_load(),
                                   .shm = true,
                                   .size = 2,
                                   .timeout = 5,
                                   .host = "localhost"};
    struct rendezvous_fake *rendezvous = rendezvous_fake_open();
    rendezvous_fake_start(rendezvous, 0, run_on_other_address, &fixture);
    rendezvous_fake_start(rendezvous, 1, run_on_other_address, &fixture);
    rendezvous_fake_await_exit(rendezvous, 0);
    assert_int_equal(rendezvous->ends[0].status, STATUS_RETRY);
    assert_contains(rendezvous->ends[0].text,
                    "rank 0: \"localhost\" is no address of this host "
                    "that other hosts reach");
    rendezvous_fake_close(&rendezvous);
}
