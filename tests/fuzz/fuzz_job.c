/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/job/job.h"

#include "tests/fuzz/fuzz.h"
#include "worker/models/model.h"

#include <string.h>

/* A job file; the text that the chief sends of it says the same. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    const struct log silent = {.silent = true};
    const struct job_source source = {.models = &model_schemas,
                                      .path = fuzz_file(bytes, size)};
    struct job *job, *sent;
    struct failure why;
    if (fuzz_is_read(job_load(&job, &source, &silent, &why), &why)) {
        enum status status = job_parse(&sent, job->text, &model_schemas, &why);
        fuzz_require(fuzz_is_read(status, &why), "a job's text is a job");
        fuzz_require(!strcmp(sent->text, job->text), "the text is the same");
        job_free(&sent);
        job_free(&job);
    }
    return 0;
}
