/* SPDX-License-Identifier: Apache-2.0 */
/* tests/data/frozen.txt: what users, scripts and files depend on, a line for
 * each fact, its first word the class; "#" begins a remark. A class that ends
 * with "?" there has facts that not every machine shows. */
#ifndef CAPSTAN_FROZEN_H
#define CAPSTAN_FROZEN_H

/* Notes a fact, once however often it is found: "CLASS ...". */
void frozen_fact(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* What was noted since the call before, and what the list has of CLASSES ("verb
 * flag"; NULL: all that were not asked for yet), are the same; else the
 * differences are printed and the test fails. */
void frozen_expect(const char *classes);

#endif
