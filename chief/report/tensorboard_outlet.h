/* SPDX-License-Identifier: Apache-2.0 */
/* The points of a run as scalars of TensorBoard (tensorboard.*). */
#ifndef CAPSTAN_TENSORBOARD_OUTLET_H
#define CAPSTAN_TENSORBOARD_OUTLET_H

#include "chief/report/point.h"

/* Of a run that resumes readers drop what an earlier one wrote of later steps.
 */
enum status tensorboard_outlet_open(struct point_outlet *outlet,
                                    const struct run *run,
                                    struct failure *why) MUST_CHECK;

#endif
