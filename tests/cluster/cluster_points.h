/* SPDX-License-Identifier: Apache-2.0 */
/* The same points in every format that has floats. */
#ifndef CAPSTAN_CLUSTER_POINTS_H
#define CAPSTAN_CLUSTER_POINTS_H

#include "tests/cluster/cluster_run.h"

/* Writes points of 4 floats x from -3 to 3 and a number y for each, nearly a
 * linear function of x: as IDX in FOLDER/x.idx and FOLDER/y.idx, as xy.csv with
 * the header x0,x1,x2,x3,y, and as xy.npy (a structured array), xy.npz,
 * xy.safetensors and xy.tfrecord. y is a double in IDX and xy.npy, the same
 * rounded to float elsewhere. */
void cluster_points_write(const struct cluster_run *run);

#endif
