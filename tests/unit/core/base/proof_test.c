/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/proof.h"

#include "tests/lib/test.h"

#include <string.h>

/* By Python's hmac, of "name\0", 32 bytes of 1 and 32 of 2. */
static const unsigned char known[PROOF_BYTES] = {
    0x69, 0x89, 0xc8, 0x7f, 0x4f, 0x28, 0xc7, 0xed, 0x51, 0xc3, 0x1c,
    0x3c, 0x26, 0x1f, 0xe0, 0x8c, 0x60, 0xd2, 0x35, 0xdc, 0xd4, 0x57,
    0x4c, 0x80, 0xf4, 0x16, 0xda, 0x11, 0x05, 0xff, 0x48, 0xa4};

struct sides {
    unsigned char key[PROOF_KEY_BYTES], one[PROOF_BYTES], other[PROOF_BYTES];
};

static struct sides make_sides(void) {
    struct sides sides;
    for (int i = 0; i < PROOF_KEY_BYTES; i++)
        sides.key[i] = (unsigned char)i;
    memset(sides.one, 1, sizeof sides.one);
    memset(sides.other, 2, sizeof sides.other);
    return sides;
}

TEST(a_proof_is_an_hmac_over_the_name_and_both_challenges) {
    struct sides sides = make_sides();
    unsigned char proof[PROOF_BYTES];
    proof_make(proof, sides.key, "name", sides.one, sides.other);
    assert_memory_equal(proof, known, PROOF_BYTES);
    assert_true(proof_holds(proof, sides.key, "name", sides.other, sides.one));
}

TEST(a_proof_holds_for_its_key_name_and_direction_alone) {
    struct sides sides = make_sides();
    unsigned char proof[PROOF_BYTES];
    proof_make(proof, sides.key, "name", sides.one, sides.other);
    assert_false(proof_holds(proof, sides.key, "name", sides.one, sides.other));
    assert_false(
        proof_holds(proof, sides.key, "names", sides.other, sides.one));
    for (int i = 0; i < PROOF_BYTES; i++) {
        proof[i] ^= 1;
        assert_false(
            proof_holds(proof, sides.key, "name", sides.other, sides.one));
        proof[i] ^= 1;
    }
    sides.key[31] ^= 1;
    assert_false(proof_holds(proof, sides.key, "name", sides.other, sides.one));
}

TEST(challenges_differ) {
    unsigned char one[PROOF_BYTES], other[PROOF_BYTES];
    proof_challenge(one);
    proof_challenge(other);
    assert_memory_not_equal(one, other, PROOF_BYTES);
}
