/* SPDX-License-Identifier: Apache-2.0 */
/* What tells a plugin of collectives from others and from older ones; it begins
 * with a plugin_head. Its whole table is worker/collective/collective.h's. */
#ifndef CAPSTAN_COLLECTIVE_HEAD_H
#define CAPSTAN_COLLECTIVE_HEAD_H

enum { COLLECTIVE_ABI = 5 };
#define COLLECTIVE_SYMBOL "capstan_collective"

#endif
