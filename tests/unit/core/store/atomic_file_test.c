/* SPDX-License-Identifier: Apache-2.0 */

#define STATE struct checkpoint_fixture_file *place

#include "core/store/atomic_file.h"
#include "tests/lib/checkpoint_fixture.h"
#include "tests/lib/test.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

static int setup(void **state) {
    return checkpoint_fixture_setup(state, "file");
}

FIXTURE(setup, checkpoint_fixture_teardown);

static void assert_content(const char *path, const char *content) {
    char found[64] = "";
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    found[fread(found, 1, sizeof found - 1, file)] = '\0';
    assert_string_equal(found, content);
    fclose(file);
}

static void write_old(const struct checkpoint_fixture_file *place) {
    FILE *file = fopen(place->path, "w");
    fputs("old", file);
    fclose(file);
}

TEST(a_published_file_replaces_the_old_one) {
    struct atomic_file file;
    write_old(place);
    assert_ok(atomic_file_create(&file, place->path, 7, &failure));
    assert_ok(atomic_file_write(&file, "new", 3, &failure));
    assert_content(place->path, "old");
    assert_ok(atomic_file_write(&file, "er", 2, &failure));
    assert_ok(atomic_file_commit(&file, &failure));
    assert_content(place->path, "newer");
    assert_int_equal(checkpoint_fixture_entries(place->folder), 1);
}

TEST(an_abandoned_file_keeps_the_old_one) {
    struct atomic_file file;
    write_old(place);
    assert_ok(atomic_file_create(&file, place->path, 7, &failure));
    assert_ok(atomic_file_write(&file, "new", 3, &failure));
    atomic_file_abort(&file);
    assert_content(place->path, "old");
    assert_int_equal(checkpoint_fixture_entries(place->folder), 1);
}

/* Another user of the folder may leave anything under the temporary name. */
TEST(what_has_the_temporary_name_is_replaced_unopened) {
    struct atomic_file file;
    const char *victim = textf("%s/victim", place->folder);
    const char *temporary = textf("%s.tmp", place->path);
    FILE *own = fopen(victim, "w");
    fputs("precious", own);
    fclose(own);
    for (int i = 0; i < 3; i++) {
        if (i == 0)
            assert_int_equal(symlink(victim, temporary), 0);
        else if (i == 1)
            assert_int_equal(link(victim, temporary), 0);
        else
            assert_int_equal(mkfifo(temporary, 0666), 0);
        alarm(20); /* the pipe must not block */
        assert_ok(atomic_file_create(&file, place->path, 3, &failure));
        assert_ok(atomic_file_write(&file, "new", 3, &failure));
        assert_ok(atomic_file_commit(&file, &failure));
        alarm(0);
        assert_content(place->path, "new");
        assert_content(victim, "precious");
    }
}

TEST(a_file_that_cannot_be_renamed_is_removed) {
    struct atomic_file file;
    assert_int_equal(mkdir(place->path, 0777), 0);
    assert_ok(atomic_file_create(&file, place->path, 7, &failure));
    assert_error(atomic_file_commit(&file, &failure), FAILURE_FILE_UNWRITABLE);
    assert_contains(failure.text, place->path);
    assert_int_equal(checkpoint_fixture_entries(place->folder), 1);
}

TEST_WITH(NULL, NULL, a_full_device_is_reported_with_the_wanted_size) {
    struct atomic_file file = {.fd = open("/dev/full", O_WRONLY),
                               .bytes = 4321};
    snprintf(file.path, sizeof file.path, "/dev/full");
    assert_error(atomic_file_write(&file, "x", 1, &failure), FAILURE_DISK_FULL);
    assert_contains(failure.text, "/dev/full: 4321 bytes wanted");
    close(file.fd);
}

TEST_WITH(NULL, NULL, a_path_too_long_is_reported) {
    struct atomic_file file;
    char path[PATH_MAX];
    memset(path, 'x', sizeof path);
    path[PATH_MAX - 3] = '\0';
    assert_error(atomic_file_create(&file, path, 1, &failure),
                 FAILURE_NAME_TOO_LONG);
    assert_error(atomic_file_open_temporary(&file, path, 1, &failure),
                 FAILURE_NAME_TOO_LONG);
}
