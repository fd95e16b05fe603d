/* SPDX-License-Identifier: Apache-2.0 */
#include "commands/cli/cli_flag.h"

#include "core/base/decimal.h"
#include "core/base/diagnostics.h"
#include "core/base/trace.h"
#include "proto/cluster/address.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum { MAX_NAME = 64, MAX_LIST = 512, MAX_PROCESSES = 1024, FIRST_KEY = 0x100 };

static bool has_equals_sign(const char *text, unsigned count, unsigned most) {
    return count < most && strchr(text, '=');
}

static bool keep_set(const struct cli_flag_value *given, const char *set) {
    struct options *options = given->options;
    if (!has_equals_sign(set, options->num_sets, OPTIONS_MAX_SETS)) {
        snprintf(given->problem, given->size,
                 "--set takes KEY.PATH=VALUE, not '%s'", set);
        return false;
    }
    options->sets[options->num_sets++] = set;
    return true;
}

static bool add_set(const struct cli_flag_value *given) {
    return keep_set(given, given->text);
}

static bool add_input(const struct cli_flag_value *given) {
    struct options *options = given->options;
    if (!has_equals_sign(given->text, options->num_inputs, OPTIONS_MAX_INPUTS))
        return false;
    options->inputs[options->num_inputs++] = given->text;
    return true;
}

static bool set_json_log(const struct cli_flag_value *given) {
    given->options->log_format = LOG_FORMAT_JSON;
    return true;
}

static bool set_metrics_port(const struct cli_flag_value *given) {
    struct cluster_task ignored;
    given->options->metrics_port = given->text;
    return address_parse_listener(&ignored, given->text);
}

static bool set_trace_steps(const struct cli_flag_value *given) {
    uint64_t first, last;
    given->options->trace_steps = given->text;
    return trace_steps_read(given->text, &first, &last);
}

/* A launcher may append --local_rank to a command that already has it. */
static bool set_local_rank(const struct cli_flag_value *given) {
    const char **rank = &given->options->flags.local_rank;
    if (*rank && strcmp(*rank, given->text)) {
        snprintf(given->problem, given->size,
                 "--local_rank is given twice, with different values; the "
                 "second is '%s'",
                 given->text);
        return false;
    }
    *rank = given->text;
    return true;
}

static bool set_wire(const struct cli_flag_value *given) {
    given->options->bf16 = !strcasecmp(given->text, "bf16");
    return given->options->bf16 || !strcasecmp(given->text, "float32");
}

/* gnuplot chooses its format by the file's ending. */
static bool set_plot(const struct cli_flag_value *given) {
    const char *ending = strrchr(given->text, '.');
    given->options->plot = given->text;
    return ending &&
           (!strcasecmp(ending, ".svg") || !strcasecmp(ending, ".png"));
}

/* Takes SET out of the settings, if it is there: the last one counts. */
static void drop_set(struct options *options, const char *set) {
    unsigned kept = 0;
    for (unsigned i = 0; i < options->num_sets; i++)
        if (options->sets[i] != set)
            options->sets[kept++] = options->sets[i];
    options->num_sets = kept;
}

/* A flag that is given again replaces what it has set, SET. */
static bool replace_set(const struct cli_flag_value *given, const char *set) {
    drop_set(given->options, set);
    return keep_set(given, set);
}

static char *key_set(const struct cli_flag_value *given) {
    return (char *)given->options + given->flag->offset;
}

/* Reads the number of a key, from 0. */
static bool read_key_number(const char *text, double *number) {
    char *end;
    errno = 0;
    *number = strtod(text, &end);
    return !errno && !*end && end != text && *number >= 0 && isfinite(*number);
}

/* Written anew: what strtod takes need not be a number of JSON. */
static bool set_key_real(const struct cli_flag_value *given) {
    double number;
    if (!read_key_number(given->text, &number))
        return false;
    snprintf(key_set(given), OPTIONS_SET, "%s=%.17g", given->flag->key, number);
    return replace_set(given, key_set(given));
}

