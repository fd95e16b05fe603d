/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/secret_file.h"
#include "core/net/link/zap_handler.h"
#include "tests/fuzz/fuzz.h"

#include <sodium.h>
#include <string.h>

enum { MOST_PARTS = 12, WORKERS = 2, KEY_OF_WORKER = 0xf0 };

static const unsigned char secret[SECRET_FILE_BYTES] = {1, 2, 3};

static unsigned char workers[WORKERS][LINK_KEY_BYTES]; /* public keys */

/* As link_keys.h says that they are derived. */
static void derive_worker(unsigned char public[LINK_KEY_BYTES],
                          unsigned char digit) {
    unsigned char seed[LINK_KEY_BYTES], private[LINK_KEY_BYTES];
    unsigned char input[] = "\x09"
                            "capstan 1\x06worker\x01"
                            "0\x06"
                            "client";
    input[18] = digit;
    crypto_generichash(seed, sizeof seed, input, sizeof input - 1, secret,
                       sizeof secret);
    crypto_box_seed_keypair(public, private, seed);
}

static const struct link_keys *admitting_keys(void) {
    static struct link_keys *keys;
    const struct link_keys_settings settings = {
        .roles = {{"chief", 1, 1}, {"worker", WORKERS, 0}},
        .client = {"chief", 0},
        .servers = {{"chief", 0}}};
    struct failure why;
    if (keys)
        return keys;
    fuzz_require(sodium_init() >= 0 &&
                     !link_keys_open(&keys, secret, &settings, &why),
                 "there are keys");
    for (unsigned char w = 0; w < WORKERS; w++)
        derive_worker(workers[w], (unsigned char)('0' + w));
    return keys;
}

static bool is_text(const struct zap_part *part, const char *text) {
    return part->size == strlen(text) && !memcmp(part->data, text, part->size);
}

static bool is_admissible(const struct zap_part *parts, size_t count) {
    const struct zap_part *key = &parts[ZAP_KEY];
    bool is_worker = false;
    for (unsigned w = 0; w < WORKERS && key->size == LINK_KEY_BYTES; w++)
        is_worker |= !memcmp(key->data, workers[w], LINK_KEY_BYTES);
    return count == ZAP_PARTS && is_worker &&
           is_text(&parts[ZAP_VERSION], "1.0") &&
           is_text(&parts[ZAP_MECHANISM], "CURVE");
}

/* The parts of a request, each after its length; a length from KEY_OF_WORKER on
 * stands for the key of a worker. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    const struct link_keys *keys = admitting_keys();
    struct zap_part parts[MOST_PARTS] = {{0}};
    struct link_party user = {0};
    size_t count = 0;
    for (size_t at = 0; at < size && count < MOST_PARTS; count++) {
        size_t length = bytes[at++];
        if (length >= KEY_OF_WORKER) {
            parts[count] =
                (struct zap_part){workers[length % WORKERS], LINK_KEY_BYTES};
            continue;
        }
        length = length < size - at ? length : size - at;
        parts[count] = (struct zap_part){bytes + at, length};
        at += length;
    }
    bool admits = zap_handler_admits(keys, parts, count, &user);
    fuzz_require(admits == is_admissible(parts, count),
                 "the keys of workers are admitted, and no others");
    fuzz_require(
        !admits ||
            (!strcmp(user.role, "worker") && user.index < WORKERS &&
             !memcmp(parts[ZAP_KEY].data, workers[user.index], LINK_KEY_BYTES)),
        "who is admitted has the key of its name");
    return 0;
}
