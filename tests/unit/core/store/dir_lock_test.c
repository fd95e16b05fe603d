/* SPDX-License-Identifier: Apache-2.0 */
#define STATE const char *dir

#include "core/store/dir_lock.h"

#include "core/store/checkpoint.h"
#include "tests/lib/checkpoint_fixture.h"
#include "tests/lib/test.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ONE = 0x11, TWO = 0x22 };

static struct failure why;

static enum status try(struct dir_lock **lock, const char *dir, uint64_t run) {
    struct dir_lock_settings settings = {
        .dir = dir, .run = run, .owner = "the chief"};
    return dir_lock_acquire(lock, &settings, &why);
}

static enum status try_lock_in_child(struct dir_lock **lock, bool *shares,
                                     const char *dir, uint64_t run) {
    struct dir_lock_settings settings = {
        .dir = dir, .run = run, .owner = "ps 0"};
    return dir_lock_join(lock, shares, &settings, &why);
}

static struct dir_lock *take(const char *dir, uint64_t run) {
    struct dir_lock *lock;
    if (try(&lock, dir, run))
        fail_msg("%s", why.text);
    assert_non_null(lock);
    return lock;
}

static struct dir_lock *lock_in_child(const char *dir, uint64_t run,
                                      bool *shares) {
    struct dir_lock *lock;
    if (try_lock_in_child(&lock, shares, dir, run))
        fail_msg("%s", why.text);
    return lock;
}

FIXTURE(checkpoint_fixture_setup_folder, checkpoint_fixture_teardown_folder);

TEST(a_directory_belongs_to_one_run_at_a_time) {
    struct dir_lock *one = take(dir, ONE), *two;
    assert_fails(try(&two, dir, TWO), &why, FAILURE_DIRECTORY_LOCKED);
    assert_null(two);
    assert_int_equal(checkpoint_fixture_entries(dir), 1);
    dir_lock_release(&one);
    assert_null(one);
    two = take(dir, TWO);
    dir_lock_release(&two);
    assert_int_equal(checkpoint_fixture_entries(dir), 0);
}

/* A file server keeps the locks of a host that fails, perhaps before its owner
 * is written; earlier releases wrote no second line. */
TEST(a_directory_of_another_host_is_worth_a_retry) {
    static const struct {
        const char *owner;
        enum failure_code code;
    } cases[] = {
        {"the chief, pid 7 on host elsewhere\nanother\n",
         FAILURE_DIRECTORY_HELD},
        {"", FAILURE_DIRECTORY_HELD},
        {"the chief, pid 7 on host here\n", FAILURE_DIRECTORY_LOCKED},
    };
    char path[PATH_MAX];
    bool shares;
    struct dir_lock *one = take(dir, ONE), *two;
    checkpoint_run_file(dir, ONE, path, sizeof path);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        FILE *file = fopen(path, "r+");
        assert_non_null(file);
        assert_int_equal(ftruncate(fileno(file), 0), 0);
        fputs(cases[i].owner, file);
        fclose(file);
        assert_fails(try(&two, dir, TWO), &why, cases[i].code);
        assert_null(two);
        assert_fails(try_lock_in_child(&two, &shares, dir, TWO), &why,
                     cases[i].code);
        assert_null(two);
    }
    dir_lock_release(&one);
}

TEST(the_owner_of_the_lock_is_named) {
    char host[256] = "", named[512];
    struct dir_lock *one = take(dir, ONE), *two;
    assert_fails(try(&two, dir, TWO), &why, FAILURE_DIRECTORY_LOCKED);
    gethostname(host, sizeof host - 1);
    snprintf(named, sizeof named, "%s: the chief, pid %d on host %s.", dir,
             (int)getpid(), host);
    assert_contains(why.text, named);
    dir_lock_release(&one);
}

TEST(a_lock_left_by_a_killed_process_is_removed) {
    char path[PATH_MAX];
    int ready[2], end;
    char word = 0;
    assert_int_equal(pipe(ready), 0);
    pid_t child = fork();
    if (!child) {
        struct dir_lock *lock = take(dir, ONE);
        end = (int)write(ready[1], lock ? "y" : "n", 1);
        pause();
        _exit(end);
    }
    assert_int_equal(read(ready[0], &word, 1), 1);
    assert_int_equal(word, 'y');
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, &end, 0), child);
    checkpoint_run_file(dir, ONE, path, sizeof path);
    assert_int_equal(access(path, F_OK), 0);
    struct dir_lock *two = take(dir, TWO);
    assert_int_equal(access(path, F_OK), -1);
    dir_lock_release(&two);
    close(ready[0]);
    close(ready[1]);
}

/* Whoever may open the file may lock it. */
TEST(only_its_user_may_open_a_lock) {
    char path[PATH_MAX];
    struct stat about;
    struct dir_lock *one = take(dir, ONE);
    checkpoint_run_file(dir, ONE, path, sizeof path);
    assert_int_equal(stat(path, &about), 0);
    assert_int_equal(about.st_mode & 0777, 0600);
    dir_lock_release(&one);
}

