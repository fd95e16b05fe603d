/* SPDX-License-Identifier: Apache-2.0 */
/* The rows that a caller looks up and the gradients that it pushes, step by
 * step. Gradients of the lists that were looked up last, each once and in any
 * order, are summed in place; others are kept until the step ends. Zeroed at
 * first; one thread at a time. */
#ifndef CAPSTAN_TABLE_STEPS_H
#define CAPSTAN_TABLE_STEPS_H

#include "worker/exchange/client/row_batch.h"
#include "worker/train/external.h"

enum { TABLE_STEPS_LISTS = 6 };

/* Lists of ids, and their batch. */
struct row_lists {
    struct row_batch batch;
    struct id_list {
        uint32_t table;
        bool summed; /* its gradients are in `batch` */
        size_t count, first_id;
    } * lists;     /* [num_lists] */
    uint64_t *ids; /* of all lists [num_ids] */
    size_t num_lists, room_lists, num_ids, room_ids;
    size_t num_summed; /* lists */
};

struct table_steps {
    const struct layout *layout; /* borrowed */
    struct row_batch_index *index;
    struct row_lists lists[TABLE_STEPS_LISTS];
    struct row_lists *read;     /* looked up last; NULL: none in this step */
    struct row_lists *awaited;  /* looked up, its rows not yet taken */
    struct row_lists *prepared; /* its lookup has not begun */
    struct row_lists *summed;   /* not yet pushed */
    struct row_lists *sent[2];  /* pushed last, and before */
    struct pushed_rows *kept, **end;
};

enum status table_steps_open(struct table_steps *steps,
                             const struct layout *layout,
                             struct failure *why) MUST_CHECK;
void table_steps_close(struct table_steps *steps);

/* Begins a lookup of COUNT lists ROWS; none is awaited. Its batch goes out. */
enum status table_steps_look_up(struct table_steps *steps,
                                const struct external_rows *rows,
                                uint32_t count, struct failure *why) MUST_CHECK;

/* The same in two steps: table_steps_begin when none is awaited. */
enum status table_steps_prepare(struct table_steps *steps,
                                const struct external_rows *rows,
                                uint32_t count, struct failure *why) MUST_CHECK;
void table_steps_begin(struct table_steps *steps);

/* The awaited lookup has its weights: its lists, for table_steps_copy. */
struct row_lists *table_steps_take(struct table_steps *steps);

/* Copies them to the VALUES of the same ROWS, before the next lookup is listed.
 */
void table_steps_copy(const struct table_steps *steps,
                      const struct row_lists *lists,
                      const struct external_rows *rows, uint32_t count);

/* Whether the awaited lookup is of the lists ROWS. */
bool table_steps_awaits(const struct table_steps *steps,
                        const struct external_rows *rows, uint32_t count);

/* Nobody wants what the awaited lookup brings. */
void table_steps_drop(struct table_steps *steps);

/* Adds gradients, which are copied, to this step. */
enum status table_steps_add(struct table_steps *steps,
                            const struct external_rows *rows,
                            struct failure *why) MUST_CHECK;

/* Ends a step, and drops what is prepared: *BATCH has the sums of its
 * gradients, row by row and in the order in which they were added; NULL: none
 * was. */
enum status table_steps_sum(struct table_steps *steps, struct row_batch **batch,
                            struct failure *why) MUST_CHECK;

/* That batch is on its way, and stays as it is until the second one after it
 * is: by then it has been taken. */
void table_steps_sent(struct table_steps *steps);

#endif
