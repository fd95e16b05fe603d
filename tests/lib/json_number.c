/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/json_number.h"
#include "tests/lib/test.h"

double number_at(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    if (!json_is_number(value))
        fail_msg("no number \"%s\"", key);
    return json_number_value(value);
}
