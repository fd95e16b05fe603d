/* SPDX-License-Identifier: Apache-2.0 */
#define STATE char *folder

#include "core/base/secret_file.h"

#include "tests/lib/assert_fails.h"
#include "tests/lib/skip.h"
#include "tests/lib/test.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SERVICE = 64000 /* a user and group */, NOT_TRIED = 255 };

static int setup(void **state) {
    char *folder = strdup("/tmp/secret-XXXXXX");
    *state = folder;
    return folder && mkdtemp(folder) ? 0 : -1;
}

static int teardown(void **state) {
    char command[64];
    snprintf(command, sizeof command, "rm -r %s", (char *)*state);
    free(*state);
    return system(command);
}

FIXTURE(setup, teardown);

static const char *path_in(const char *folder) {
    return textf("%s/secret", folder);
}

static void write_secret(const char *path, const char *text, mode_t mode) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
    assert_return_code(chmod(path, mode), 0);
}

static enum failure_code read_code(const char *path) {
    unsigned char *secret;
    enum status status =
        secret_file_read(&secret, path, "--secret-file", &failure);
    if (!status)
        secret_file_forget(&secret);
    assert_null(secret);
    return status ? failure.code : FAILURE_NONE;
}

TEST(a_new_secret_is_64_random_digits_that_only_its_owner_may_read) {
    const char *path = path_in(folder);
    unsigned char *one, *other;
    char text[80] = "", again[80] = "";
    struct stat about;
    assert_ok(secret_file_create(path, &failure));
    assert_return_code(stat(path, &about), 0);
    assert_int_equal(about.st_mode & 07777, 0600);
    assert_int_equal(about.st_size, 65);
    FILE *file = fopen(path, "r");
    assert_non_null(fgets(text, sizeof text, file));
    fclose(file);
    for (int i = 0; i < 64; i++)
        assert_true(isxdigit((unsigned char)text[i]));
    assert_ok(secret_file_read(&one, path, "it", &failure));
    for (int i = 0; i < SECRET_FILE_BYTES; i++)
        snprintf(again + 2 * i, 3, "%02x", one[i]);
    assert_int_equal(strncmp(again, text, 64), 0);
    assert_return_code(unlink(path), 0);
    assert_ok(secret_file_create(path, &failure));
    assert_ok(secret_file_read(&other, path, "it", &failure));
    assert_memory_not_equal(one, other, SECRET_FILE_BYTES);
    secret_file_forget(&one);
    secret_file_forget(&other);
}

TEST(a_file_that_is_there_is_not_replaced) {
    const char *path = path_in(folder);
    write_secret(path, "mine", 0600);
    assert_int_equal(secret_file_create(path, &failure), STATUS_CONFIG);
    assert_int_equal(failure.code, FAILURE_OUTPUT_UNUSABLE);
    assert_contains(failure.text, "there already");
    assert_int_equal(read_code(path), FAILURE_SECRET_UNUSABLE);
}

#define DIGITS                                                                 \
    "000102030405060708090a0b0c0d0e0f101112131415161718191A1B1C1D1E1F"

TEST(a_secret_may_lack_its_newline_and_have_capital_digits) {
    const char *path = path_in(folder);
    unsigned char *secret;
    write_secret(path, DIGITS, 0400);
    assert_ok(secret_file_read(&secret, path, "it", &failure));
    for (int i = 0; i < SECRET_FILE_BYTES; i++)
        assert_int_equal(secret[i], i);
    secret_file_forget(&secret);
}

TEST(a_file_that_others_may_use_is_refused_by_name) {
    static const mode_t modes[] = {0604, 0640, 0602, 0660, 0644, 0777};
    const char *path = path_in(folder);
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        write_secret(path, DIGITS "\n", modes[i]);
        assert_int_equal(read_code(path), FAILURE_SECRET_UNUSABLE);
        assert_contains(failure.text, path);
        assert_contains(failure.text, "--secret-file");
        assert_contains(failure.text, "chmod 600");
    }
}

/* As systemd gives a credential, and Kubernetes a Secret, to a service of
 * another user: the code of reading PATH as that one. */
static int code_of_service(const char *path) {
    int ended = -1;
    pid_t child = fork();
    if (!child)
        _exit(setresgid(SERVICE, SERVICE, SERVICE) ||
                      setresuid(SERVICE, SERVICE, SERVICE)
                  ? NOT_TRIED
                  : (int)read_code(path));
    assert_int_equal(waitpid(child, &ended, 0), child);
    assert_true(WIFEXITED(ended));
    return WEXITSTATUS(ended);
}

TEST(a_service_may_read_roots_file_by_its_group_alone) {
    const char *path = path_in(folder);
    if (geteuid())
        skip_test("only root can become another user");
    assert_return_code(chmod(folder, 0755), 0);
    write_secret(path, DIGITS "\n", 0440);
    assert_return_code(chown(path, 0, SERVICE), 0);
    assert_int_equal(code_of_service(path), FAILURE_NONE);
    assert_return_code(chmod(path, 0444), 0);
    assert_int_equal(code_of_service(path), FAILURE_SECRET_UNUSABLE);
    assert_return_code(chown(path, SERVICE + 1, SERVICE), 0);
    assert_return_code(chmod(path, 0440), 0);
    assert_int_equal(code_of_service(path), FAILURE_SECRET_UNUSABLE);
}

TEST(anything_but_a_secret_is_refused_by_what_it_is) {
    static const char *const bad[][2] = {
        {"", "an empty file"},
        {"\n", "a shorter text"},
        {"00", "a shorter text"},
        {DIGITS "0\n", "a longer text"},
        {DIGITS "\n\n", "a longer text"},
        {DIGITS DIGITS DIGITS, "a longer text"},
        {"g00102030405060708090a0b0c0d0e0f101112131415161718191A1B1C1D1E1F",
         "other characters"},
        {"00 102030405060708090a0b0c0d0e0f101112131415161718191A1B1C1D1E1F",
         "other characters"}};
    const char *path = path_in(folder);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        write_secret(path, bad[i][0], 0600);
        assert_int_equal(read_code(path), FAILURE_SECRET_UNUSABLE);
        assert_contains(failure.text, bad[i][1]);
        assert_null(strstr(failure.text, "0001020304")); /* no secret is told */
    }
}

TEST(a_missing_file_and_a_folder_are_refused) {
    assert_int_equal(read_code(path_in(folder)), FAILURE_SECRET_UNUSABLE);
    assert_contains(failure.text, "No such file");
    assert_int_equal(read_code(folder), FAILURE_SECRET_UNUSABLE);
    assert_contains(failure.text, "a directory");
}
