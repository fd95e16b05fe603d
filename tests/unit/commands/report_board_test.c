/* SPDX-License-Identifier: Apache-2.0 */
#include "commands/report_board.h"

#include "tests/lib/test.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

TEST(it_tells_of_the_roles_while_they_run) {
    struct report_board *board = report_board_open();
    struct health *healths[] = {health_open("ps", 3), health_open("worker", 1)};
    assert_null(report_board_read(board));
    report_board_set(board, healths, 2);
    json_t *object = report_board_read(board);
    assert_int_equal(json_array_size(json_object_get(object, "processes")), 2);
    json_decref(object);
    report_board_set(board, NULL, 0);
    assert_null(report_board_read(board));
    report_board_set(NULL, healths, 2); /* the program's process has none */
    health_close(&healths[0]);
    health_close(&healths[1]);
    report_board_close(&board);
    report_board_close(&board);
}

static void *answer_as_chief(void *chief) {
    while (!health_is_asked(chief))
        ;
    health_answer(chief, strdup("{\"processes\": [1, 2, 3]}"));
    return NULL;
}

TEST(a_chief_is_asked_for_all) {
    struct report_board *board = report_board_open();
    struct health *chief = health_open("chief", 0);
    pthread_t thread;
    report_board_set(board, &chief, 1);
    assert_int_equal(pthread_create(&thread, NULL, answer_as_chief, chief), 0);
    json_t *object = report_board_read(board);
    pthread_join(thread, NULL);
    assert_int_equal(json_array_size(json_object_get(object, "processes")), 3);
    json_decref(object);
    health_close(&chief);
    report_board_close(&board);
}

TEST(a_chief_that_stands_still_speaks_for_its_process) {
    struct report_board *board = report_board_open();
    struct health *chief = health_open("chief", 0);
    report_board_set(board, &chief, 1);
    json_t *object = report_board_read(board);
    assert_int_equal(json_array_size(json_object_get(object, "processes")), 1);
    json_decref(object);
    health_close(&chief);
    report_board_close(&board);
}
