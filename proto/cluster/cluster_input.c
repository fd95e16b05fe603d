/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/cluster/cluster_input.h"

#include <string.h>

const char *cluster_input_text(const char *text) {
    return text && text[strspn(text, " \t\r\n\v\f")] ? text : NULL;
}

const char *cluster_input_variable(const struct cluster_input *input,
                                   const char *name) {
    return cluster_input_text(input->lookup(input->context, name));
}
