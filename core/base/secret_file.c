/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/secret_file.h"

#include "core/base/input_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DIGITS = 2 * SECRET_FILE_BYTES, LINE = DIGITS + 1, ROOT = 0 };

static enum status start_sodium(struct failure *why) {
    return sodium_init() < 0
               ? status_fail(why, FAILURE_SYSTEM_REFUSED,
                             "libsodium cannot start: no random numbers")
               : STATUS_OK;
}

/* Locked memory; libsodium ends the process where a byte beyond it is used. */
static enum status allocate_locked(unsigned char **out, size_t size,
                                   struct failure *why) {
    *out = sodium_malloc(size);
    return *out ? STATUS_OK
                : status_fail(why, FAILURE_NO_MEMORY, "no memory for a secret");
}

/* Writes a new secret to FILE, which PATH names. */
static enum status write_new(int file, const char *path, struct failure *why) {
    unsigned char *bytes = NULL, *line = NULL;
    enum status status = allocate_locked(&bytes, SECRET_FILE_BYTES, why);
    if (!status)
        status = allocate_locked(&line, LINE, why);
    if (!status) {
        randombytes_buf(bytes, SECRET_FILE_BYTES);
        sodium_bin2hex((char *)line, LINE, bytes, SECRET_FILE_BYTES);
        line[DIGITS] = '\n';
        errno = 0;
        if (fchmod(file, S_IRUSR | S_IWUSR) ||
            write(file, line, LINE) != LINE || fsync(file))
            status = status_errno(why, FAILURE_OUTPUT_UNUSABLE,
                                  errno ? errno : ENOSPC,
                                  "%s: cannot write the secret", path);
    }
    sodium_free(line);
    sodium_free(bytes);
    return status;
}

enum status secret_file_create(const char *path, struct failure *why) {
    enum status status = start_sodium(why);
    if (status)
        return status;
    int file =
        open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, S_IRUSR | S_IWUSR);
    if (file < 0)
        return errno == EEXIST
                   ? status_fail(why, FAILURE_OUTPUT_UNUSABLE,
                                 "%s is there already, and is left as it is: "
                                 "a run may depend on it. Name another file, "
                                 "or remove this one first",
                                 path)
                   : status_errno(why, FAILURE_OUTPUT_UNUSABLE, errno,
                                  "%s: cannot make the file", path);
    status = write_new(file, path, why);
    if (close(file) && !status)
        status = status_errno(why, FAILURE_OUTPUT_UNUSABLE, errno,
                              "%s: cannot write the secret", path);
    if (status)
        unlink(path);
    return status;
}

enum status secret_file_open_own(int *file, struct failure *why) {
    *file = -1;
    enum status status = start_sodium(why);
    if (status)
        return status;
    *file = memfd_create("secret", MFD_CLOEXEC);
    if (*file < 0)
        return status_errno(why, FAILURE_SYSTEM_REFUSED, errno,
                            "a file in memory for the run's secret");
    status = write_new(*file, "a file in memory", why);
    if (!status)
        return STATUS_OK;
    close(*file);
    *file = -1;
    return status;
}

/* Root's files are safe from this user, and Kubernetes and systemd let a
 * service that is not root read them by its group. */
static enum status check_access(int file, const char *path,
                                struct failure *why) {
    struct stat about;
    if (fstat(file, &about))
        return status_errno(why, FAILURE_SECRET_UNUSABLE, errno, "%s", path);
    mode_t others = about.st_mode & (S_IRWXG | S_IRWXO);
    if (about.st_uid == ROOT && geteuid() != ROOT)
        others &= ~(mode_t)S_IRGRP;
    if (others)
        return status_fail(
            why, FAILURE_SECRET_UNUSABLE,
            "%s has mode %04o: others than its owner may use it. A secret's "
            "mode is 0600: `chmod 600` it, or make a new one with `capstan "
            "keygen` if somebody may have read it",
            path, (unsigned)(about.st_mode & 07777));
    if (about.st_uid != geteuid() && about.st_uid != ROOT)
        return status_fail(why, FAILURE_SECRET_UNUSABLE,
                           "%s belongs to user %u: a secret is in a file of "
                           "the user of the process (%u), or of root",
                           path, (unsigned)about.st_uid, (unsigned)geteuid());
    return STATUS_OK;
}

/* TEXT has room for a byte more than a line, which shows a longer file. */
static enum status read_text(int file, unsigned char *text, size_t *size,
                             const char *path, struct failure *why) {
    ssize_t got = 1;
    *size = 0;
    while (got && *size <= LINE) {
        got = read(file, text + *size, LINE + 1 - *size);
        if (got < 0 && errno != EINTR)
            return status_errno(why, FAILURE_SECRET_UNUSABLE, errno,
                                "%s: cannot read the secret", path);
        *size += got > 0 ? (size_t)got : 0;
    }
    return STATUS_OK;
}

static enum status decode(unsigned char *secret, const unsigned char *text,
                          size_t size, const char *path, struct failure *why) {
    size_t digits = size && text[size - 1] == '\n' ? size - 1 : size;
    size_t decoded = 0;
    if (digits == DIGITS &&
        !sodium_hex2bin(secret, SECRET_FILE_BYTES, (const char *)text, digits,
                        NULL, &decoded, NULL) &&
        decoded == SECRET_FILE_BYTES)
        return STATUS_OK;
    return status_fail(why, FAILURE_SECRET_UNUSABLE,
                       "%s holds no secret: found %s, expected one line of %d "
                       "hexadecimal digits, as `capstan keygen FILE` writes it",
                       path,
                       !size              ? "an empty file"
                       : digits < DIGITS  ? "a shorter text"
                       : digits == DIGITS ? "other characters"
                                          : "a longer text",
                       DIGITS);
}

/* The secret in FILE, whose whole content passes through locked memory. */
static enum status read_secret(unsigned char *secret, int file,
                               const char *path, struct failure *why) {
    unsigned char *text = NULL;
    size_t size = 0;
    enum status status = check_access(file, path, why);
    if (!status)
        status = allocate_locked(&text, LINE + 1, why);
    if (!status)
        status = read_text(file, text, &size, path, why);
    if (!status)
        status = decode(secret, text, size, path, why);
    sodium_free(text);
    return status;
}

enum status secret_file_read(unsigned char **out, const char *path,
                             const char *source, struct failure *why) {
    int file = -1;
    *out = NULL;
    enum status status = start_sodium(why);
    if (!status)
        status = input_file_open(&file, path, "the file of the job's secret",
                                 FAILURE_SECRET_UNUSABLE, why);
    if (!status)
        status = allocate_locked(out, SECRET_FILE_BYTES, why);
    if (!status)
        status = read_secret(*out, file, path, why);
    if (file >= 0)
        close(file);
    if (status) {
        secret_file_forget(out);
        status_context(why, "%s", source);
    }
    return status;
}

void secret_file_forget(unsigned char **secret) {
    sodium_free(*secret);
    *secret = NULL;
}
