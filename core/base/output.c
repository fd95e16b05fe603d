/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/output.h"

#include <errno.h>

enum status output_finish(FILE *out, struct failure *why) {
    if (fflush(out))
        return status_errno(why, FAILURE_FILE_UNWRITABLE, errno,
                            "cannot write to standard output");
    /* Of a write that failed before, the error's number is lost. */
    return ferror(out)
               ? status_fail(why, FAILURE_FILE_UNWRITABLE,
                             "cannot write all to standard output: is its "
                             "disk full, or its reader gone?")
               : STATUS_OK;
}
