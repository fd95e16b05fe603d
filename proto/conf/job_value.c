#include "proto/conf/job_value.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(enum job_loss) == sizeof(unsigned), "JOB_KIND_CHOICE");
_Static_assert(offsetof(struct job_data, train_labels) ==
                       offsetof(struct job_data, train_images) +
                           sizeof(char *) &&
                   offsetof(struct job_data, test_labels) ==
                       offsetof(struct job_data, test_images) + sizeof(char *),
               "JOB_KIND_FILES fills two neighbours");

/* An integer, or a real of whole value, within the bounds of KEY. */
static bool read_whole(const struct job_key *key, const json_t *value,
                       uint64_t *whole) {
    double number = json_number_value(value);
    if (!json_is_number(value) || floor(number) != number ||
        number < key->least || number > key->most)
        return false;
    *whole = json_is_integer(value) ? (uint64_t)json_integer_value(value)
                                    : (uint64_t)number;
    return true;
}

static json_t *write_whole(const struct job_key *key, uint64_t whole) {
    return whole || key->usual ? json_integer((json_int_t)whole) : NULL;
}

static void allow_whole(const struct job_key *key, char *text, size_t size) {
    snprintf(text, size, "an integer from %.0f to %.0f", key->least, key->most);
}

static bool read_u32(const struct job_key *key, const json_t *value,
                     void *field, const struct job_reader *reader) {
    (void)reader;
    uint64_t whole;
    if (!read_whole(key, value, &whole))
        return false;
    *(uint32_t *)field = (uint32_t)whole;
    return true;
}

static json_t *write_u32(const struct job_key *key, const void *field) {
    return write_whole(key, *(const uint32_t *)field);
}

static bool read_u64(const struct job_key *key, const json_t *value,
                     void *field, const struct job_reader *reader) {
    (void)reader;
    return read_whole(key, value, field);
}

static json_t *write_u64(const struct job_key *key, const void *field) {
    return write_whole(key, *(const uint64_t *)field);
}

static bool read_bool(const struct job_key *key, const json_t *value,
                      void *field, const struct job_reader *reader) {
    (void)key, (void)reader;
    if (!json_is_boolean(value))
        return false;
    *(bool *)field = json_is_true(value);
    return true;
}

static json_t *write_bool(const struct job_key *key, const void *field) {
    (void)key;
    return json_boolean(*(const bool *)field);
}

static void allow_bool(const struct job_key *key, char *text, size_t size) {
    (void)key;
    snprintf(text, size, "true or false");
}

static bool read_real(const struct job_key *key, const json_t *value,
                      void *field, const struct job_reader *reader) {
    (void)reader;
    double number = json_number_value(value);
    if (!json_is_number(value) || number < key->least || number > key->most)
        return false;
    *(double *)field = number;
    return true;
}

static json_t *write_real(const struct job_key *key, const void *field) {
    double number = *(const double *)field;
    return number != 0 || key->usual ? json_real(number) : NULL;
}

static void allow_real(const struct job_key *key, char *text, size_t size) {
    bool floor_given = key->least > -JOB_BOUNDLESS;
    bool ceiling_given = key->most < JOB_BOUNDLESS;
    if (floor_given && ceiling_given)
        snprintf(text, size, "a number from %g to %g", key->least, key->most);
    else if (floor_given)
        snprintf(text, size, "a number, at least %g", key->least);
    else if (ceiling_given)
        snprintf(text, size, "a number, at most %g", key->most);
    else
        snprintf(text, size, "a number");
}

/* The place of VALUE among the words of KEY, or -1. Case is ignored, as
 * DeepSpeed does with the names of optimisers. */
static int find_word(const struct job_key *key, const json_t *value) {
    const char *text = json_string_value(value);
    if (!text || !*text)
        return -1;
    for (int i = 0; key->words[i]; i++)
        if (!strcasecmp(text, key->words[i]))
            return i;
    return -1;
}

static bool read_choice(const struct job_key *key, const json_t *value,
                        void *field, const struct job_reader *reader) {
    (void)reader;
    int place = find_word(key, value);
    if (place < 0)
        return false;
    *(unsigned *)field = (unsigned)place;
    return true;
}

