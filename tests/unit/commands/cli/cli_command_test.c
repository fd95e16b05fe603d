/* SPDX-License-Identifier: Apache-2.0 */
#include "commands/cli/cli_command.h"

#include "tests/lib/test.h"

static const char *const names[CLI_COMMANDS] = {
    [CLI_COMMAND_RUN] = "run",         [CLI_COMMAND_LOCAL] = "local",
    [CLI_COMMAND_LAUNCH] = "launch",   [CLI_COMMAND_CLUSTER] = "cluster",
    [CLI_COMMAND_CKPT] = "ckpt",       [CLI_COMMAND_DATA] = "data",
    [CLI_COMMAND_EVAL] = "eval",       [CLI_COMMAND_PREDICT] = "predict",
    [CLI_COMMAND_SCHEMA] = "schema",   [CLI_COMMAND_MANUAL] = "manual",
    [CLI_COMMAND_INFO] = "info",       [CLI_COMMAND_BENCH] = "bench",
    [CLI_COMMAND_COMPARE] = "compare", [CLI_COMMAND_REPORT] = "report",
    [CLI_COMMAND_STATUS] = "status",   [CLI_COMMAND_HOW] = "how",
    [CLI_COMMAND_KEYGEN] = "keygen",
};

static const struct cli_command *found(int v) {
    enum cli_command_id number;
    const struct cli_command *command = cli_command_find(names[v], &number);
    assert_non_null(command);
    assert_int_equal(number, v);
    return command;
}

/* The flags of VERB. */
static const struct argp_option *flags_of(int verb) {
    static struct argp_option options[CLI_FLAG_MAX];
    cli_flag_options(found(verb)->number, options);
    return options;
}

TEST(every_verb_is_found_by_its_name) {
    for (int v = 0; v < CLI_COMMANDS; v++)
        assert_string_equal(found(v)->name, names[v]);
}

TEST(an_unknown_verb_is_not_found) {
    const char *const others[] = {"", "ru", "runs", "RUN", "--help"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        enum cli_command_id number = CLI_COMMAND_BENCH;
        assert_null(cli_command_find(others[i], &number));
        assert_int_equal(number, CLI_COMMAND_BENCH);
    }
}

TEST(a_subcommand_is_found_after_its_verb) {
    const struct cli_command *ckpt = found(CLI_COMMAND_CKPT);
    assert_string_equal(cli_command_subcommand(ckpt, "verify")->name,
                        "ckpt verify");
    assert_null(cli_command_subcommand(ckpt, "ckpt"));
    assert_null(cli_command_subcommand(ckpt, ""));
    assert_null(cli_command_subcommand(found(CLI_COMMAND_RUN), "ls"));
}

TEST(every_verb_has_help_and_version) {
    for (int v = 0; v < CLI_COMMANDS; v++) {
        int help = 0, version = 0;
        for (const struct argp_option *o = flags_of(v); !cli_flag_is_end(o);
             o++) {
            help += o->key == 'h';
            version += o->key == 'V';
        }
        assert_int_equal(help, 1);
        assert_int_equal(version, 1);
    }
}

TEST(no_verb_has_a_flag_twice) {
    for (int v = 0; v < CLI_COMMANDS; v++)
        for (const struct argp_option *o = flags_of(v); !cli_flag_is_end(o);
             o++)
            for (const struct argp_option *other = o + 1;
                 !cli_flag_is_end(other); other++) {
                if (o->name && other->name && !strcmp(o->name, other->name))
                    fail_msg("%s has two flags --%s", names[v], o->name);
                if (o->key && o->key == other->key)
                    fail_msg("%s: --%s and --%s have one key", names[v],
                             o->name, other->name);
            }
}

TEST(every_flag_has_a_description) {
    for (int v = 0; v < CLI_COMMANDS; v++)
        for (const struct argp_option *o = flags_of(v); !cli_flag_is_end(o);
             o++)
            if (!o->doc && !(o->flags & OPTION_ALIAS))
                fail_msg("%s: --%s has no text", names[v], o->name);
}

static void has_exit_codes(const struct cli_command *command) {
    const char *text = command->epilog ? command->epilog : "";
    const char *details = command->details ? command->details : "";
    if (!strstr(text, "Exit code") && !strstr(details, "exit code"))
        fail_msg("the help of %s has no exit codes", command->name);
}

TEST(every_verb_documents_its_exit_codes) {
    for (int v = 0; v < CLI_COMMANDS; v++) {
        const struct cli_command *part = found(v)->subcommands;
        has_exit_codes(found(v));
        for (; part && part->name; part++)
            has_exit_codes(part);
    }
}

TEST(every_verb_has_examples_of_itself) {
    char start[32];
    for (int v = 0; v < CLI_COMMANDS; v++) {
        const struct cli_command *part = found(v)->subcommands;
        snprintf(start, sizeof start, "capstan %s", names[v]);
        assert_contains(found(v)->examples, start);
        for (; part && part->name; part++) {
            snprintf(start, sizeof start, "capstan %s", part->name);
            assert_contains(part->examples, start);
        }
    }
}

TEST(all_help_lines_fit_80_columns) {
    char *text = NULL, *rest = NULL, expected[64];
    size_t size;
    FILE *out = open_memstream(&text, &size);
    assert_non_null(out);
    cli_command_show_all(out);
    fclose(out);
    for (int v = 0; v < CLI_COMMANDS; v++) {
        snprintf(expected, sizeof expected, "\n  capstan %s", names[v]);
        assert_contains(text, expected);
    }
    for (char *line = strtok_r(text, "\n", &rest); line;
         line = strtok_r(NULL, "\n", &rest))
        if (strlen(line) > 80)
            fail_msg("%zu columns: %s", strlen(line), line);
    free(text);
}
