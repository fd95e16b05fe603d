/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/base/version.h"

#include "proto/base/commit.h"

const char version_commit[] = VERSION_COMMIT;
