/* SPDX-License-Identifier: Apache-2.0 */
/* Where a caller's thread finds the roles of this process while they run. */
#ifndef CAPSTAN_REPORT_BOARD_H
#define CAPSTAN_REPORT_BOARD_H

#include "core/base/health.h"

#include <jansson.h>

struct report_board;

/* NULL: no memory. */
struct report_board *report_board_open(void);

/* Frees *BOARD (may be NULL) and clears it. */
void report_board_close(struct report_board **board);

/* HEALTHS[COUNT], borrowed until the next call; 0: no role runs any more. BOARD
 * may be NULL. */
void report_board_set(struct report_board *board, struct health *const *healths,
                      unsigned count);

/* The report (process_report.h) of all processes where the chief is here and
 * gives one in time, else of this process; the caller's. NULL: no role runs. */
json_t *report_board_read(struct report_board *board);

#endif
