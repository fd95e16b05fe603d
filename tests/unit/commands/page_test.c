/* SPDX-License-Identifier: Apache-2.0 */
/* What page.html may have. That its script runs by the policy, and that none of
 * a run's own does, a browser shows (make check-page). */
#include "commands/page.h"

#include "tests/lib/test.h"

#include <string.h>

static size_t count(const char *part) {
    size_t found = 0;
    for (const char *at = page_html; (at = strstr(at, part)); at++)
        found++;
    return found;
}

TEST(a_page_is_one_file_of_400_lines_and_60_kb_at_most) {
    assert_true(count("\n") <= 400);
    assert_true(strlen(page_html) <= 60000);
    assert_int_equal(count("http:"), 2); /* the name of SVG, twice */
    assert_int_equal(count("http://www.w3.org/2000/svg"), 2);
    assert_int_equal(count("https:"), 0);
    assert_int_equal(count("src="), 0);
    assert_int_equal(count("@import"), 0);
    assert_int_equal(count("url("), 0);
}

TEST(a_page_runs_one_script_and_one_style_by_their_hashes) {
    static const char *const parts[] = {
        "default-src 'none'; ", "script-src 'sha256-", "style-src 'sha256-",
        "connect-src 'self'; ", "base-uri 'none'",     "form-action 'none'"};
    assert_int_equal(count("<script"), 2); /* one has data */
    assert_int_equal(count("<script>"), 1);
    assert_int_equal(count("<style>"), 1);
    assert_int_equal(count(" style="), 0);
    assert_int_equal(count("POLICY"), 0);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        assert_int_equal(count(parts[i]), 1);
        assert_contains(page_policy, parts[i]);
    }
    assert_null(strstr(page_policy, "unsafe"));
    assert_contains(page_policy, "frame-ancestors 'none'");
}

TEST(a_page_makes_no_element_of_a_text) {
    static const char *const ways[] = {"innerHTML",
                                       "outerHTML",
                                       "insertAdjacentHTML",
                                       "document.write",
                                       "eval(",
                                       "new Function",
                                       "createContextualFragment",
                                       " onload=",
                                       " onclick=",
                                       "javascript:",
                                       "setHTML",
                                       "srcdoc"};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        assert_int_equal(count(ways[i]), 0);
}
