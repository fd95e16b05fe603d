/* SPDX-License-Identifier: Apache-2.0 */
/* What users, scripts and files depend on is what tests/data/frozen.txt lists,
 * no less and no more: a line for each fact, its first word the class. A fact
 * is looked up in what was built: its help, its output, its files. Only keys of
 * jobs come from the tables that read them, and events from the sources. A
 * class that ends with "?" in the list has facts that not every machine shows.
 */
#define STATE struct cluster_run *run

#include "proto/job/deepspeed.h"
#include "proto/job/job_schema.h"
#include "proto/job/job_value.h"
#include "tests/cluster/cluster_fixture.h"
#include "tests/lib/build_folder.h"
#include "tests/lib/event_files.h"
#include "tests/lib/frozen.h"
#include "tests/lib/test.h"
#include "worker/models/model.h"

#include <ctype.h>
#include <elf.h>
#include <ftw.h>
#include <glob.h>
#include <lmdb.h>
#include <signal.h>
#include <unistd.h>
#include <xxhash.h>

enum { STEPS = 20, TERMINATED = 143 };

static void masked(char *text, size_t size, unsigned mask, const char *type) {
    size_t used = 0;
    const struct job_key *key;
    text[0] = 0;
    for (size_t i = 0; mask && (key = job_schema_row(NULL, i)); i++)
        for (size_t w = 0; !strcmp(key->path, type) && key->words[w]; w++)
            if (mask >> w & 1)
                used += (size_t)snprintf(text + used, size - used, " %s",
                                         key->words[w]);
}

GROUP(cluster_run_setup, cluster_run_teardown);

TEST(keys_of_a_job) {
    const struct job_key *key;
    for (size_t i = 0; (key = job_schema_row(&model_schemas, i)); i++) {
        char allowed[512], rules[64], schedules[128];
        job_value_allowed(key, allowed, sizeof allowed);
        masked(rules, sizeof rules, key->optimizers, "optimizer.type");
        masked(schedules, sizeof schedules, key->schedules, "scheduler.type");
        frozen_fact("job-key %s: %s; default %s%s%s%s%s%s%s%s", key->path,
                    allowed, key->default_value ? key->default_value : "none",
                    key->deepspeed ? ", DeepSpeed's " : "",
                    key->deepspeed ? key->deepspeed : "",
                    key->tf ? ", TensorFlow's " : "", key->tf ? key->tf : "",
                    key->required ? "; required" : "", rules, schedules);
    }
    frozen_expect("job-key");
}

TEST(keys_of_deepspeed) {
    static const char *const supports[] = {"acted on", "renamed", "by design",
                                           "setting", "refused"};
    size_t count;
    const struct deepspeed_key *keys = deepspeed_keys(&count);
    for (size_t i = 0; i < count; i++)
        frozen_fact("deepspeed-key %s: %s%s%s%s", keys[i].path,
                    supports[keys[i].support],
                    keys[i].support == DEEPSPEED_RENAMED ? " " : "",
                    keys[i].support == DEEPSPEED_RENAMED ? keys[i].text : "",
                    keys[i].allowed ? keys[i].allowed : "");
    frozen_expect("deepspeed-key");
}

#define TOOL(run, code, ...)                                                   \
    cluster_fixture_tool(run, code, (const char *[]){__VA_ARGS__, NULL})

/* The usage of a verb: its flags in brackets, then its arguments. */
static void flags_of(struct cluster_run *run, const char *verb,
                     const char *part) {
    const char *text = cluster_run_output(cluster_fixture_tool(
        run, 0, WORDS(verb, part ? part : "--help", part ? "--help" : NULL)));
    const char *name = textf("%s%s%s", verb, part ? " " : "", part ? part : "");
    assert_non_null(text = strchr(text, '['));
    while (*text == '[') {
        size_t length = strcspn(++text, "]");
        if (memchr(text, '[', length)) /* around a value */
            length += 1 + strcspn(text + length + 1, "]");
        frozen_fact("flag %s %.*s", name, (int)length, text);
        text += length + 1;
        if (text[strspn(text, " \n")] == '[')
            text += strspn(text, " \n");
    }
    size_t blank = strspn(text, " \n"); /* may wrap, and is then indented */
    if (blank && text[blank - 1] == ' ')
        frozen_fact("flag %s %.*s", name, (int)strcspn(text + blank, "\n"),
                    text + blank);
}