/* The empty word is the choice not made. */
static json_t *write_choice(const struct job_key *key, const void *field) {
    const char *word = key->words[*(const unsigned *)field];
    return *word ? json_string(word) : NULL;
}

static bool read_either(const struct job_key *key, const json_t *value,
                        void *field, const struct job_reader *reader) {
    (void)reader;
    int place = find_word(key, value);
    if (place < 0)
        return false;
    *(bool *)field = place == 1;
    return true;
}

static json_t *write_either(const struct job_key *key, const void *field) {
    return json_string(key->words[*(const bool *)field]);
}

static void allow_words(const struct job_key *key, char *text, size_t size) {
    size_t used = 0;
    for (const char *const *word = key->words; *word && used < size; word++)
        if (**word)
            used += (size_t)snprintf(text + used, size - used, "%s\"%s\"",
                                     used ? ", " : "", *word);
}

static bool read_text(const struct job_key *key, const json_t *value,
                      void *field, const struct job_reader *reader) {
    (void)key, (void)reader;
    if (!json_is_string(value))
        return false;
    free(*(char **)field);
    *(char **)field = strdup(json_string_value(value));
    return *(char **)field;
}

static json_t *write_text(const struct job_key *key, const void *field) {
    (void)key;
    char *const *text = field;
    return *text ? json_string(*text) : NULL;
}

static void allow_text(const struct job_key *key, char *text, size_t size) {
    (void)key;
    snprintf(text, size, "a string");
}

static bool ends_well(const struct job_key *key, const char *path) {
    if (!key->words)
        return true;
    size_t length = strlen(path);
    for (const char *const *end = key->words; *end; end++) {
        size_t tail = strlen(*end);
        if (length > tail && !strcmp(path + length - tail, *end))
            return true;
    }
    return false;
}

/* PATH below FOLDER, the caller's; NULL for what is no path. */
static char *join(const char *folder, const char *path) {
    if (!path || !*path || (*path != '/' && !folder))
        return NULL;
    if (*path == '/')
        return strdup(path);
    char *joined;
    bool root = !strcmp(folder, "/");
    if (asprintf(&joined, "%s/%s", root ? "" : folder, path) < 0)
        return NULL;
    return joined;
}

static bool read_path(const struct job_key *key, const json_t *value,
                      void *field, const struct job_reader *reader) {
    char *path = join(reader->folder, json_string_value(value));
    if (!path || !ends_well(key, path)) {
        free(path);
        return false;
    }
    free(*(char **)field);
    *(char **)field = path;
    return true;
}

static void allow_path(const struct job_key *key, char *text, size_t size) {
    size_t used = (size_t)snprintf(text, size, "a path");
    for (const char *const *end = key->words; end && *end && used < size; end++)
        used += (size_t)snprintf(text + used, size - used, "%s%s",
                                 end == key->words ? " that ends in " : " or ",
                                 *end);
}

static bool read_files(const struct job_key *key, const json_t *value,
                       void *field, const struct job_reader *reader) {
    (void)key;
    const char *dir = reader->job->data.dir;
    const char *folder = dir ? dir : reader->folder;
    if (json_array_size(value) != 2)
        return false;
    char *files[2];
    for (size_t i = 0; i < 2; i++)
        files[i] = join(folder, json_string_value(json_array_get(value, i)));
    if (!files[0] || !files[1]) {
        free(files[0]);
        free(files[1]);
        return false;
    }
    memcpy(field, files, sizeof files);
    return true;
}

static json_t *write_files(const struct job_key *key, const void *field) {
    (void)key;
    char *const *files = field;
    return files[0] ? json_pack("[s, s]", files[0], files[1]) : NULL;
}

static void allow_files(const struct job_key *key, char *text, size_t size) {
    (void)key;
    snprintf(text, size, "an array of two paths, images and labels");
}

