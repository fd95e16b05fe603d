/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/diagnostics.h"

#include "tests/lib/test.h"

TEST(a_text_is_quoted_on_one_line) {
    assert_string_equal(diagnostics_quote_text("a:1").text, "\"a:1\"");
    assert_string_equal(diagnostics_quote_text("a\nb\x1b[1m\x7f").text,
                        "\"a?b?[1m?\"");
    assert_string_equal(diagnostics_quote_text("").text, "\"\"");
    assert_string_equal(diagnostics_quote_text(NULL).text, "\"\"");
}

TEST(other_values_are_shown_as_json) {
    json_t *value = json_pack("{s:[i,n,b]}", "a", 1, 1);
    assert_string_equal(diagnostics_quote_json(value).text,
                        "{\"a\":[1,null,true]}");
    json_decref(value);
    value = json_string("x");
    assert_string_equal(diagnostics_quote_json(value).text, "\"x\"");
    json_decref(value);
    assert_string_equal(diagnostics_quote_json(NULL).text, "nothing");
}

TEST(a_long_text_is_truncated_between_characters) {
    char text[200];
    memset(text, 'x', 79);
    strcpy(text + 79, "\xe2\x82\xac and more");
    struct diagnostics_quote quote = diagnostics_quote_text(text);
    assert_int_equal(strlen(quote.text), 79 + 5);
    assert_string_equal(quote.text + 79, "x...\"");
    memset(text, 'y', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    assert_int_equal(strlen(diagnostics_quote_text(text).text), 80 + 5);
}

TEST(bytes_that_are_not_utf8_are_left_out) {
    assert_string_equal(diagnostics_quote_text("\xc3\xa9").text,
                        "\"\xc3\xa9\"");
    assert_string_equal(diagnostics_quote_text("a\xff\xc3").text, "\"a??\"");
}
