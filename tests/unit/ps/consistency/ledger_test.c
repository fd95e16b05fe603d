/* SPDX-License-Identifier: Apache-2.0 */
#include "ps/consistency/ledger.h"

#include "tests/lib/seed.h"
#include "tests/lib/test.h"

#include <string.h>

enum { BLOCKS = 3, RANKS = 4, INCARNATIONS = 3, CLOCKS = 12 };

TEST(a_new_ledger_has_no_pushes) {
    struct ledger ledger;
    assert_true(ledger_open(&ledger, BLOCKS, RANKS));
    for (uint32_t b = 0; b < BLOCKS; b++)
        for (uint32_t r = 0; r < RANKS; r++)
            assert_false(ledger_has(&ledger, b, r, 7, 1));
    ledger_close(&ledger);
    assert_null(ledger.entries);
}

TEST(an_empty_shard_has_an_empty_ledger) {
    struct ledger ledger;
    assert_true(ledger_open(&ledger, 0, 5));
    ledger_close(&ledger);
}

TEST(rows_of_blocks_are_independent) {
    struct ledger ledger;
    assert_true(ledger_open(&ledger, BLOCKS, RANKS));
    ledger_record(&ledger, 1, 2, 7, 5);
    assert_int_equal(ledger_row(&ledger, 1)[2].incarnation, 7);
    assert_int_equal(ledger_row(&ledger, 1)[2].clock, 5);
    assert_false(ledger_has(&ledger, 0, 2, 7, 5));
    assert_false(ledger_has(&ledger, 1, 1, 7, 5));
    assert_false(ledger_has(&ledger, 1, 3, 7, 5));
    ledger_close(&ledger);
}

/* The model remembers every contribution that was ever taken; the ledger only
 * the last, which must do as clocks of an incarnation rise. */
TEST(the_ledger_agrees_with_a_complete_history) {
    struct philox_sequence random;
    seed_open(&random);
    for (int history = 0; history < 200; history++) {
        static bool taken[BLOCKS][RANKS][INCARNATIONS + 1][CLOCKS + 1];
        uint64_t holder[RANKS], clock[BLOCKS][RANKS];
        struct ledger ledger;
        memset(taken, 0, sizeof taken);
        memset(clock, 0, sizeof clock);
        for (int r = 0; r < RANKS; r++)
            holder[r] = 1;
        assert_true(ledger_open(&ledger, BLOCKS, RANKS));
        for (int event = 0; event < 300; event++) {
            uint32_t b = philox_below(&random, BLOCKS);
            uint32_t r = philox_below(&random, RANKS);
            if (!philox_below(&random, 40) && holder[r] < INCARNATIONS) {
                holder[r]++;
                for (int i = 0; i < BLOCKS; i++)
                    clock[i][r] = 0;
            }
            uint64_t asked = 1 + philox_below(&random, CLOCKS);
            assert_int_equal(ledger_has(&ledger, b, r, holder[r], asked),
                             taken[b][r][holder[r]][asked]);
            if (asked != clock[b][r] + 1)
                continue;
            ledger_record(&ledger, b, r, holder[r], asked);
            taken[b][r][holder[r]][asked] = true;
            clock[b][r] = asked;
        }
        ledger_close(&ledger);
    }
}