static bool set_key_count(const struct cli_flag_value *given) {
    double number;
    return read_key_number(given->text, &number) && number <= 1e15 &&
           floor(number) == number && set_key_real(given);
}

static bool set_key_gpus(const struct cli_flag_value *given) {
    double number;
    if (!read_key_number(given->text, &number) || number > 0)
        return set_key_count(given);
    snprintf(key_set(given), OPTIONS_SET, "device=cpu");
    return replace_set(given, key_set(given));
}

/* The batch of one worker would otherwise be accumulated up to that of all. */
static bool set_key_batch(const struct cli_flag_value *given) {
    static const char no_common_batch[] = "train_batch_size=null";
    return replace_set(given, no_common_batch) && set_key_count(given);
}

/* Relative paths start at the working directory. */
static bool set_key_path(const struct cli_flag_value *given) {
    char folder[OPTIONS_SET] = "";
    bool relative = given->text[0] != '/';
    if (!*given->text || (relative && !getcwd(folder, sizeof folder)) ||
        snprintf(key_set(given), OPTIONS_SET, "%s=%s%s%s", given->flag->key,
                 folder, relative ? "/" : "", given->text) >= OPTIONS_SET)
        return false;
    return replace_set(given, key_set(given));
}

/* absl's words of a boolean flag; alone the flag is true. "no" stands in the
 * name of a flag that has no value. */
static bool set_key_bool(const struct cli_flag_value *given) {
    static const char *const words[][2] = {
        {"true", "false"}, {"t", "f"}, {"1", "0"}, {"yes", "no"}, {"y", "n"}};
    const char *text = given->text ? given->text : "true";
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        for (int no = 0; no < 2; no++)
            if (!strcasecmp(text, words[i][no])) {
                bool asynchronous = no != !given->flag->value;
                snprintf(key_set(given), OPTIONS_SET, "%s=%s", given->flag->key,
                         asynchronous ? "inf" : "0");
                return replace_set(given, key_set(given));
            }
    return false;
}

static bool refuse_aggregate(const struct cli_flag_value *given) {
    snprintf(given->problem, given->size,
             "--%s: leave the flag out and set strategy.backup_workers to the "
             "number of trainers less this one, or train with "
             "--sync_replicas=false",
             given->flag->name);
    return false;
}

enum {
    RUN = 1 << CLI_COMMAND_RUN,
    LOCAL = 1 << CLI_COMMAND_LOCAL,
    LAUNCH = 1 << CLI_COMMAND_LAUNCH,
    CLUSTER = 1 << CLI_COMMAND_CLUSTER,
    CKPT = 1 << CLI_COMMAND_CKPT,
    CKPT_LS = 1 << CLI_COMMAND_CKPT_LS,
    CKPT_VERIFY = 1 << CLI_COMMAND_CKPT_VERIFY,
    CKPT_EXPORT = 1 << CLI_COMMAND_CKPT_EXPORT,
    CKPT_DIFF = 1 << CLI_COMMAND_CKPT_DIFF,
    DATA = 1 << CLI_COMMAND_DATA,
    DATA_PEEK = 1 << CLI_COMMAND_DATA_PEEK,
    DATA_BENCH = 1 << CLI_COMMAND_DATA_BENCH,
    EVAL = 1 << CLI_COMMAND_EVAL,
    PREDICT = 1 << CLI_COMMAND_PREDICT,
    INFO = 1 << CLI_COMMAND_INFO,
    STATUS = 1 << CLI_COMMAND_STATUS,
    BENCH = 1 << CLI_COMMAND_BENCH,
    COMPARE = 1 << CLI_COMMAND_COMPARE,
    REPORT = 1 << CLI_COMMAND_REPORT,
    ALL = -1
};

/* Ends a text, and sets the default that it names. */
#define BY_DEFAULT(value) " (default: " value ")", .standard = value
#define BYTES_SUFFIXES "; K, M and G are powers of 1024: 1M is 1MiB, 1048576"
#define METRICS(rest)                                                          \
    "serve a page of the run, /healthz, /status and /report over "             \
    "HTTP on this port of 127.0.0.1, or on ADDRESS:PORT; 0: off" rest
