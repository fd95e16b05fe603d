/* SPDX-License-Identifier: Apache-2.0 */
/* A rule in the form that the arithmetic of one element uses (rule_element.h),
 * on any device. */
#ifndef CAPSTAN_RULE_FORM_H
#define CAPSTAN_RULE_FORM_H

#include "core/tensor/optimizer.h"
#include "core/tensor/rule_element.h"

struct rule_update; /* rule.h */

/* The function of rule_element.h for RULE. */
enum rule_form rule_form_of(const struct optimizer *rule);

/* The constants of RULE for UPDATE's `step`, `rate` and `scale`, the same for
 * every element. */
struct rule_constants rule_form_constants(const struct optimizer *rule,
                                          const struct rule_update *update);

#endif
