/* SPDX-License-Identifier: Apache-2.0 */
/* The release, and the commit that was built. */
#ifndef CAPSTAN_VERSION_H
#define CAPSTAN_VERSION_H

#define VERSION_TEXT "0.1.0"

/* Its first 12 digits, then "-dirty" where files differed from it; "unknown"
 * where the sources were no checkout and no export of one. */
extern const char version_commit[];

#endif
