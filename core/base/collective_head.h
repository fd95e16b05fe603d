/* SPDX-License-Identifier: Apache-2.0 */
/* The head of a collectives plugin's table: tells its kind and version. It
 * begins with a plugin_head. worker/collective/collective.h has the whole
 * table. */
#ifndef CAPSTAN_COLLECTIVE_HEAD_H
#define CAPSTAN_COLLECTIVE_HEAD_H

enum { COLLECTIVE_ABI = 11 };
#define COLLECTIVE_SYMBOL "capstan_collective"

#endif
