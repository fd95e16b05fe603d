/* SPDX-License-Identifier: Apache-2.0 */
/* The table of the flags (flag_rows.h): its columns, what reads a value by
 * them, and why a verb's flags do not accept a word. */
#ifndef CAPSTAN_CLI_FLAG_H
#define CAPSTAN_CLI_FLAG_H

#include "commands/cli/options.h"
#include "core/base/amount.h"

#include <argp.h>
#include <stdbool.h>
#include <stddef.h>

enum cli_flag_kind {
    CLI_FLAG_SWITCH,
    CLI_FLAG_TEXT,
    CLI_FLAG_WORD,   /* one of the words; the member counts them from 1 */
    CLI_FLAG_COUNT,  /* a whole number */
    CLI_FLAG_AMOUNT, /* a number of parameters or bytes */
    CLI_FLAG_REAL,
    CLI_FLAG_COUNTS, /* ascending numbers of processes */
    CLI_FLAG_SIZES,
    CLI_FLAG_KEY,  /* the setting of a key of the job */
    CLI_FLAG_OTHER /* the function alone */
};

struct cli_flag_value;

struct cli_flag {
    enum cli_flag_kind kind;
    size_t offset, given; /* of the member and its `given` in struct options;
                             given 0: none */
    bool declares;        /* a FLAG: its default is that of other verbs too */
    unsigned verbs;       /* bit 1 << enum cli_command_id of each */
    const char *name;     /* NULL: a heading */
    const char *value, *text;
    int group;            /* of a heading */
    char letter;          /* its short name; 0: none */
    const char *also;     /* another name, or a letter */
    bool optional;        /* the value may be missing */
    const char *standard; /* the default, as a user would write it */
    double min, max;
    struct amount amount;
    const char *noun;  /* what a COUNT takes within its bounds */
    const char *takes; /* what it takes, for errors; NULL: from its bounds */
    const char *words; /* its values, separated by blanks, or the best known
                          of them; a TEXT that takes something takes only
                          these */
    const char *key;   /* of the job */
    unsigned handed;   /* verbs that hand it on to the processes they start */
    /* Reads the value instead. On false without a problem the error says what
     * the flag takes. */
    bool (*own)(const struct cli_flag_value *given);
};

struct cli_flag_value {
    struct options *options;
    const struct cli_flag *flag;
    const char *text;
    char *problem;
    size_t size;
};

/* argp's array of the flags of VERB; its keys are for cli_flag_of. */
enum { CLI_FLAG_MAX = 96 };
void cli_flag_options(enum cli_command_id verb,
                      struct argp_option options[CLI_FLAG_MAX]);

/* Is OPTION the empty entry that ends an array? */
bool cli_flag_is_end(const struct argp_option *option);

/* The flag of argp's KEY, or NULL. */
const struct cli_flag *cli_flag_of(int key);

/* Sets FLAG to TEXT (NULL: none), which is borrowed. On false PROBLEM [SIZE]
 * says what was found and what is allowed. */
bool cli_flag_set(struct options *options, const struct cli_flag *flag,
                  const char *text, char *problem, size_t size);

/* Sets the defaults of all flags, where verbs differ those of VERB. */
void cli_flag_set_defaults(struct options *options, enum cli_command_id verb);

/* Was a flag that only GROUP of the verb's flags has given? */
bool cli_flag_group_given(const struct options *options, int group);

/* The words of OPTIONS' flags that VERB hands on to the processes it starts,
 * each ended by NUL, then an empty one; the caller frees them. NULL: no
 * memory. */
char *cli_flag_handed(const struct options *options, enum cli_command_id verb);

/* True if WORD is a long flag but not the full name of any of OPTIONS: argp
 * would accept it as an abbreviation. */
bool cli_flag_is_abbreviated(const struct argp_option *options,
                             const char *word);

/* Writes to TEXT (SIZE bytes) why WORD is not accepted as one of OPTIONS, which
 * end with an empty entry: unknown, with the nearest flag; a missing value; or
 * a value that the flag does not take. False if WORD is accepted or is not a
 * flag. */
bool cli_flag_error(const struct argp_option *options, const char *word,
                    char *text, size_t size);

#endif
