/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/proof.h"

#include <sodium.h>
#include <string.h>

_Static_assert(PROOF_KEY_BYTES == crypto_auth_hmacsha256_KEYBYTES &&
                   PROOF_BYTES == crypto_auth_hmacsha256_BYTES,
               "HMAC-SHA-256");

void proof_challenge(unsigned char challenge[PROOF_BYTES]) {
    randombytes_buf(challenge, PROOF_BYTES);
}

/* The name goes with its end, so that no other name continues it. */
void proof_make(unsigned char proof[PROOF_BYTES],
                const unsigned char key[PROOF_KEY_BYTES], const char *name,
                const unsigned char own[PROOF_BYTES],
                const unsigned char peers[PROOF_BYTES]) {
    crypto_auth_hmacsha256_state state;
    crypto_auth_hmacsha256_init(&state, key, PROOF_KEY_BYTES);
    crypto_auth_hmacsha256_update(&state, (const unsigned char *)name,
                                  strlen(name) + 1);
    crypto_auth_hmacsha256_update(&state, own, PROOF_BYTES);
    crypto_auth_hmacsha256_update(&state, peers, PROOF_BYTES);
    crypto_auth_hmacsha256_final(&state, proof);
    sodium_memzero(&state, sizeof state);
}

bool proof_holds(const unsigned char proof[PROOF_BYTES],
                 const unsigned char key[PROOF_KEY_BYTES], const char *name,
                 const unsigned char own[PROOF_BYTES],
                 const unsigned char peers[PROOF_BYTES]) {
    unsigned char expected[PROOF_BYTES];
    proof_make(expected, key, name, peers, own);
    return !sodium_memcmp(proof, expected, PROOF_BYTES);
}
