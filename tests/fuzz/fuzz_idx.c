/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/data/idx_file.h"

#include "tests/fuzz/fuzz.h"

#include <stdlib.h>

/* Plain and compressed files: the content's first bytes tell. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    struct idx_file file;
    struct failure why;
    enum status status = idx_file_read(&file, fuzz_file(bytes, size), "images",
                                       1, IDX_FILE_MAX_DIMS, &why);
    if (!fuzz_is_read(status, &why))
        return 0;
    fuzz_touch(file.data, file.bytes);
    free(file.data);
    return 0;
}