#define INTERFACE(otherwise)                                                   \
    "the network for all traffic: an interface, such as ib0, or the one with " \
    "an address in a CIDR, such as 10.1.0.0/16; the same as "                  \
    "CAPSTAN_INTERFACE (default: " otherwise ")"

#define AT(kind_, member, verbs_, name_, value_, text_, ...)                   \
    {.kind = CLI_FLAG_##kind_,                                                 \
     .offset = offsetof(struct options, member),                               \
     .verbs = (unsigned)(verbs_),                                              \
     .name = name_,                                                            \
     .value = value_,                                                          \
     .text = text_,                                                            \
     __VA_ARGS__},
#define SAME(kind_, member, ...)                                               \
    AT(kind_, member, __VA_ARGS__,                                             \
       .given = offsetof(struct options, given.member))
#define FLAG(kind_, member, ...)                                               \
    SAME(kind_, member, __VA_ARGS__, .declares = true)
#define HEADING(verbs_, text_, group_)                                         \
    {.verbs = verbs_, .text = text_, .group = group_},

static const struct cli_flag flags[] = {
#include "commands/cli/flag_rows.h"
};

static const struct cli_flag *const flags_end =
    flags + sizeof flags / sizeof *flags;

void cli_flag_options(enum cli_command_id verb,
                      struct argp_option options[CLI_FLAG_MAX]) {
    int group = 0;
    for (const struct cli_flag *flag = flags; flag < flags_end; flag++) {
        const char *also = flag->also;
        if (!(flag->verbs & 1u << verb))
            continue;
        group = flag->name ? group : flag->group;
        int key = flag->letter ? flag->letter : FIRST_KEY + (int)(flag - flags);
        *options++ = (struct argp_option){
            flag->name,  flag->name ? key : 0,
            flag->value, flag->optional ? OPTION_ARG_OPTIONAL : 0,
            flag->text,  flag->letter ? -1 : group};
        if (also)
            *options++ = (struct argp_option){.name = also[1] ? also : NULL,
                                              .key = also[1] ? 0 : *also,
                                              .flags = OPTION_ALIAS,
                                              .group = group};
    }
    *options = (struct argp_option){0};
}

bool cli_flag_is_end(const struct argp_option *option) {
    return !option->name && !option->key && !option->doc && !option->group;
}

const struct cli_flag *cli_flag_of(int key) {
    for (const struct cli_flag *flag = flags; flag < flags_end; flag++) {
        const char *also = flag->also;
        if (key == FIRST_KEY + (flag - flags) ||
            (flag->letter && key == flag->letter) ||
            (also && !also[1] && key == *also))
            return flag;
    }
    return NULL;
}

/* The place of WORD in WORDS, which blanks separate, from 1; 0: none. */
static unsigned word_number(const char *words, const char *word) {
    size_t length = strlen(word);
    for (unsigned number = 1; *words; number++) {
        size_t here = strcspn(words, " ");
        if (here == length && !strncmp(words, word, length))
            return number;
        words += here + (words[here] == ' ');
    }
    return 0;
}

/* Adds one entry to a list of sizes. Returns NULL, or the problem. */
static const char *add_size(struct options_sizes *sizes,
                            const struct amount *amount, const char *text) {
    uint64_t bytes;
    if (!amount_parse(amount, text, &bytes))
        return "takes a list such as 64,4K,1M";
    for (unsigned i = 0; i < sizes->count; i++)
        if (sizes->values[i] == bytes)
            return "names a size twice";
    if (sizes->count == OPTIONS_MAX_SIZES)
        return "takes at most 16 sizes";
    sizes->values[sizes->count++] = bytes;
    return NULL;
}

