/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/frozen.h"
#include "tests/lib/test.h"

enum { MOST = 2048, LINE = 512 };

struct lines {
    char text[MOST][LINE];
    unsigned count;
};
static struct lines facts, list; /* list: what nobody has asked for yet */

static void add(struct lines *lines, const char *text) {
    assert_true(lines->count < MOST);
    snprintf(lines->text[lines->count++], LINE, "%s", text);
}

static void drop(struct lines *lines, unsigned i) {
    memmove(lines->text[i], lines->text[i + 1],
            (size_t)(--lines->count - i) * LINE);
}

void frozen_fact(const char *format, ...) {
    char line[LINE];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    assert_in_range(length, 1, LINE - 1);
    for (unsigned i = 0; i < facts.count; i++)
        if (!strcmp(facts.text[i], line))
            return;
    add(&facts, line);
}

static void read_list(void) {
    static bool done;
    char line[LINE];
    if (done)
        return;
    FILE *file = fopen("tests/data/frozen.txt", "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        if (line[0] && line[0] != '#')
            add(&list, line);
    }
    fclose(file);
    done = true;
}

/* Takes the line of the list that is FACT, "?" behind its class or not. */
static bool take(const char *fact) {
    size_t class = strcspn(fact, " ");
    for (unsigned i = 0; i < list.count; i++) {
        const char *line = list.text[i];
        bool optional = strcspn(line, " ") == class + 1 && line[class] == '?';
        if (!strncmp(line, fact, class) &&
            !strcmp(line + class + optional, fact + class)) {
            drop(&list, i);
            return true;
        }
    }
    return false;
}

/* Is LINE's class one of CLASSES? */
static bool is_of(const char *line, const char *classes) {
    size_t length = strcspn(line, " ?");
    for (; *classes; classes += strspn(classes, " ")) {
        size_t word = strcspn(classes, " ");
        if (word == length && !strncmp(classes, line, length))
            return true;
        classes += word;
    }
    return false;
}

static unsigned print_gone(const char *classes) {
    unsigned gone = 0;
    for (unsigned i = 0; i < list.count;) {
        const char *line = list.text[i];
        if (classes && !is_of(line, classes)) {
            i++;
            continue;
        }
        if (line[strcspn(line, " ?")] != '?' && ++gone)
            print_error("- %s\n", line);
        drop(&list, i);
    }
    return gone;
}

void frozen_expect(const char *classes) {
    unsigned added = 0;
    read_list();
    for (unsigned i = 0; i < facts.count; i++)
        if (!take(facts.text[i]) && ++added)
            print_error("+ %s\n", facts.text[i]);
    facts.count = 0;
    unsigned gone = print_gone(classes);
    if (added || gone)
        fail_msg(
            "tests/data/frozen.txt: %u facts are not in it (+), %u that it "
            "has are not found (-); users depend on each",
            added, gone);
}
