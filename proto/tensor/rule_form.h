/* SPDX-License-Identifier: Apache-2.0 */
/* A rule as its arithmetic for one element takes it (rule_element.h), on any
 * device. */
#ifndef CAPSTAN_RULE_FORM_H
#define CAPSTAN_RULE_FORM_H

#include "proto/config/job/optimizer.h"
#include "proto/tensor/rule_element.h"

struct rule_update; /* rule.h */

/* Which of rule_element.h's functions RULE is. */
enum rule_form rule_form_of(const struct optimizer *rule);

/* What UPDATE's `step`, `rate` and `scale` make of RULE for every element. */
struct rule_constants rule_form_constants(const struct optimizer *rule,
                                          const struct rule_update *update);

#endif