static bool set_sizes(const struct cli_flag_value *given,
                      struct options_sizes *sizes) {
    const struct amount *amount = &given->flag->amount;
    const char *text = given->text;
    char list[MAX_LIST], allowed[192], *rest = NULL;
    sizes->count = 0;
    snprintf(list, sizeof list, "%s", text);
    char *word = strtok_r(list, ",", &rest);
    const char *error = word ? NULL : add_size(sizes, amount, "");
    for (; word && !error; word = strtok_r(NULL, ",", &rest)) {
        error = add_size(sizes, amount, word);
        text = word;
    }
    amount_allowed(amount, allowed, sizeof allowed);
    if (error)
        snprintf(given->problem, given->size, "--%s %s: '%.32s'; allowed: %s",
                 given->flag->name, error, text, allowed);
    return !error;
}

/* Adds one number to LIST. Returns NULL, or the problem. */
static const char *add_number(struct job_counts *list, const char *text) {
    uint64_t value;
    if (!decimal_parse(text, &value) || value < 1 || value > MAX_PROCESSES)
        return "numbers from 1 to 1024, such as 1,2,4, not '%s'";
    if (list->count && list->values[list->count - 1] >= value)
        return "ascending numbers, such as 1,2,4; '%s' is not above the one "
               "before it";
    if (list->count == JOB_MAX_COUNTS)
        return "at most 16 numbers; '%s' is one too many";
    list->values[list->count++] = (unsigned)value;
    return NULL;
}

static bool set_counts(const struct cli_flag_value *given,
                       struct job_counts *list) {
    char words[MAX_LIST], error_text[128], *rest = NULL;
    const char *text = given->text;
    list->count = 0;
    snprintf(words, sizeof words, "%s", text);
    char *word = strtok_r(words, ",", &rest);
    const char *error = word ? NULL : "numbers such as 1,2,4, not '%s'";
    for (; word && !error; word = strtok_r(NULL, ",", &rest)) {
        error = add_number(list, word);
        text = word;
    }
    if (!error)
        return true;
    snprintf(error_text, sizeof error_text, error, text);
    snprintf(given->problem, given->size, "--%s takes %s", given->flag->name,
             error_text);
    return false;
}

static bool set_amount(const struct cli_flag_value *given, uint64_t *value) {
    char allowed[192];
    if (amount_parse(&given->flag->amount, given->text, value))
        return true;
    amount_allowed(&given->flag->amount, allowed, sizeof allowed);
    snprintf(given->problem, given->size, "--%s takes %s; not '%.32s'",
             given->flag->name, allowed, given->text);
    return false;
}

static bool set_real(const struct cli_flag_value *given, double *value) {
    char *end;
    *value = strtod(given->text, &end);
    return !*end && end != given->text && *value >= given->flag->min &&
           *value <= given->flag->max;
}

static bool set_count(const struct cli_flag_value *given, uint64_t *value) {
    return decimal_parse(given->text, value) &&
           *value < UINT64_MAX && /* else it is larger */
           (double)*value >= given->flag->min &&
           (double)*value <= given->flag->max;
}

static bool set_value(const struct cli_flag_value *given) {
    const struct cli_flag *flag = given->flag;
    void *member = (char *)given->options + flag->offset;
    if (flag->own)
        return flag->own(given);
    switch (flag->kind) {
    case CLI_FLAG_SWITCH:
        *(bool *)member = true;
        return true;
    case CLI_FLAG_TEXT:
        *(const char **)member = given->text;
        return !flag->takes || word_number(flag->words, given->text);
    case CLI_FLAG_WORD:
        return (*(unsigned *)member = word_number(flag->words, given->text));
    case CLI_FLAG_COUNT:
        return set_count(given, member);
    case CLI_FLAG_AMOUNT:
        return set_amount(given, member);
    case CLI_FLAG_REAL:
        return set_real(given, member);
    case CLI_FLAG_COUNTS:
        return set_counts(given, member);
    case CLI_FLAG_SIZES:
        return set_sizes(given, member);
    default:
        return false;
    }
}

/* Writes what FLAG takes. */
static void describe_values(const struct cli_flag *flag, char *text,
                            size_t size) {
    const char *noun = flag->noun ? flag->noun : "a whole number";
    if (flag->takes)
        snprintf(text, size, "%s", flag->takes);
    else if (flag->kind == CLI_FLAG_REAL)
        snprintf(text, size, "a number from %g to %g", flag->min, flag->max);
    else
        snprintf(text, size, "%s from %.0f to %.0f", noun, flag->min,
                 flag->max);
}