TEST(verbs_and_flags) {
    static const char *const parts[] = {"ls", "verify", "export", "diff"};
    const char *text = cluster_run_output(TOOL(run, 0, "--help"));
    char verb[32];
    while ((text = strstr(text, "\n  capstan "))) {
        assert_int_equal(sscanf(text, "\n  capstan %31s", verb), 1);
        frozen_fact("verb %.*s", (int)strcspn(text + 11, "\n"), text + 11);
        flags_of(run, verb, NULL);
        text++;
    }
    for (unsigned i = 0; i < 4; i++)
        flags_of(run, "ckpt", parts[i]);
    frozen_expect("verb flag");
}

TEST(without_a_verb_the_usage_goes_to_standard_error) {
    const struct cluster_process *process =
        cluster_fixture_tool(run, 2, (const char *[]){NULL});
    assert_string_equal(cluster_run_output(process), "");
    assert_true(cluster_fixture_has_logged(process, "Usage: capstan VERB"));
    assert_true(cluster_fixture_has_logged(process, "error: no verb"));
}

TEST(exit_codes) {
    const char *text = strstr(cluster_run_output(TOOL(run, 0, "run", "--help")),
                              "Exit codes: ");
    assert_non_null(text);
    for (; *text && *text != '.'; text++)
        if (isdigit(*text)) {
            frozen_fact("exit-code %ld", strtol(text, (char **)&text, 10));
            text--;
        }
    frozen_expect("exit-code");
}

