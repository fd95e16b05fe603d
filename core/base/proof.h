/* SPDX-License-Identifier: Apache-2.0 */
/* Proofs between the two sides of a connection that each has a key, without
 * sending it: each side sends a challenge of random bytes, then an HMAC (RFC
 * 2104, SHA-256) over a name of the connection and direction and over both
 * challenges. A proof is worth nothing on another connection or in the other
 * direction. */
#ifndef CAPSTAN_PROOF_H
#define CAPSTAN_PROOF_H

#include <stdbool.h>
#include <stdint.h>

enum { PROOF_KEY_BYTES = 32, PROOF_BYTES = 32 /* also of a challenge */ };

/* Fills CHALLENGE with random bytes. */
void proof_challenge(unsigned char challenge[PROOF_BYTES]);

/* The proof of the side that has sent OWN and got PEERS, for NAME. */
void proof_make(unsigned char proof[PROOF_BYTES],
                const unsigned char key[PROOF_KEY_BYTES], const char *name,
                const unsigned char own[PROOF_BYTES],
                const unsigned char peers[PROOF_BYTES]);

/* Is PROOF that of the other side, which has sent PEERS and got OWN, for NAME?
 */
bool proof_holds(const unsigned char proof[PROOF_BYTES],
                 const unsigned char key[PROOF_KEY_BYTES], const char *name,
                 const unsigned char own[PROOF_BYTES],
                 const unsigned char peers[PROOF_BYTES]);

#endif
