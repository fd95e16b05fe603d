/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/data/vocabulary.h"

#include "worker/data/data_file.h"

#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

enum { MAX_WORDS_BYTES = 1 << 30 };

struct word {
    struct record_text text;
    uint32_t place;
};

struct vocabulary {
    char *text;         /* of the words */
    struct word *words; /* [count], sorted */
    uint32_t count;
};

static int compare_words(const void *left, const void *right) {
    const struct record_text *a = left, *b = right; /* at a word's begin */
    size_t size = a->size < b->size ? a->size : b->size;
    int order = memcmp(a->bytes, b->bytes, size);
    return order ? order : (a->size > b->size) - (a->size < b->size);
}

/* The whole of PATH, SIZE bytes; the caller's. */
static enum status read_words_file(const char *path, char **text, size_t *size,
                                   struct failure *why) {
    struct data_file *file;
    size_t room = 0, got = 1;
    *text = NULL;
    *size = 0;
    enum status status = data_file_open(&file, path, "words", why);
    while (!status && got) {
        if (*size == room) {
            room = room ? 2 * room : 1 << 16;
            char *more = room <= MAX_WORDS_BYTES ? realloc(*text, room) : NULL;
            if (!more) {
                status = status_fail(why, FAILURE_TOO_LITTLE_MEMORY,
                                     room <= MAX_WORDS_BYTES
                                         ? "%s: no memory for its words"
                                         : "%s: words of more than 512 MiB",
                                     path);
                break;
            }
            *text = more;
        }
        status = data_file_read(file, *text + *size, room - *size, &got, why);
        *size += got;
    }
    if (!status)
        status = data_file_check_end(file, why);
    if (!status)
        status = data_file_check_text(file, *text ? *text : "", *size, why);
    data_file_close(&file);
    return status;
}

/* A word a line of the text's SIZE bytes. */
static bool cut_words(struct vocabulary *vocabulary, size_t size) {
    char *text = vocabulary->text;
    size_t lines = 1;
    for (size_t i = 0; i < size; i++)
        lines += text[i] == '\n';
    vocabulary->words = calloc(lines, sizeof *vocabulary->words);
    char *first =
        text + (size >= 3 && !memcmp(text, "\xef\xbb\xbf", 3) ? 3 : 0);
    for (char *at = first, *end = text + size; vocabulary->words && at < end;) {
        char *stop = memchr(at, '\n', (size_t)(end - at));
        stop = stop ? stop : end;
        size_t length = (size_t)(stop - at);
        length -= length && at[length - 1] == '\r';
        if (length) {
            vocabulary->words[vocabulary->count] =
                (struct word){{at, length}, vocabulary->count};
            vocabulary->count++;
        }
        at = stop + 1;
    }
    return vocabulary->words;
}

/* The strings of LIST, one behind the other; NULL: it has something else. */
static char *join_words(const json_t *list, size_t *size) {
    size_t i;
    const json_t *item;
    *size = 0;
    json_array_foreach(list, i, item) {
        const char *word = json_string_value(item);
        if (!word || !*word || strpbrk(word, "\r\n"))
            return NULL;
        *size += json_string_length(item) + 1;
    }
    char *text = *size ? malloc(*size) : NULL, *at = text;
    json_array_foreach(list, i, item) {
        if (!text)
            break;
        size_t length = json_string_length(item);
        memcpy(at, json_string_value(item), length);
        at[length] = '\n';
        at += length + 1;
    }
    return text;
}

enum status vocabulary_open(struct vocabulary **out, const char *path,
                            const json_t *list, struct failure *why) {
    struct vocabulary *vocabulary = calloc(1, sizeof *vocabulary);
    enum status status = STATUS_OK;
    size_t size = 0;
    *out = vocabulary;
    if (vocabulary && path)
        status = read_words_file(path, &vocabulary->text, &size, why);
    else if (vocabulary)
        vocabulary->text = join_words(list, &size);
    if (!vocabulary ||
        (!status && vocabulary->text && !cut_words(vocabulary, size)))
        status = status_fail(why, FAILURE_NO_MEMORY,
                             "no memory for a vocabulary's words");
    if (status)
        vocabulary_close(out);
    else if (vocabulary->count)
        qsort(vocabulary->words, vocabulary->count, sizeof *vocabulary->words,
              compare_words);
    return status;
}

void vocabulary_close(struct vocabulary **vocabulary) {
    if (!*vocabulary)
        return;
    free((*vocabulary)->text);
    free((*vocabulary)->words);
    free(*vocabulary);
    *vocabulary = NULL;
}

uint32_t vocabulary_count(const struct vocabulary *vocabulary) {
    return vocabulary->count;
}

uint64_t vocabulary_digest(const struct vocabulary *vocabulary, uint64_t seed) {
    for (uint32_t w = 0; w < vocabulary->count; w++) {
        const struct word *word = &vocabulary->words[w];
        seed = XXH3_64bits_withSeed(word->text.bytes, word->text.size,
                                    seed + word->place);
    }
    return seed;
}

static uint64_t line_of(const struct vocabulary *vocabulary,
                        const struct word *word) {
    uint64_t line = 1;
    for (const char *at = vocabulary->text; at < word->text.bytes; at++)
        line += *at == '\n';
    return line;
}

bool vocabulary_twin(const struct vocabulary *vocabulary,
                     struct record_text *twin, uint64_t lines[2]) {
    const struct word *words = vocabulary->words;
    for (uint32_t i = 1; i < vocabulary->count; i++)
        if (!compare_words(&words[i - 1], &words[i])) {
            bool sorted = words[i - 1].place < words[i].place;
            *twin = words[i].text;
            lines[!sorted] = line_of(vocabulary, &words[i - 1]);
            lines[sorted] = line_of(vocabulary, &words[i]);
            return true;
        }
    return false;
}

bool vocabulary_find(const struct vocabulary *vocabulary,
                     const struct record_text *word, uint32_t *place) {
    const struct word *found =
        bsearch(word, vocabulary->words, vocabulary->count,
                sizeof *vocabulary->words, compare_words);
    if (found)
        *place = found->place;
    return found;
}
