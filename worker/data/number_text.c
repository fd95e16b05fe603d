/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/data/number_text.h"

#include <locale.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum {
    DIGITS_SAFE = 19,  /* of integers that are below 2^64 */
    DIGITS_EXACT = 15, /* of integers that float64 has all */
    LONGEST = 127      /* bytes of a number */
};

#define ASCII_ZEROS UINT64_C(0x3030303030303030)

bool number_text_unsigned(const char *text, size_t size, uint64_t *out) {
    uint64_t value = 0;
    if (!size)
        return false;
    for (size_t i = 0; i < size; i++) {
        unsigned digit = (unsigned)(text[i] - '0');
        if (digit > 9)
            return false;
        if (i < DIGITS_SAFE)
            value = value * 10 + digit;
        else if (__builtin_mul_overflow(value, 10, &value) ||
                 __builtin_add_overflow(value, digit, &value))
            return false;
    }
    *out = value;
    return true;
}

static pthread_once_t locale_made = PTHREAD_ONCE_INIT;
static locale_t locale;

static void make_locale(void) {
    locale = newlocale(LC_ALL_MASK, "C", NULL);
}

/* Any number; SIZE bytes are copied, as a 0 has to end them. strtod also takes
 * words and hexadecimal numbers. */
static bool parse_slowly(const char *text, size_t size, double *out) {
    char copy[LONGEST + 1], *end;
    if (!size || size > LONGEST)
        return false;
    for (size_t i = 0; i < size; i++) {
        bool digit = (unsigned)(text[i] - '0') <= 9;
        if (!digit && !memchr("+-.eE", text[i], 5))
            return false;
    }
    pthread_once(&locale_made, make_locale);
    if (!locale)
        return false;
    memcpy(copy, text, size);
    copy[size] = 0;
    *out = strtod_l(copy, &end, locale);
    return !*end && isfinite(*out);
}

const char *number_text_plain(const char *text, const char *end, float *out) {
    static const double powers[] = {1e0,  1e1,  1e2,  1e3, 1e4,  1e5,
                                    1e6,  1e7,  1e8,  1e9, 1e10, 1e11,
                                    1e12, 1e13, 1e14, 1e15};
    bool negative = text < end && *text == '-', point = false;
    const char *at = text + (negative || (text < end && *text == '+'));
    unsigned digits = 0, after = 0;
    uint64_t mantissa = 0;
    for (; at < end && digits <= DIGITS_EXACT; at++) {
        unsigned digit = (unsigned)(*at - '0');
        if (digit <= 9) {
            mantissa = mantissa * 10 + digit;
            digits++;
            after += point;
        } else if (*at == '.' && !point) {
            point = true;
        } else {
            break;
        }
    }
    if (!digits || digits > DIGITS_EXACT)
        return NULL;
    double value = (double)(int64_t)mantissa;
    if (after)
        value /= powers[after];
    *out = (float)(negative ? -value : value);
    return at;
}

/* SIZE bytes of TEXT, 1 to 8, as the last ones of 8 characters, the first in
 * the lowest bits; 0s stand before them. */
static uint64_t align_digits(const char *text, size_t size) {
    const unsigned char *bytes = (const unsigned char *)text;
    uint32_t first, last;
    uint64_t word;
    if (size >= sizeof first) {
        memcpy(&first, text, sizeof first);
        memcpy(&last, text + size - sizeof last, sizeof last);
        word = first | (uint64_t)last << 8 * (size - sizeof last);
    } else {
        word = bytes[0] | (uint64_t)bytes[size / 2] << 8 * (size / 2) |
               (uint64_t)bytes[size - 1] << 8 * (size - 1);
    }
    return word << (64 - 8 * size) | ASCII_ZEROS >> 8 * (size - 1) >> 8;
}

/* 1 to 8 digits, as most integers are, without a branch for their number: they
 * become numbers of 2 digits, of 4, and the value. False: it is another text.
 */
static bool parse_digits(const char *text, size_t size, float *out) {
    if (size - 1 >= sizeof(uint64_t))
        return false;
    uint64_t word = align_digits(text, size) ^ ASCII_ZEROS;
    if ((word | (word + UINT64_C(0x0606060606060606))) &
        UINT64_C(0xf0f0f0f0f0f0f0f0))
        return false;
    word = (word * 10 + (word >> 8)) & UINT64_C(0x00ff00ff00ff00ff);
    word = (word * 100 + (word >> 16)) & UINT64_C(0x0000ffff0000ffff);
    word = (word * 10000 + (word >> 32)) & UINT32_MAX;
    *out = (float)(int64_t)word;
    return true;
}

/* Apart from number_text_float, so that digits need no stack. */
__attribute__((noinline)) static bool parse_any(const char *text, size_t size,
                                                float *out) {
    double value;
    if (number_text_plain(text, text + size, out) == text + size)
        return true;
    if (!parse_slowly(text, size, &value))
        return false;
    *out = (float)value;
    return isfinite(*out);
}

bool number_text_float(const char *text, size_t size, float *out) {
    return parse_digits(text, size, out) || parse_any(text, size, out);
}

/* Of pandas, R and SQL. */
static bool parse_truth(const char *text, size_t size, float *out) {
    static const char *const words[] = {"False", "True",  "false",
                                        "true",  "FALSE", "TRUE"};
    for (int i = 0; i < 6; i++)
        if (strlen(words[i]) == size && !memcmp(words[i], text, size)) {
            *out = (float)(i % 2);
            return true;
        }
    return false;
}

/* A point is then none. */
static bool parse_comma(const char *text, size_t size, float *out) {
    char copy[LONGEST];
    if (!size || size > sizeof copy)
        return false;
    for (size_t i = 0; i < size; i++) {
        if (text[i] == '.')
            return false;
        copy[i] = text[i] == ',' ? '.' : text[i];
    }
    return parse_any(copy, size, out);
}

bool number_text_field(const char *text, size_t size, bool decimal_comma,
                       float *out) {
    return (decimal_comma ? parse_comma(text, size, out)
                          : number_text_float(text, size, out)) ||
           parse_truth(text, size, out);
}