static bool read_layers(const struct job_key *key, const json_t *value,
                        void *field, const struct job_reader *reader) {
    (void)reader;
    struct job_model *model = field;
    size_t count = json_array_size(value);
    if (count < 2 || count > JOB_MAX_LAYERS)
        return false;
    uint32_t layers[JOB_MAX_LAYERS];
    for (size_t i = 0; i < count; i++) {
        uint64_t width;
        if (!read_whole(key, json_array_get(value, i), &width))
            return false;
        layers[i] = (uint32_t)width;
    }
    memcpy(model->layers, layers, count * sizeof *layers);
    model->num_layers = (uint32_t)count;
    return true;
}

static json_t *write_layers(const struct job_key *key, const void *field) {
    (void)key;
    const struct job_model *model = field;
    json_t *layers = json_array();
    for (uint32_t i = 0; i < model->num_layers; i++)
        json_array_append_new(layers, json_integer(model->layers[i]));
    return layers;
}

static void allow_layers(const struct job_key *key, char *text, size_t size) {
    snprintf(text, size, "an array of 2 to %d integers from %.0f to %.0f",
             JOB_MAX_LAYERS, key->least, key->most);
}

static bool read_betas(const struct job_key *key, const json_t *value,
                       void *field, const struct job_reader *reader) {
    (void)key, (void)reader;
    struct optimizer *optimizer = field;
    if (json_array_size(value) != 2)
        return false;
    double betas[2];
    for (size_t i = 0; i < 2; i++) {
        const json_t *beta = json_array_get(value, i);
        betas[i] = json_number_value(beta);
        if (!json_is_number(beta) || betas[i] < 0 || betas[i] >= 1)
            return false;
    }
    optimizer->beta1 = betas[0];
    optimizer->beta2 = betas[1];
    return true;
}

static json_t *write_betas(const struct job_key *key, const void *field) {
    (void)key;
    const struct optimizer *optimizer = field;
    return json_pack("[f, f]", optimizer->beta1, optimizer->beta2);
}

static void allow_betas(const struct job_key *key, char *text, size_t size) {
    (void)key;
    snprintf(text, size, "an array of two numbers, at least 0, less than 1");
}

static bool read_steps(const struct job_key *key, const json_t *value,
                       void *field, const struct job_reader *reader) {
    (void)reader;
    struct job *job = field;
    return job->has_steps = read_whole(key, value, &job->steps);
}

static json_t *write_steps(const struct job_key *key, const void *field) {
    (void)key;
    const struct job *job = field;
    return job->has_steps ? json_integer((json_int_t)job->steps) : NULL;
}

static bool is_word(const json_t *value, const char *word) {
    const char *text = json_string_value(value);
    return text && !strcmp(text, word);
}

static bool read_staleness(const struct job_key *key, const json_t *value,
                           void *field, const struct job_reader *reader) {
    (void)reader;
    if (!is_word(value, "inf"))
        return read_whole(key, value, field);
    *(uint64_t *)field = JOB_STALENESS_INF;
    return true;
}

static json_t *write_staleness(const struct job_key *key, const void *field) {
    uint64_t staleness = *(const uint64_t *)field;
    if (staleness == JOB_STALENESS_INF)
        return json_string("inf");
    return write_whole(key, staleness);
}

static void allow_staleness(const struct job_key *key, char *text,
                            size_t size) {
    snprintf(text, size, "an integer from 0 to %.0f, or \"inf\"", key->most);
}

static bool read_resume(const struct job_key *key, const json_t *value,
                        void *field, const struct job_reader *reader) {
    (void)reader;
    struct job_checkpoint *checkpoint = field;
    if (is_word(value, "auto"))
        checkpoint->resume = JOB_RESUME_AUTO;
    else if (is_word(value, "never"))
        checkpoint->resume = JOB_RESUME_NEVER;
    else if (read_whole(key, value, &checkpoint->resume_step))
        checkpoint->resume = JOB_RESUME_STEP;
    else
        return false;
    return true;
}

static json_t *write_resume(const struct job_key *key, const void *field) {
    (void)key;
    const struct job_checkpoint *checkpoint = field;
    if (checkpoint->resume == JOB_RESUME_STEP)
        return json_integer((json_int_t)checkpoint->resume_step);
    bool never = checkpoint->resume == JOB_RESUME_NEVER;
    return json_string(never ? "never" : "auto");
}