TEST(failure_codes) {
#define FAILURE_CODE(number, name, status, meaning)                            \
    frozen_fact("failure-code %d %s %d", number, #name, STATUS_##status);
    FAILURE_CODES(FAILURE_CODE)
#undef FAILURE_CODE
    frozen_expect("failure-code");
}

/* The output of PROGRAM, which ends well. */
static const char *output_of(struct cluster_run *run, const char *program,
                             const char *const *arguments) {
    struct cluster_process *process = cluster_run_program(
        run, "program", program, arguments, WORDS("LC_ALL=C"));
    cluster_run_expect_soon(process, 0);
    return cluster_run_output(process);
}

static const char *next_line(const char *text) {
    text += strcspn(text, "\n");
    return text + (*text == '\n');
}

TEST(variables_of_the_environment) {
    static const char name[] = "\\bCAPSTAN_[A-Z0-9][A-Z0-9_]*";
    char folder[PATH_MAX], variable[64];
    assert_true(build_folder_find(folder));
    const char *program = textf("%s/capstan", folder);
    const char *line = output_of(
        run, "/bin/grep",
        WORDS("-aohE", name, program, textf("%s/capstan-gloo.so", folder)));
    for (; *line; line = next_line(line))
        frozen_fact("variable %.*s", (int)strcspn(line, "\n"), line);
    const char *outside =
        output_of(run, "/usr/bin/env", (const char *[]){NULL});
    line = cluster_run_output(TOOL(run, 0, "launch", "--no_python", "env"));
    for (; *line; line = next_line(line)) {
        snprintf(variable, sizeof variable, "%.*s=", (int)strcspn(line, "="),
                 line);
        if (!strstr(outside, variable))
            frozen_fact("variable launch sets %s", variable);
    }
    frozen_expect("variable");
}

/* The symbols that a linker finds in the ELF file PATH; false: no such file. */
static bool symbols_in(const char *path, const char *name) {
    static char file[16 << 20];
    FILE *stream = fopen(path, "r");
    if (!stream)
        return false;
    assert_in_range(fread(file, 1, sizeof file, stream), 1, sizeof file - 1);
    fclose(stream);
    const Elf64_Ehdr *head = (const void *)file;
    const Elf64_Shdr *sections = (const void *)(file + head->e_shoff), *table;
    for (table = sections; table->sh_type != SHT_DYNSYM; table++)
        assert_true(table - sections < head->e_shnum);
    const char *names = file + sections[table->sh_link].sh_offset;
    const Elf64_Sym *symbol = (const void *)(file + table->sh_offset);
    const Elf64_Sym *end = symbol + table->sh_size / sizeof *symbol;
    for (; symbol < end; symbol++)
        if (symbol->st_shndx != SHN_UNDEF)
            frozen_fact("plugin %s %s", name, names + symbol->st_name);
    return true;
}

TEST(symbols_of_plugins) {
    static const char *const names[] = {"capstan-gloo.so", "capstan-bench.so",
                                        "capstan-cuda.so", "capstan-nccl.so"};
    char folder[PATH_MAX], path[PATH_MAX + 32];
    assert_true(build_folder_find(folder));
    for (unsigned i = 0; i < 4; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        assert_true(symbols_in(path, names[i]) || i > 1);
    }
    frozen_expect("plugin");
}

/* The paths in VALUE and the types at their ends, as facts of CLASS. */
static void flatten(const char *class, const char *path, const json_t *value) {
    static const char *const types[] = {"object",  "array", "string",
                                        "integer", "real",  "boolean",
                                        "boolean", "null"};
    char below[256];
    const char *key;
    json_t *one;
    size_t i;
    if (json_is_array(value) && json_array_size(value))
        json_array_foreach(value, i, one) {
            snprintf(below, sizeof below, "%s[]", path);
            flatten(class, below, one);
        }
    else if (json_is_object(value) && json_object_size(value))
        json_object_foreach((json_t *)value, key, one) {
            snprintf(below, sizeof below, "%s%s%s", path,
                     *path && !strchr(" ", path[strlen(path) - 1]) ? "." : "",
                     key);
            flatten(class, below, one);
        }
    else
        frozen_fact("%s %s %s", class, path, types[json_typeof(value)]);
}

static void objects_of(struct cluster_process *process, const char *name) {
    const json_t *object = cluster_run_json(process);
    flatten("json", textf("%s ", name), object);
}

static void manifest_of(struct cluster_run *run, const char *dir, int step) {
    const char *key;
    json_t *manifest, *slot;
    size_t i;
    assert_non_null(
        manifest = json_load_file(
            cluster_run_path(run,
                             textf("%s/step-%09d/manifest.json", dir, step)),
            0, NULL));
    json_object_set_new(manifest, "job", json_object());
    flatten("manifest", "", manifest);
    key = json_string_value(json_object_get(manifest, "rule"));
    json_array_foreach(json_object_get(manifest, "slots"), i, slot)
        frozen_fact("slot %s %zu %s", key, i + 1, json_string_value(slot));
    json_decref(manifest);
}

TEST(commands_that_print_an_object) {
    static const char job[] =
        "{\"steps\": 20, \"steps_per_print\": 5, \"device\": \"cpu\","
        " \"tensorboard\":"
        " {\"enabled\": true, \"output_path\": \"events\"}}";
    cluster_run_job(run, job);
    objects_of(CLUSTER_FIXTURE_RUN(run, 2, 2, 0, "checkpoint.dir=ps"), "local");
    objects_of(CLUSTER_FIXTURE_RUN(run, 0, 2, 0, "checkpoint.dir=fp16",
                                   "fp16.enabled=true"),
               "local");
    objects_of(CLUSTER_FIXTURE_RUN(run, 1, 2, 0, "checkpoint.dir=async",
                                   "strategy.staleness=inf"),
               "local");
    output_of(run, "/bin/sh",
              WORDS("-c", "mkdir -p damaged/step-000000007"
                          " damaged/step-000000008; "
                          ": > damaged/step-000000008/manifest.json"));
    objects_of(TOOL(run, 0, "ckpt", "ls", "--json", "ps"), "ckpt ls");
    objects_of(TOOL(run, 0, "ckpt", "ls", "--json", "damaged"), "ckpt ls");
    objects_of(TOOL(run, 0, "ckpt", "verify", "--json", "ps"), "ckpt verify");
    objects_of(TOOL(run, 1, "ckpt", "verify", "--json", "damaged"),
               "ckpt verify");
    objects_of(TOOL(run, 0, "ckpt", "export", "--json", "ps", "a.npz"),
               "ckpt export");
    objects_of(TOOL(run, 1, "ckpt", "diff", "--json", "ps", "fp16"),
               "ckpt diff");
    objects_of(TOOL(run, 0, "eval", "--json", "ps"), "eval");
    objects_of(TOOL(run, 0, "info", "--json"), "info");
    static const char *const flags[][5] = {
        {"cluster"}, {"cluster", "--json", "--explain", "--check"}};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        struct cluster_process *cluster = cluster_run_start(
            run, "cluster", flags[i],
            WORDS("TF_CONFIG={\"cluster\": {\"worker\": [\"w:0\"]}, \"task\": "
                  "{\"type\": \"worker\", \"index\": 0}}"));
        cluster_run_expect_soon(cluster, 0);
        objects_of(cluster, "cluster");
    }
    objects_of(TOOL(run, 0, "compare", "--json", "--steps=10", "--repeats=1",
                    "--csv=compare.csv", "--set=tensorboard=null", "job.json"),
               "compare");
    objects_of(TOOL(run, 0, "compare", "--json", "--predict", "--params=1M",
                    "--link-gbits=1", "--compute-ms=1"),
               "compare --predict");
    objects_of(TOOL(run, 0, "bench", "--json", "--sizes=64", "--seconds=0.01",
                    "--repeats=1"),
               "bench");
    objects_of(TOOL(run, 0, "bench", "--json", "--sizes=64", "--requests=100"),
               "bench --requests");
    objects_of(TOOL(run, 0, "bench", "--json", "--simulate", "--bytes=1M",
                    "--compute=0.01", "--rounds=2"),
               "bench --simulate");
    objects_of(TOOL(run, 0, "bench", "--json", "--simulate", "--sweep",
                    "--bytes=64K", "--compute=0.01", "--rounds=1"),
               "bench --sweep");
    frozen_expect("json");
}