bool cli_flag_set(struct options *options, const struct cli_flag *flag,
                  const char *text, char *problem, size_t size) {
    struct cli_flag_value given = {options, flag, text, problem, size};
    char takes[128];
    *problem = '\0';
    if (flag->given)
        *((bool *)options + flag->given) = true;
    if (set_value(&given))
        return true;
    describe_values(flag, takes, sizeof takes);
    if (!*problem)
        snprintf(problem, size, "--%s takes %s, not '%s'", flag->name, takes,
                 text);
    return false;
}

void cli_flag_set_defaults(struct options *options, enum cli_command_id verb) {
    char problem[256];
    for (int own = 0; own < 2; own++)
        for (const struct cli_flag *flag = flags; flag < flags_end; flag++)
            if (flag->standard &&
                (own ? flag->verbs & 1u << verb : flag->declares))
                cli_flag_set(options, flag, flag->standard, problem,
                             sizeof problem);
    memset(&options->given, 0, sizeof options->given);
}

bool cli_flag_group_given(const struct options *options, int group) {
    bool in_group = false, given = false;
    for (const struct cli_flag *flag = flags; flag < flags_end; flag++) {
        if (!(flag->verbs & 1u << options->cli_command))
            continue;
        if (!flag->name)
            in_group = flag->group == group;
        given |=
            in_group && flag->given && *((const bool *)options + flag->given);
    }
    return given;
}

/* Writes the words of FLAG, if it has a value. */
static void write_handed(FILE *out, const struct options *options,
                         const struct cli_flag *flag) {
    const void *member = (const char *)options + flag->offset;
    if (flag->kind == CLI_FLAG_SWITCH && *(const bool *)member)
        fprintf(out, "--%s%c", flag->name, 0);
    if (flag->kind == CLI_FLAG_TEXT && *(const char *const *)member)
        fprintf(out, "--%s=%s%c", flag->name, *(const char *const *)member, 0);
    if (flag->kind == CLI_FLAG_REAL && *(const double *)member > 0)
        fprintf(out, "--%s=%.17g%c", flag->name, *(const double *)member, 0);
    for (unsigned i = 0; member == options->sets && i < options->num_sets; i++)
        fprintf(out, "--%s%c%s%c", flag->name, 0, options->sets[i], 0);
}

char *cli_flag_handed(const struct options *options, enum cli_command_id verb) {
    char *words = NULL;
    size_t size;
    FILE *out = open_memstream(&words, &size);
    if (!out)
        return NULL;
    for (const struct cli_flag *flag = flags; flag < flags_end; flag++)
        if (flag->verbs & flag->handed & 1u << verb)
            write_handed(out, options, flag);
    fclose(out);
    return words;
}

/* The name in WORD, after one dash or two. */
static const char *name_in(const char *word) {
    return word + 1 + (word[1] == '-');
}

/* The flag named by WORD up to its "=", or NULL. */
static const struct argp_option *find_option(const struct argp_option *options,
                                             const char *word) {
    const char *name = name_in(word);
    size_t length = strcspn(name, "=");
    for (; !cli_flag_is_end(options); options++)
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
    for (; !cli_flag_is_end(options); options++) {
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
        while (!cli_flag_is_end(option) && option->key != *letters)
            option++;
        if (cli_flag_is_end(option))
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
    return word[0] == '-' && word[1] && !find_option(options, word) &&
           (has_two_dashes(word) || unknown_letter(options, word + 1));
}

/* True for WORD with one dash that is no name, and near none: letters. */
static bool is_letters(const struct argp_option *options, const char *word) {
    enum { LETTERS = 3 };
    char name[MAX_NAME];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(word + 1, "="), word + 1);
    return !has_two_dashes(word) && !find_option(options, word) &&
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
    const struct argp_option *flag = find_option(options, word);
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