/* In a child that has ended, so that the number is of no process. */
static void leave_lock(const char *dir, uint64_t run) {
    int end;
    pid_t child = fork();
    if (!child) {
        (void)take(dir, run);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &end, 0), child);
    assert_int_equal(end, 0);
}

/* A ps of the run, which has none but its chief's file, still has the directory
 * while another chief decides whether it goes on with the run. */
TEST(a_dead_chiefs_file_stays_until_another_one_has_decided) {
    static const struct {
        uint64_t run;
        bool is_held;
    } cases[] = {{ONE, true}, {TWO, false}};
    for (unsigned i = 0; i < 2; i++) {
        struct dir_lock_settings settings = {
            .dir = dir, .run = TWO, .owner = "the chief", .keeps_dead = true};
        struct dir_lock *chief, *ps;
        bool shares;
        leave_lock(dir, ONE);
        ps = lock_in_child(dir, ONE, &shares);
        assert_true(shares);
        assert_ok(dir_lock_acquire(&chief, &settings, &why));
        assert_int_equal(dir_lock_dead_run(chief), ONE);
        assert_true(dir_lock_is_held(ps));
        assert_ok(dir_lock_settle(chief, cases[i].run, &why));
        assert_int_equal(dir_lock_is_held(ps), cases[i].is_held);
        assert_true(dir_lock_is_held(chief));
        assert_int_equal(checkpoint_fixture_entries(dir), 1);
        dir_lock_release(&chief);
        dir_lock_release(&ps);
        assert_int_equal(checkpoint_fixture_entries(dir), 0);
    }
}

TEST(another_users_lock_on_a_dead_runs_file_refuses_nobody) {
    char path[PATH_MAX];
    struct flock all = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
    leave_lock(dir, ONE);
    checkpoint_run_file(dir, ONE, path, sizeof path);
    int other_user = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(other_user >= 0);
    assert_int_equal(fcntl(other_user, F_OFD_SETLK, &all), 0);
    assert_false(dir_lock_is_locked(dir));
    struct dir_lock *two = take(dir, TWO);
    assert_int_equal(access(path, F_OK), -1);
    dir_lock_release(&two);
    close(other_user);
}

/* The last to join has ended, the one before it has not. */
TEST(one_living_owner_of_a_lock_is_enough) {
    bool shares, ended = false;
    struct dir_lock *two;
    int end;
    const char *beside = textf("%s/beside", dir);
    struct dir_lock *first = lock_in_child(beside, ONE, &shares);
    pid_t child = fork();
    if (!child) {
        (void)lock_in_child(beside, ONE, &ended);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &end, 0), child);
    assert_fails(try(&two, beside, TWO), &why, FAILURE_DIRECTORY_LOCKED);
    dir_lock_release(&first);
}

TEST(a_pipe_or_link_named_as_a_lock_stops_nobody) {
    char pipe_path[PATH_MAX], link_path[PATH_MAX];
    struct stat about;
    struct dir_lock *lock;
    checkpoint_run_file(dir, TWO, pipe_path, sizeof pipe_path);
    checkpoint_run_file(dir, ONE, link_path, sizeof link_path);
    const char *victim = textf("%s/victim", dir);
    fclose(fopen(victim, "w"));
    assert_int_equal(mkfifo(pipe_path, 0666), 0);
    alarm(20); /* the pipe must not block */
    lock = take(dir, ONE);
    dir_lock_release(&lock);
    assert_fails(try(&lock, dir, TWO), &why, FAILURE_FILE_UNWRITABLE);
    assert_int_equal(symlink(victim, link_path), 0);
    assert_fails(try(&lock, dir, ONE), &why, FAILURE_FILE_UNWRITABLE);
    assert_false(dir_lock_is_locked(dir));
    alarm(0);
    assert_int_equal(stat(victim, &about), 0);
    assert_int_equal(about.st_size, 0);
}

TEST(a_process_under_the_chiefs_lock_takes_none) {
    bool shares = false;
    struct dir_lock *chief = take(dir, ONE);
    struct dir_lock *beside = lock_in_child(dir, ONE, &shares);
    assert_true(shares);
    assert_int_equal(checkpoint_fixture_entries(dir), 1);
    dir_lock_release(&beside);
    assert_fails(try(&beside, dir, TWO), &why, FAILURE_DIRECTORY_LOCKED);
    dir_lock_release(&chief);
}

/* The chief has another directory of that name. */
TEST(processes_of_one_run_share_a_directory) {
    bool shares = true;
    struct dir_lock *two;
    const char *elsewhere = textf("%s/not/there", dir);
    struct dir_lock *first = lock_in_child(elsewhere, ONE, &shares);
    assert_false(shares);
    struct dir_lock *second = lock_in_child(elsewhere, ONE, &shares);
    assert_false(shares);
    for (int i = 0; i < 2; i++) {
        assert_fails(try_lock_in_child(&two, &shares, elsewhere, TWO), &why,
                     FAILURE_DIRECTORY_LOCKED);
        assert_contains(why.text, "ps 0, pid ");
        dir_lock_release(i ? &second : &first);
    }
    two = lock_in_child(elsewhere, TWO, &shares);
    assert_non_null(two);
    dir_lock_release(&two);
    assert_int_equal(checkpoint_fixture_entries(elsewhere), 0);
}

