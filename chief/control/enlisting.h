/* SPDX-License-Identifier: Apache-2.0 */
/* Who trains, as a view lists it: told to the ps, and by them to who may start.
 */
#ifndef CAPSTAN_ENLISTING_H
#define CAPSTAN_ENLISTING_H

#include "chief/run.h"

/* A new view to all ps; trainers that it newly lists get it once every ps has
 * it (enlisting_seen). */
void enlisting_begin(struct run *run);

/* A ps has acknowledged a view: once all have the newest, trainers that it
 * newly lists get it. */
void enlisting_seen(struct run *run);

#endif
