/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/version.h"

#include "core/base/commit.h"

const char version_commit[] = VERSION_COMMIT;