static void keys_of(const struct cluster_process *process) {
    const char *line = cluster_run_errors(process);
    for (; *line; line = next_line(line)) {
        json_t *object = json_loadb(line, strcspn(line, "\n"), 0, NULL);
        assert_non_null(object);
        flatten("log-key", "", object);
        json_decref(object);
    }
}

TEST(keys_of_a_line_of_json_in_the_log) {
    keys_of(TOOL(run, 0, "local", "--json-log", "--set=tensorboard=null",
                 "job.json"));
    keys_of(TOOL(run, 2, "local", "--json-log", "--set=epochs=no", "job.json"));
    frozen_expect("log-key");
}

TEST(columns_and_machines_of_compare) {
    char line[1024], *rest = NULL, name[64];
    unsigned number = 0;
    const char *path = cluster_run_path(run, "compare.csv");
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_non_null(fgets(line, sizeof line, file));
    fclose(file);
    for (char *column = strtok_r(line, ",\r\n", &rest); column;
         column = strtok_r(NULL, ",\r\n", &rest))
        frozen_fact("csv %u %s", ++number, column);
    const char *text = cluster_run_output(
        TOOL(run, 0, "compare", "--predict", "--vm", "list"));
    while (*(text = next_line(text)))
        if (sscanf(text, "%63s", name) == 1)
            frozen_fact("vm %s", name);
    frozen_expect("csv vm");
}

TEST(keys_of_manifests_and_names_of_slots) {
    static const char *const optimizers[] = {
        "{\"type\": \"SGD\", \"params\": {\"lr\": 1, \"momentum\": 1}}",
        "{\"type\": \"Adagrad\"}",
        "{\"type\": \"RMSprop\", \"params\": {\"lr\": 1, \"momentum\": 1,"
        " \"centered\": true}}",
        "{\"type\": \"Adam\", \"params\": {\"lr\": 1, \"amsgrad\": true}}",
        "{\"type\": \"AdamW\"}",
        "{\"type\": \"Ftrl\"}"};
    char set[256];
    for (size_t i = 0; i < sizeof optimizers / sizeof *optimizers; i++) {
        snprintf(set, sizeof set, "optimizer=%s", optimizers[i]);
        CLUSTER_FIXTURE_RUN(run, 1, 1, 0, "steps=0", "checkpoint.dir=slots",
                            "tensorboard=null", "checkpoint.resume=never", set);
        manifest_of(run, "slots", 0);
    }
    manifest_of(run, "ps", STEPS);
    manifest_of(run, "fp16", STEPS);
    frozen_expect("manifest slot");
}