TEST(a_chief_is_refused_beside_another_runs_ps) {
    bool shares;
    struct dir_lock *ps = lock_in_child(dir, ONE, &shares), *chief;
    assert_fails(try(&chief, dir, TWO), &why, FAILURE_DIRECTORY_LOCKED);
    dir_lock_release(&ps);
}

TEST(foreign_files_stay) {
    static const char *const names[] = {".run-", ".run-me", ".runs",
                                        ".run-00000000000000zz"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        fclose(fopen(textf("%s/%s", dir, names[i]), "w"));
    }
    struct dir_lock *lock = take(dir, ONE);
    dir_lock_release(&lock);
    assert_int_equal(checkpoint_fixture_entries(dir), 4);
}

/* In place of DIR, whose content goes elsewhere, there is nothing. */
static void move_away(const char *dir) {
    const char *away = textf("%s.away", dir);
    assert_int_equal(rename(dir, away), 0);
    checkpoint_fixture_remove(away);
}

/* Whoever writes next claims it for all of the run. */
TEST(a_removed_directory_is_locked_again) {
    bool shares;
    struct dir_lock *chief = take(dir, ONE), *other;
    struct dir_lock *beside = lock_in_child(dir, ONE, &shares);
    assert_int_equal(dir_lock_renew(beside, &why), STATUS_OK);
    assert_true(dir_lock_is_held(chief));
    move_away(dir);
    assert_false(dir_lock_is_held(chief));
    assert_int_equal(dir_lock_renew(beside, &why), STATUS_OK);
    assert_fails(try(&other, dir, TWO), &why, FAILURE_DIRECTORY_LOCKED);
    assert_int_equal(dir_lock_renew(chief, &why), STATUS_OK);
    assert_true(dir_lock_is_held(chief));
    dir_lock_release(&beside);
    assert_fails(try(&other, dir, TWO), &why, FAILURE_DIRECTORY_LOCKED);
    dir_lock_release(&chief);
    assert_int_equal(checkpoint_fixture_entries(dir), 0);
}

/* A process that has not heard that its run goes back keeps nobody out. */
TEST(a_directory_that_the_chief_has_left_is_not_locked_again) {
    bool shares;
    struct dir_lock *chief = take(dir, ONE);
    struct dir_lock *beside = lock_in_child(dir, ONE, &shares);
    dir_lock_release(&chief);
    assert_int_equal(dir_lock_renew(beside, &why), STATUS_OK);
    chief = take(dir, TWO);
    assert_fails(dir_lock_renew(beside, &why), &why, FAILURE_DIRECTORY_LOCKED);
    dir_lock_release(&beside);
    dir_lock_release(&chief);
    assert_int_equal(checkpoint_fixture_entries(dir), 0);
}

TEST(a_lock_replaced_by_another_run_is_left_alone) {
    bool shares;
    struct dir_lock *chief = take(dir, ONE);
    struct dir_lock *beside = lock_in_child(dir, ONE, &shares);
    move_away(dir);
    assert_int_equal(mkdir(dir, 0700), 0);
    struct dir_lock *two = take(dir, TWO);
    assert_fails(dir_lock_renew(chief, &why), &why, FAILURE_DIRECTORY_LOCKED);
    assert_fails(dir_lock_renew(beside, &why), &why, FAILURE_DIRECTORY_LOCKED);
    assert_false(dir_lock_is_held(chief));
    assert_true(dir_lock_is_held(two));
    assert_int_equal(checkpoint_fixture_entries(dir), 1);
    dir_lock_release(&two);
    assert_int_equal(dir_lock_renew(chief, &why), STATUS_OK);
    dir_lock_release(&beside);
    dir_lock_release(&chief);
}

TEST(an_unwritable_directory_is_an_error) {
    struct dir_lock *lock;
    bool shares;
    assert_fails(try(&lock, "/proc/self", ONE), &why, FAILURE_FILE_UNWRITABLE);
    assert_null(lock);
    assert_int_equal(try_lock_in_child(&lock, &shares, "/proc/self/x", ONE),
                     STATUS_OK);
    assert_false(shares);
    assert_false(dir_lock_is_held(lock));
    assert_fails(dir_lock_renew(lock, &why), &why, FAILURE_FILE_UNWRITABLE);
    dir_lock_release(&lock);
}

TEST(a_reader_sees_a_lock_while_it_is_held) {
    assert_false(dir_lock_is_locked("/no/such/folder"));
    assert_false(dir_lock_is_locked(dir));
    struct dir_lock *one = take(dir, ONE);
    assert_true(dir_lock_is_locked(dir));
    dir_lock_release(&one);
    assert_false(dir_lock_is_locked(dir));
    char left[PATH_MAX]; /* by a process that died */
    checkpoint_run_file(dir, TWO, left, sizeof left);
    FILE *file = fopen(left, "w");
    assert_non_null(file);
    fclose(file);
    assert_false(dir_lock_is_locked(dir));
}
