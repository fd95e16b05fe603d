/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CAPSTAN_JSON_NUMBER_H
#define CAPSTAN_JSON_NUMBER_H

#include <jansson.h>

/* The number KEY of OBJECT; where there is none the test fails. */
double number_at(const json_t *object, const char *key);

#endif
