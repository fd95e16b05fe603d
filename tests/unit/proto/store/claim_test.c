/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/store/claim.h"

#include "proto/store/checkpoint.h"
#include "tests/lib/checkpoint_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ONE = 0x11, TWO = 0x22 };

static struct failure why;

static enum status try(struct claim **claim, const char *dir, uint64_t run) {
    struct claim_settings settings = {
        .dir = dir, .run = run, .who = "the chief"};
    return claim_take(claim, &settings, &why);
}

static enum status try_beside(struct claim **claim, bool *shares,
                              const char *dir, uint64_t run) {
    struct claim_settings settings = {.dir = dir, .run = run, .who = "ps 0"};
    return claim_take_beside(claim, shares, &settings, &why);
}

static struct claim *take(const char *dir, uint64_t run) {
    struct claim *claim;
    if (try(&claim, dir, run))
        fail_msg("%s", why.text);
    assert_non_null(claim);
    return claim;
}

static struct claim *take_beside(const char *dir, uint64_t run, bool *shares) {
    struct claim *claim;
    if (try_beside(&claim, shares, dir, run))
        fail_msg("%s", why.text);
    return claim;
}

static void a_directory_is_one_runs_at_a_time(void **state) {
    const char *dir = *state;
    struct claim *one = take(dir, ONE), *two;
    assert_int_equal(try(&two, dir, TWO), STATUS_CONFIG);
    assert_null(two);
    assert_int_equal(checkpoint_fixture_entries(dir), 1);
    claim_release(&one);
    assert_null(one);
    two = take(dir, TWO);
    claim_release(&two);
    assert_int_equal(checkpoint_fixture_entries(dir), 0);
}

static void who_is_in_the_way_is_named(void **state) {
    const char *dir = *state;
    char host[256] = "", named[512];
    struct claim *one = take(dir, ONE), *two;
    assert_int_equal(try(&two, dir, TWO), STATUS_CONFIG);
    gethostname(host, sizeof host - 1);
    snprintf(named, sizeof named, "%s: the chief, pid %d on host %s.", dir,
             (int)getpid(), host);
    if (!strstr(why.text, named))
        fail_msg("no \"%s\" in: %s", named, why.text);
    claim_release(&one);
}

static void what_a_killed_process_has_left_is_removed(void **state) {
    const char *dir = *state;
    char path[PATH_MAX];
    int ready[2], end;
    char word = 0;
    assert_int_equal(pipe(ready), 0);
    pid_t child = fork();
    if (!child) {
        struct claim *claim = take(dir, ONE);
        end = (int)write(ready[1], claim ? "y" : "n", 1);
        pause();
        _exit(end);
    }
    assert_int_equal(read(ready[0], &word, 1), 1);
    assert_int_equal(word, 'y');
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, &end, 0), child);
    checkpoint_mark(dir, ONE, path, sizeof path);
    assert_int_equal(access(path, F_OK), 0);
    struct claim *two = take(dir, TWO);
    assert_int_equal(access(path, F_OK), -1);
    claim_release(&two);
    close(ready[0]);
    close(ready[1]);
}

static void who_finds_the_chiefs_claim_needs_none(void **state) {
    const char *dir = *state;
    bool shares = false;
    struct claim *chief = take(dir, ONE);
    struct claim *beside = take_beside(dir, ONE, &shares);
    assert_true(shares);
    assert_int_equal(checkpoint_fixture_entries(dir), 1);
    claim_release(&beside);
    assert_int_equal(try(&beside, dir, TWO), STATUS_CONFIG);
    claim_release(&chief);
}

/* The chief has another directory of that name. */
static void those_of_a_run_share_a_hosts_directory(void **state) {
    char dir[PATH_MAX];
    bool shares = true;
    struct claim *two;
    snprintf(dir, sizeof dir, "%s/not/there", (const char *)*state);
    struct claim *first = take_beside(dir, ONE, &shares);
    assert_false(shares);
    struct claim *second = take_beside(dir, ONE, &shares);
    assert_false(shares);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(try_beside(&two, &shares, dir, TWO), STATUS_CONFIG);
        assert_non_null(strstr(why.text, "ps 0, pid "));
        claim_release(i ? &second : &first);
    }
    two = take_beside(dir, TWO, &shares);
    assert_non_null(two);
    claim_release(&two);
    assert_int_equal(checkpoint_fixture_entries(dir), 0);
}

static void a_chief_does_not_come_beside_another_runs_ps(void **state) {
    const char *dir = *state;
    bool shares;
    struct claim *ps = take_beside(dir, ONE, &shares), *chief;
    assert_int_equal(try(&chief, dir, TWO), STATUS_CONFIG);
    claim_release(&ps);
}

