/* SPDX-License-Identifier: Apache-2.0 */
#include "core/base/limits.h"

#include "tests/lib/test.h"

#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum { LIMIT = 160, OPENED = 120, MORE = 60 };

/* Connections of unknown peers, who come and go, are no reason to end a run;
 * files that stay open are. */
TEST(connections_that_are_open_do_not_raise_the_limit_needed) {
    struct rlimit low = {LIMIT, LIMIT};
    struct failure why;
    int sockets[OPENED];
    assert_return_code(setrlimit(RLIMIT_NOFILE, &low), 0);
    for (int i = 0; i < OPENED; i++)
        assert_return_code(sockets[i] = socket(AF_INET, SOCK_STREAM, 0), 0);
    assert_int_equal(limits_descriptors(MORE, "15 trainers", &why), STATUS_OK);
    for (int i = 0; i < OPENED; i++) {
        close(sockets[i]);
        assert_return_code(dup(STDERR_FILENO), 0);
    }
    assert_int_equal(limits_descriptors(MORE, "15 trainers", &why),
                     STATUS_CONFIG);
    assert_non_null(strstr(why.text, "may have 160 open files, and with 15 "));
}