TEST(tags_and_names_of_event_files) {
    char pattern[PATH_MAX + 8], *rest = NULL;
    glob_t files;
    const char *folder = cluster_run_path(run, "events");
    for (char *tag = strtok_r(event_files_tags(folder), " ", &rest); tag;
         tag = strtok_r(NULL, " ", &rest))
        frozen_fact("tag %s", tag);
    snprintf(pattern, sizeof pattern, "%s/*", folder);
    assert_int_equal(glob(pattern, 0, NULL, &files), 0);
    for (size_t i = 0; i < files.gl_pathc; i++) {
        const char *name = strrchr(files.gl_pathv[i], '/') + 1;
        char start[64], host[128];
        unsigned pid;
        if (sscanf(name, "%63[a-z.]%*10[0-9].%127[^.].%u", start, host, &pid) ==
            3)
            frozen_fact("event-file %sTIME.HOST.PID", start);
        else
            frozen_fact("event-file %s", name);
    }
    globfree(&files);
    frozen_expect("tag event-file");
}

static uint64_t big_endian(const unsigned char *bytes, size_t count) {
    uint64_t value = 0;
    while (count--)
        value = value << 8 | *bytes++;
    return value;
}

/* WHO's row behind a block: numbers that count as they are, others are drawn
 * anew in each run. */
static void row_of(const char *who, const unsigned char *row, size_t bytes) {
    for (size_t at = 0; at + 8 <= bytes; at += 8) {
        uint64_t word;
        memcpy(&word, row + at, sizeof word);
        if (word >> 32)
            frozen_fact("record row of %s at %zu: drawn", who, at);
        else
            frozen_fact("record row of %s at %zu: %u", who, at, (unsigned)word);
    }
}

/* Every record of the one file that PATTERN names. */
static void records_of(struct cluster_run *run, const char *who,
                       const char *pattern) {
    MDB_env *env;
    MDB_txn *txn;
    MDB_dbi dbi;
    MDB_cursor *cursor;
    MDB_val key, value;
    glob_t files;
    assert_int_equal(glob(cluster_run_path(run, pattern), 0, NULL, &files), 0);
    assert_int_equal(files.gl_pathc, 1);
    assert_false(mdb_env_create(&env));
    assert_false(mdb_env_open(env, files.gl_pathv[0],
                              MDB_NOSUBDIR | MDB_NOLOCK | MDB_RDONLY, 0));
    assert_false(mdb_txn_begin(env, NULL, MDB_RDONLY, &txn));
    assert_false(mdb_dbi_open(txn, NULL, 0, &dbi));
    assert_false(mdb_cursor_open(txn, dbi, &cursor));
    while (!mdb_cursor_get(cursor, &key, &value, MDB_NEXT)) {
        const unsigned char *name = key.mv_data, *bytes = value.mv_data;
        uint64_t hash = XXH3_64bits(bytes + 8, value.mv_size - 8);
        assert_int_equal(key.mv_size, 14);
        assert_memory_equal(bytes, &hash, sizeof hash);
        unsigned slot = (unsigned)big_endian(name + 12, 2);
        frozen_fact(
            "record of %s: parameter %u, offset %u, slot %u: 8 + %zu bytes",
            who, (unsigned)big_endian(name, 4),
            (unsigned)big_endian(name + 4, 8), slot, value.mv_size - 8);
        if (slot == 0xffff)
            row_of(who, bytes + 8, value.mv_size - 8);
    }
    mdb_cursor_close(cursor);
    mdb_env_close(env);
    globfree(&files);
}

TEST(records_of_a_checkpoint) {
    records_of(run, "ps", "ps/step-*/*-0-of-2-*");
    records_of(run, "ps", "ps/step-*/*-1-of-2-*");
    records_of(run, "all-reduce", "fp16/step-*/*-0-of-1-*");
    frozen_expect("record");
}

/* RUN for the number of a run, STEP for that of a step. */
static void mask_name(const char *name, char *out) {
    static const char hex[] = "0123456789abcdef";
    while (*name) {
        size_t digits = strspn(name, hex);
        const char *word = digits == 16 ? "RUN" : digits == 9 ? "STEP" : NULL;
        if (word)
            out = stpcpy(out, word);
        else
            *out++ = *name;
        name += word ? digits : 1;
    }
    *out = 0;
}

