/* SPDX-License-Identifier: Apache-2.0 */
/* TensorBoard event files: scalars and contents of plugins in the TFRecord
 * framing with masked CRC32C (tensorflow/core/lib/io/record_writer.h,
 * event.proto, summary.proto). */
#ifndef CAPSTAN_TENSORBOARD_WRITER_H
#define CAPSTAN_TENSORBOARD_WRITER_H

#include "core/base/status.h"

#include <stddef.h>
#include <stdint.h>

struct tensorboard_writer;

/* Creates DIR (with parents) and in it a new file
 * events.out.tfevents.TIME.HOST.PID. STATUS_CONFIG: it cannot; WHY names the
 * path. */
enum status tensorboard_writer_open(struct tensorboard_writer **out,
                                    const char *dir,
                                    struct failure *why) MUST_CHECK;

/* Appends a scalar; TAG is the name in TensorBoard ("train/loss"), at most 512
 * bytes. After a failure the file may end in a torn record, at which readers
 * stop: close it. */
enum status tensorboard_writer_add_scalar(struct tensorboard_writer *writer,
                                          const char *tag, uint64_t step,
                                          double value,
                                          struct failure *why) MUST_CHECK;

struct histogram_sum;

/* Appends HISTOGRAM, which has finite values: the bins that are not empty, and
 * an empty one in front of each that does not follow another. */
enum status tensorboard_writer_add_histogram(
    struct tensorboard_writer *writer, const char *tag, uint64_t step,
    const struct histogram_sum *histogram, struct failure *why) MUST_CHECK;

/* Appends what PLUGIN of TensorBoard keeps under TAG: SIZE bytes of CONTENT, a
 * message of its own, and no value. */
enum status tensorboard_writer_add_plugin(struct tensorboard_writer *writer,
                                          const char *tag, const char *plugin,
                                          uint8_t *content, size_t size,
                                          struct failure *why) MUST_CHECK;

/* The run resumes before STEP: readers drop what earlier files of the folder
 * have from STEP on (TensorFlow's SessionLog START). */
enum status tensorboard_writer_restart(struct tensorboard_writer *writer,
                                       uint64_t step,
                                       struct failure *why) MUST_CHECK;

/* From now on a thread writes, so that no call waits for the disk. It follows
 * what is flushed. TESTS_OF (0: none): a step that is tested again, of which
 * readers first drop what earlier files of the folder have under test/. After a
 * failure: close it. */
enum status tensorboard_writer_detach(struct tensorboard_writer *writer,
                                      uint64_t tests_of,
                                      struct failure *why) MUST_CHECK;

/* Passes the buffer to the kernel, so that readers see it. */
enum status tensorboard_writer_flush(struct tensorboard_writer *writer,
                                     struct failure *why) MUST_CHECK;

/* Closes *WRITER (may be NULL) once all is written; of a thread that has not
 * written it by UNTIL the rest is lost. The status is that of all its writes.
 */
enum status tensorboard_writer_finish(struct tensorboard_writer **writer,
                                      int64_t until,
                                      struct failure *why) MUST_CHECK;

/* Accepts a pointer to NULL. Errors on data that was not flushed are not
 * reported, and a thread is not waited for. */
void tensorboard_writer_close(struct tensorboard_writer **writer);

#endif
