/* SPDX-License-Identifier: Apache-2.0 */
#include "commands/cli/job_man.h"

#include "commands/cli/cli_man.h"
#include "proto/job/deepspeed.h"
#include "proto/job/job_value.h"

#include <string.h>

static const char introduction[] =
    "A job is one JSON object. Only the chief reads it; the other processes "
    "get it from the chief. Below, a.b is the key b in the object a. An "
    "unknown key, a wrong type or a value out of range ends the program with "
    "exit code 2 before anything is written.\n\n"
    "null is the same as leaving a key out. A whole real is an integer. Words "
    "may be in upper or lower case, except inf, auto and never. Relative paths "
    "start at the folder of the job file, those of data.train and data.test at "
    "data.dir.";

static const char smallest[] =
    "{\n"
    "  \"model\": {\"layers\": [784, 512, 10]},\n"
    "  \"data\": {\"train\": [\"images.gz\", \"labels.gz\"]},\n"
    "  \"epochs\": 5,\n"
    "  \"train_micro_batch_size_per_gpu\": 64,\n"
    "  \"optimizer\": {\"type\": \"SGD\", \"params\": {\"lr\": 0.05}}\n"
    "}";

/* Prints the words of the key at PATH whose bits are in MASK, 0: all. */
static void show_masked(FILE *out, const struct job_models *models,
                        const char *path, unsigned mask) {
    const struct job_key *key = job_schema_find(models, path);
    const char *between = "Of ";
    for (unsigned w = 0; mask && key->words[w]; w++)
        if (mask >> w & 1) {
            fputs(between, out);
            cli_man_text(out, key->words[w]);
            between = ", ";
        }
    if (mask)
        fputs(".\n", out);
}

/* The rows of one path that allow the same, with one default. */
struct alike {
    char allowed[512];
    unsigned models, formats, optimizers, schedules;
};

static bool is_alike(const struct job_key *one, const struct job_key *other) {
    char texts[2][512];
    job_value_allowed(one, texts[0], sizeof *texts);
    job_value_allowed(other, texts[1], sizeof *texts);
    const char *usual = one->default_value, *others = other->default_value;
    return !strcmp(one->path, other->path) && !strcmp(texts[0], texts[1]) &&
           (usual && others ? !strcmp(usual, others) : usual == others);
}

/* False: a row before I has shown it. */
static bool find_alike(const struct job_models *models, size_t i,
                       struct alike *alike) {
    const struct job_key *key = job_schema_row(models, i), *other;
    *alike = (struct alike){.models = 0};
    job_value_allowed(key, alike->allowed, sizeof alike->allowed);
    for (size_t k = 0; (other = job_schema_row(models, k)); k++) {
        if (!is_alike(key, other))
            continue;
        if (k < i)
            return false;
        alike->models |= other->of_model ? other->models : 0;
        alike->formats |= other->formats;
        alike->optimizers |= other->optimizers;
        alike->schedules |= other->schedules;
    }
    return true;
}

static void show_row(FILE *out, const struct job_models *models, size_t i) {
    const struct job_key *key = job_schema_row(models, i);
    struct alike alike;
    if (!find_alike(models, i, &alike))
        return;
    fputs(".br\n", out);
    cli_man_text(out, alike.allowed);
    fputs("; ", out);
    if (key->default_value) {
        fputs("default ", out);
        cli_man_text(out, key->default_value);
    } else
        fputs(key->required ? "required" : "no default", out);
    fputs(".\n", out);
    show_masked(out, models, "model.type", alike.models);
    show_masked(out, models, "data.format", alike.formats);
    show_masked(out, models, "optimizer.type", alike.optimizers);
    show_masked(out, models, "scheduler.type", alike.schedules);
}

static void show_key(FILE *out, const struct job_models *models, size_t i) {
    const struct job_key *key = job_schema_row(models, i), *other;
    fputs(".TP\n\\fB", out);
    cli_man_text(out, key->path);
    fputs("\\fR\n", out);
    cli_man_text(out, key->meaning);
    fputs(".\n", out);
    for (size_t k = i; (other = job_schema_row(models, k)); k++)
        if (!strcmp(other->path, key->path))
            show_row(out, models, k);
}

static void show_foreign_keys(FILE *out) {
    size_t count;
    const struct deepspeed_key *keys = deepspeed_keys(&count);
    fputs(".SH DEEPSPEED\nA configuration of DeepSpeed loads as it is. Keys "
          "that have another name here:\n",
          out);
    for (size_t i = 0; i < count; i++) {
        if (keys[i].support != DEEPSPEED_RENAMED)
            continue;
        fputs(".TP\n\\fB", out);
        cli_man_text(out, keys[i].path);
        fputs("\\fR\n", out);
        cli_man_text(out, keys[i].text);
        fputc('\n', out);
    }
}

void job_man_show(FILE *out, const struct job_models *models) {
    const struct job_key *key;
    cli_man_begin(out, "capstan-job", 5, "The job file of Capstan.");
    fputs(".SH DESCRIPTION\n", out);
    cli_man_text(out, introduction);
    fputs("\n.SH KEYS\n", out);
    for (size_t i = 0; (key = job_schema_row(models, i)); i++)
        if (job_schema_find(models, key->path) == key)
            show_key(out, models, i);
    show_foreign_keys(out);
    fputs(".SH EXAMPLE\n.nf\n", out);
    cli_man_text(out, smallest);
    fputs("\n.fi\n.SH SEE ALSO\n.BR capstan (1),\n.BR capstan\\-schema (1)\n",
          out);
}
