/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that the rows of a model's tables take: on the ps, which have them,
 * and if by all-reduce each trainer had them all. */
#ifndef CAPSTAN_TABLE_MEMORY_H
#define CAPSTAN_TABLE_MEMORY_H

#include "chief/run.h"

#include <stdint.h>

struct table_memory {
    uint64_t rows;       /* that there may be; of a table without a bound those
                            that there are now */
    uint64_t bytes;      /* of these rows on all ps, with optimizer state */
    uint64_t dense;      /* of their weights alone */
    uint64_t replicated; /* of a copy on each trainer, with gradients and state
                          */
    uint32_t unbounded;  /* tables that may have any number of rows */
};

/* Bytes of a row of TABLE, with optimizer state. */
uint64_t table_memory_row_bytes(const struct run *run,
                                const struct table *table);

/* Of all tables of RUN's plan; zero without tables. */
struct table_memory table_memory_of(const struct run *run);

/* Free bytes of the process that had the fewest when it joined, a ps, or a
 * trainer if TRAINS; its share of a limit that several have. 0: unknown. */
uint64_t table_memory_free(const struct run *run, bool trains);

/* How it begins that there is too little. */
#define TABLE_MEMORY_TOO_LARGE "the rows that tables may have take"

/* In all-reduce: FAILURE_NO_MEMORY if that is more than a trainer has, who
 * would not end in time, FAILURE_JOB_TOO_LARGE if it is more than there is. A
 * ps ends in time. */
enum status table_memory_check(const struct run *run,
                               struct failure *why) MUST_CHECK;

/* Logs what rows may take on a ps, or in all-reduce on each trainer, beside the
 * memory there is; nothing without tables. */
void table_memory_log(const struct run *run);

#endif
