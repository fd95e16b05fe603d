/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/test.h"

#include <pthread.h>

static struct text {
    struct text *next;
    char text[];
} * texts; /* all of textf */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

const char *textf(const char *format, ...) {
    va_list values;
    va_start(values, format);
    size_t size = (size_t)vsnprintf(NULL, 0, format, values) + 1;
    va_end(values);
    struct text *text = malloc(sizeof *text + size);
    assert_non_null(text);
    va_start(values, format);
    vsnprintf(text->text, size, format, values);
    va_end(values);
    pthread_mutex_lock(&lock);
    text->next = texts;
    texts = text;
    pthread_mutex_unlock(&lock);
    return text->text;
}

void assert_contains_at(const char *text, const char *part, const char *file,
                        int line) {
    if (text && strstr(text, part))
        return;
    print_error("no \"%s\" in: %s\n", part, text ? text : "(none)");
    _fail(file, line);
}