static void allow_resume(const struct job_key *key, char *text, size_t size) {
    (void)key;
    snprintf(text, size, "\"auto\", \"never\" or the number of a step");
}

/* One number, or several that ascend. */
static bool read_counts(const struct job_key *key, const json_t *value,
                        void *field, const struct job_reader *reader) {
    (void)reader;
    struct compare_counts counts = {0};
    size_t many = json_is_array(value) ? json_array_size(value) : 1;
    if (!many || many > COMPARE_OPTIONS_MAX_COUNTS)
        return false;
    for (size_t i = 0; i < many; i++) {
        uint64_t count;
        if (!read_whole(key,
                        json_is_array(value) ? json_array_get(value, i) : value,
                        &count) ||
            (i && count <= counts.values[i - 1]))
            return false;
        counts.values[counts.count++] = (unsigned)count;
    }
    *(struct compare_counts *)field = counts;
    return true;
}

static json_t *write_counts(const struct job_key *key, const void *field) {
    (void)key;
    const struct compare_counts *counts = field;
    json_t *list = counts->count ? json_array() : NULL;
    for (unsigned i = 0; i < counts->count; i++)
        json_array_append_new(list, json_integer(counts->values[i]));
    return list;
}

static void allow_counts(const struct job_key *key, char *text, size_t size) {
    snprintf(text, size,
             "an integer from %.0f to %.0f, or an array of up to %d of them "
             "that ascend",
             key->least, key->most, COMPARE_OPTIONS_MAX_COUNTS);
}

static const struct {
    bool (*read)(const struct job_key *, const json_t *, void *,
                 const struct job_reader *);
    json_t *(*write)(const struct job_key *, const void *);
    void (*allowed)(const struct job_key *, char *, size_t);
    unsigned owned; /* strings in the field that are freed with it */
} kinds[JOB_KINDS] = {
    [JOB_KIND_BOOL] = {read_bool, write_bool, allow_bool, 0},
    [JOB_KIND_U32] = {read_u32, write_u32, allow_whole, 0},
    [JOB_KIND_U64] = {read_u64, write_u64, allow_whole, 0},
    [JOB_KIND_REAL] = {read_real, write_real, allow_real, 0},
    [JOB_KIND_CHOICE] = {read_choice, write_choice, allow_words, 0},
    [JOB_KIND_EITHER] = {read_either, write_either, allow_words, 0},
    [JOB_KIND_TEXT] = {read_text, write_text, allow_text, 1},
    [JOB_KIND_PATH] = {read_path, write_text, allow_path, 1},
    [JOB_KIND_FILES] = {read_files, write_files, allow_files, 2},
    [JOB_KIND_LAYERS] = {read_layers, write_layers, allow_layers, 0},
    [JOB_KIND_BETAS] = {read_betas, write_betas, allow_betas, 0},
    [JOB_KIND_STEPS] = {read_steps, write_steps, allow_whole, 0},
    [JOB_KIND_STALENESS] = {read_staleness, write_staleness, allow_staleness,
                            0},
    [JOB_KIND_RESUME] = {read_resume, write_resume, allow_resume, 0},
    [JOB_KIND_COUNTS] = {read_counts, write_counts, allow_counts, 0},
};

bool job_value_read(const struct job_key *key, const json_t *value,
                    const struct job_reader *reader) {
    void *field = (char *)reader->job + key->field;
    return kinds[key->kind].read(key, value, field, reader);
}

json_t *job_value_write(const struct job_key *key, const struct job *job) {
    return kinds[key->kind].write(key, (const char *)job + key->field);
}

void job_value_free(const struct job_key *key, struct job *job) {
    char **owned = (char **)((char *)job + key->field);
    for (unsigned i = 0; i < kinds[key->kind].owned; i++) {
        free(owned[i]);
        owned[i] = NULL;
    }
}

void job_value_allowed(const struct job_key *key, char *text, size_t size) {
    kinds[key->kind].allowed(key, text, size);
}
