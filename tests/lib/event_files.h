/* SPDX-License-Identifier: Apache-2.0 */
/* What TensorBoard shows of a folder of event files. */
#ifndef CAPSTAN_EVENT_FILES_H
#define CAPSTAN_EVENT_FILES_H

#include <stdint.h>

struct event_point {
    int64_t step;
    double value;
};

/* Reads the scalars of TAG in FOLDER, of all its files in the order of their
 * names, into POINTS, room for SIZE; how many. A file that says that its run
 * goes on before a step takes away what there is from that step on. */
unsigned event_files_read(const char *folder, const char *tag,
                          struct event_point *points, unsigned size);

/* The same as a text, "10:2.5 20:2 ", until the next call. */
const char *event_files_text(const char *folder, const char *tag);

/* Every tag that the files of FOLDER have, each once and a space behind it,
 * until the next call. */
char *event_files_tags(const char *folder);

#endif
