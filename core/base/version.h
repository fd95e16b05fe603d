/* SPDX-License-Identifier: Apache-2.0 */
/* The release and the commit built. */
#ifndef CAPSTAN_VERSION_H
#define CAPSTAN_VERSION_H

#define VERSION_TEXT "0.1.0"

/* The commit's first 12 digits, then "-dirty" if files differed from it;
 * "unknown" if the sources were neither a checkout nor an export. */
extern const char version_commit[];

#endif