static void files_of_others_stay(void **state) {
    static const char *const names[] = {".run-", ".run-me", ".runs",
                                        ".run-00000000000000zz"};
    const char *dir = *state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[PATH_MAX + 64];
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        fclose(fopen(path, "w"));
    }
    struct claim *claim = take(dir, ONE);
    claim_release(&claim);
    assert_int_equal(checkpoint_fixture_entries(dir), 4);
}

/* In place of DIR, whose content goes elsewhere, there is nothing. */
static void move_away(const char *dir) {
    char away[PATH_MAX];
    snprintf(away, sizeof away, "%s.away", dir);
    assert_int_equal(rename(dir, away), 0);
    checkpoint_fixture_remove(away);
}

/* Whoever writes next claims it for all of the run. */
static void a_directory_that_was_removed_is_claimed_anew(void **state) {
    const char *dir = *state;
    bool shares;
    struct claim *chief = take(dir, ONE), *other;
    struct claim *beside = take_beside(dir, ONE, &shares);
    assert_int_equal(claim_renew(beside, &why), STATUS_OK);
    assert_true(claim_holds(chief));
    move_away(dir);
    assert_false(claim_holds(chief));
    assert_int_equal(claim_renew(beside, &why), STATUS_OK);
    assert_int_equal(try(&other, dir, TWO), STATUS_CONFIG);
    assert_int_equal(claim_renew(chief, &why), STATUS_OK);
    assert_true(claim_holds(chief));
    claim_release(&beside);
    assert_int_equal(try(&other, dir, TWO), STATUS_CONFIG);
    claim_release(&chief);
    assert_int_equal(checkpoint_fixture_entries(dir), 0);
}

static void another_runs_claim_in_its_place_is_left_alone(void **state) {
    const char *dir = *state;
    bool shares;
    struct claim *chief = take(dir, ONE);
    struct claim *beside = take_beside(dir, ONE, &shares);
    move_away(dir);
    assert_int_equal(mkdir(dir, 0700), 0);
    struct claim *two = take(dir, TWO);
    assert_int_equal(claim_renew(chief, &why), STATUS_CONFIG);
    assert_non_null(strstr(why.text, "another run is using"));
    assert_int_equal(claim_renew(beside, &why), STATUS_CONFIG);
    assert_false(claim_holds(chief));
    assert_true(claim_holds(two));
    assert_int_equal(checkpoint_fixture_entries(dir), 1);
    claim_release(&two);
    assert_int_equal(claim_renew(chief, &why), STATUS_OK);
    claim_release(&beside);
    claim_release(&chief);
}

static void a_directory_that_cannot_be_written_is_an_error(void **state) {
    struct claim *claim;
    bool shares;
    (void)state;
    assert_int_equal(try(&claim, "/proc/self", ONE), STATUS_FAILED);
    assert_null(claim);
    assert_int_equal(try_beside(&claim, &shares, "/proc/self/x", ONE),
                     STATUS_OK);
    assert_false(shares);
    assert_false(claim_holds(claim));
    assert_int_equal(claim_renew(claim, &why), STATUS_FAILED);
    claim_release(&claim);
}

static void a_reader_sees_a_claim_while_it_is_held(void **state) {
    const char *dir = *state;
    assert_false(claim_stands("/no/such/folder"));
    assert_false(claim_stands(dir));
    struct claim *one = take(dir, ONE);
    assert_true(claim_stands(dir));
    claim_release(&one);
    assert_false(claim_stands(dir));
    char left[PATH_MAX]; /* by a process that died */
    checkpoint_mark(dir, TWO, left, sizeof left);
    FILE *file = fopen(left, "w");
    assert_non_null(file);
    fclose(file);
    assert_false(claim_stands(dir));
}

#define CLAIM_TEST(name)                                                       \
    cmocka_unit_test_setup_teardown(name, checkpoint_fixture_enter_folder,     \
                                    checkpoint_fixture_leave_folder)

int main(void) {
    const struct CMUnitTest tests[] = {
        CLAIM_TEST(a_reader_sees_a_claim_while_it_is_held),
        CLAIM_TEST(a_directory_is_one_runs_at_a_time),
        CLAIM_TEST(who_is_in_the_way_is_named),
        CLAIM_TEST(what_a_killed_process_has_left_is_removed),
        CLAIM_TEST(who_finds_the_chiefs_claim_needs_none),
        CLAIM_TEST(those_of_a_run_share_a_hosts_directory),
        CLAIM_TEST(a_chief_does_not_come_beside_another_runs_ps),
        CLAIM_TEST(files_of_others_stay),
        CLAIM_TEST(a_directory_that_was_removed_is_claimed_anew),
        CLAIM_TEST(another_runs_claim_in_its_place_is_left_alone),
        CLAIM_TEST(a_directory_that_cannot_be_written_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
