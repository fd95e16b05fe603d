/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/messages/message.h"
#include "proto/plan/plan.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>

static void read_layout(const Capstan__Plan *plan) {
    struct layout *layout;
    struct failure why;
    enum status status =
        plan_layout(&layout, plan->parameters, plan->n_parameters, &why);
    if (!fuzz_is_read(status, &why))
        return;
    (void)fuzz_is_read(plan_read_tables(layout, plan->tables, plan->n_tables,
                                        plan->partitions, &why),
                       &why);
    (void)layout_digest(layout);
    layout_free(&layout);
}

static void read_message(const uint8_t *bytes, size_t size) {
    Capstan__Control *control;
    struct failure why;
    enum status status = message_read_control(&control, bytes, size, &why);
    if (!fuzz_is_read(status, &why))
        return;
    if (control->body_case == CAPSTAN__CONTROL__BODY_PLAN)
        read_layout(control->plan);
    message_free_control(&control);
}

/* A message of the chief or to it, and the layout of the plan in it. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    read_message(bytes, size);
    uint8_t *message = fuzz_message(bytes, &size);
    read_message(message, size);
    free(message);
    return 0;
}
