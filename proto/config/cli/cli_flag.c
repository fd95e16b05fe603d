/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/config/cli/cli_flag.h"

#include "proto/config/diagnostics.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { MAX_NAME = 64 };

static bool is_end(const struct argp_option *option) {
    return !option->name && !option->key && !option->doc && !option->group;
}

/* The name in WORD, after one dash or two. */
static const char *name_in(const char *word) {
    return word + 1 + (word[1] == '-');
}

/* The flag named by WORD up to its "=", or NULL. */
static const struct argp_option *cli_flag_find(
    const struct argp_option *options, const char *word) {
    const char *name = name_in(word);
    size_t length = strcspn(name, "=");
    for (; !is_end(options); options++)
        if (options->name && strlen(options->name) == length &&
            !strncmp(options->name, name, length))
            return options;
    return NULL;
}

static bool has_two_dashes(const char *word) {
    return word[0] == '-' && word[1] == '-';
}

/* What other programs call a flag. */
static const char *const foreign_names[][2] = {
    {"lr", "learning_rate"},       {"max_steps", "train_steps"},
    {"num_steps", "train_steps"},  {"num_ps", "ps"},
    {"num_servers", "ps"},         {"num_workers", "workers"},
    {"nproc_per_node", "workers"},
};

/* A and B are one name if dashes are underscores. */
static bool same_name(const char *a, const char *b) {
    while (*a && (*a == '-' ? '_' : *a) == (*b == '-' ? '_' : *b)) {
        a++;
        b++;
    }
    return !*a && !*b;
}

/* NAME is what other programs call OPTION, or has words before it. */
static bool means_flag(const char *name, const char *option) {
    size_t count = sizeof foreign_names / sizeof *foreign_names;
    size_t length = strlen(name), end = strlen(option);
    for (size_t i = 0; i < count; i++)
        if (same_name(name, foreign_names[i][0]) &&
            !strcmp(option, foreign_names[i][1]))
            return true;
    return end > 3 && length > end + 1 &&
           strchr("-_", name[length - end - 1]) &&
           same_name(name + length - end, option);
}

/* The flag that NAME means, the nearest to it, else the first that begins with
 * it, or NULL. */
static const char *find_nearest(const struct argp_option *options,
                                const char *name) {
    unsigned best = diagnostics_nearest_limit(name) + 1;
    const char *found = NULL;
    for (; !is_end(options); options++) {
        if (!options->name)
            continue;
        unsigned distance = diagnostics_nearest_distance(name, options->name);
        if (means_flag(name, options->name))
            return options->name;
        if (!found && *name && !strncmp(options->name, name, strlen(name)))
            found = options->name;
        if (distance < best) {
            best = distance;
            found = options->name;
        }
    }
    return found;
}

static void write_unknown(const struct argp_option *options, const char *name,
                          char *text, size_t size) {
    const char *other = find_nearest(options, name);
    if (other)
        snprintf(text, size, "unknown flag --%s; nearest: --%s", name, other);
    else
        snprintf(text, size, "unknown flag --%s", name);
}

/* The first of LETTERS that is not a flag, or 0. */
static char unknown_letter(const struct argp_option *options,
                           const char *letters) {
    for (; *letters; letters++) {
        const struct argp_option *option = options;
        while (!is_end(option) && option->key != *letters)
            option++;
        if (is_end(option))
            return *letters;
    }
    return 0;
}

static bool check_letters(const struct argp_option *options,
                          const char *letters, char *text, size_t size) {
    char letter = unknown_letter(options, letters);
    if (letter)
        snprintf(text, size, "unknown flag -%c", letter);
    return letter;
}

bool cli_flag_is_abbreviated(const struct argp_option *options,
                             const char *word) {
    return word[0] == '-' && word[1] && !cli_flag_find(options, word) &&
           (has_two_dashes(word) || unknown_letter(options, word + 1));
}

/* True for WORD with one dash that is no name, and near none: letters. */
static bool is_letters(const struct argp_option *options, const char *word) {
    enum { LETTERS = 3 };
    char name[MAX_NAME];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(word + 1, "="), word + 1);
    return !has_two_dashes(word) && !cli_flag_find(options, word) &&
           (strlen(name) <= LETTERS || !find_nearest(options, name));
}

bool cli_flag_error(const struct argp_option *options, const char *word,
                    char *text, size_t size) {
    char name[MAX_NAME];
    if (word[0] != '-' || !word[1])
        return false;
    if (is_letters(options, word))
        return check_letters(options, word + 1, text, size);
    bool with_value = strchr(word, '=');
    const struct argp_option *flag = cli_flag_find(options, word);
    snprintf(name, sizeof name, "%.*s", (int)strcspn(name_in(word), "="),
             name_in(word));
    if (flag && !flag->arg == !with_value)
        return false;
    if (!flag)
        write_unknown(options, name, text, size);
    else if (with_value)
        snprintf(text, size, "--%s takes no value", flag->name);
    else
        snprintf(text, size, "--%s takes a value: --%s=%s", flag->name,
                 flag->name, flag->arg);
    return true;
}
