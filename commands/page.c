/* SPDX-License-Identifier: Apache-2.0 */
/* The Makefile writes page_text.h by page.sh: page_text, which is page.html
 * with its policy, and PAGE_POLICY. */
#include "commands/page.h"

#include "commands/page_text.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

const char *const page_html = page_text;
const char *const page_policy = PAGE_POLICY "; frame-ancestors 'none'";

/* Where data are, and what stands there without any. */
static const char before_data[] = "application/json\">", no_data[] = "null";

/* As text of a script's element: a "<" in it could end the element, or begin a
 * comment, and JSON has it only in strings. */
static char *escape_json(const json_t *data) {
    char *json =
        json_dumps(data, JSON_COMPACT | JSON_ENSURE_ASCII | JSON_ENCODE_ANY |
                             JSON_REAL_PRECISION(13));
    size_t length = json ? strlen(json) : 0, used = 0;
    char *text = json ? malloc(length * 6 + 1) : NULL;
    for (size_t i = 0; text && i < length; i++) {
        if (json[i] == '<') {
            memcpy(text + used, "\\u003c", 6);
            used += 6;
        } else {
            text[used++] = json[i];
        }
    }
    if (text)
        text[used] = 0;
    free(json);
    return text;
}

char *page_with_data(const json_t *data) {
    char *json = escape_json(data), *page = NULL;
    const char *place = strstr(page_text, before_data) + strlen(before_data);
    if (json && asprintf(&page, "%.*s%s%s", (int)(place - page_text), page_text,
                         json, place + strlen(no_data)) < 0)
        page = NULL;
    free(json);
    return page;
}

enum status page_check_path(const char *flag, const char *path, int source,
                            struct failure *why) {
    struct stat read, there;
    if (stat(path, &there))
        return STATUS_OK;
    if (!S_ISREG(there.st_mode))
        return status_fail(why, FAILURE_OUTPUT_UNUSABLE,
                           "%s %s: that is no regular file", flag, path);
    if (source >= 0 && !fstat(source, &read) && read.st_dev == there.st_dev &&
        read.st_ino == there.st_ino)
        return status_fail(why, FAILURE_OUTPUT_UNUSABLE,
                           "%s %s: that is the file to read; name another one",
                           flag, path);
    return STATUS_OK;
}