static size_t walked;
static int name_of(const char *path, const struct stat *about, int kind,
                   struct FTW *walk) {
    char text[PATH_MAX];
    (void)about;
    if (walk->level) {
        mask_name(path + walked + 1, text);
        frozen_fact("file %s%s", text, kind == FTW_D ? "/" : "");
    }
    return 0;
}

/* While a run that starts over uses a directory that has one already. */
TEST(names_in_a_checkpoint_directory) {
    const char *path = cluster_run_path(run, "ps");
    walked = strlen(path);
    struct cluster_process *local = cluster_fixture_local(
        run, 2, 2,
        WORDS("steps=1000000", "checkpoint.dir=ps", "tensorboard=null",
              "checkpoint.resume=never"));
    cluster_run_await_soon(local, "chief: step 5/");
    nftw(path, name_of, 8, FTW_PHYS);
    cluster_run_signal(local, SIGTERM);
    cluster_run_expect_soon(local, TERMINATED);
    nftw(path, name_of, 8, FTW_PHYS);
    frozen_expect("file");
}

struct event {
    char name[64], level[8];
    bool documented;
};
static struct event events[256];
static unsigned num_events;

static struct event *event_find(const char *name) {
    for (unsigned i = 0; i < num_events; i++)
        if (!strcmp(events[i].name, name))
            return &events[i];
    return NULL;
}

static void note_event(const char *name, const char *level) {
    struct event *event = event_find(name);
    if (!event) {
        assert_true(num_events < sizeof events / sizeof *events);
        event = &events[num_events++];
        snprintf(event->name, sizeof event->name, "%s", name);
        snprintf(event->level, sizeof event->level, "%s", level);
        frozen_fact("event %s %s", name, level);
    }
    if (strcmp(event->level, level))
        fail_msg("%s is %s and %s: an event has one level", name, level,
                 event->level);
}

/* Each call has its event as a literal; "const" follows where log.c defines
 * them. */
static int events_of(const char *path, const struct stat *about, int kind,
                     struct FTW *walk) {
    static const char *const levels[][2] = {{"info", "info"},
                                            {"detail", "info"},
                                            {"warning", "warning"},
                                            {"error", "error"}};
    static char text[1 << 20];
    const char *ending = strrchr(path + walk->base, '.');
    char call[16], name[64];
    (void)about;
    if (kind != FTW_F || !ending || strncmp(ending, ".c", 2) != 0)
        return 0;
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = 0;
    fclose(file);
    for (unsigned i = 0; i < sizeof levels / sizeof *levels; i++) {
        snprintf(call, sizeof call, "log_%s(", levels[i][0]);
        for (const char *at = text; (at = strstr(at, call));) {
            at += strlen(call);
            if (sscanf(at, "%*[^,;], \"%63[a-z0-9_]\"", name) == 1)
                note_event(name, levels[i][1]);
            else if (strncmp(at, "const ", 6) != 0)
                fail_msg("%s: log_%s(%.60s: no event", path, levels[i][0], at);
        }
    }
    return 0;
}

/* Those in the sources, in the list, and in the tables of docs/log.md. */
TEST(events_of_the_log) {
    static const char *const rooms[] = {"main.c", "commands", "core",
                                        "proto",  "ps",       "worker",
                                        "chief",  "simulator"};
    char line[1024], name[64], level[8], next;
    for (unsigned i = 0; i < sizeof rooms / sizeof *rooms; i++)
        assert_int_equal(nftw(rooms[i], events_of, 8, FTW_PHYS), 0);
    note_event("failed", "error");              /* log_failure adds the code */
    note_event("log_lines_missing", "warning"); /* log.c's own */
    FILE *file = fopen("docs/log.md", "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "| `%63[a-z0-9_]` | %7[a-z] | %c", name, level,
                   &next) != 3)
            continue;
        struct event *event = event_find(name);
        if (!event || event->documented || strcmp(event->level, level))
            fail_msg("docs/log.md: %s", line);
        event->documented = true;
    }
    fclose(file);
    for (unsigned i = 0; i < num_events; i++)
        if (!events[i].documented)
            fail_msg("docs/log.md lacks %s", events[i].name);
    frozen_expect("event");
}

TEST(no_other_class) {
    frozen_expect(NULL);
}

/* In this order: later ones look at what the runs of earlier ones have left. */
