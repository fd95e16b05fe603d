/* SPDX-License-Identifier: Apache-2.0 */
#define STATE struct written *written

#include "commands/measure/compare_hparams.h"

#include "chief/report/event.pb-c.h"
#include "commands/measure/hparams.pb-c.h"
#include "tests/lib/assert_fails.h"
#include "tests/lib/test.h"

#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The events of a file behind its first, which has the version. */
enum { MAX_EVENTS = 40 };
struct written {
    char dir[64];
    Tensorboard__Event *events[MAX_EVENTS];
    size_t count;
};

static int make_dir(void **state) {
    struct written *written = calloc(1, sizeof *written);
    if (!written)
        return -1;
    strcpy(written->dir, "/tmp/hparams-test-XXXXXX");
    *state = written;
    return mkdtemp(written->dir) ? 0 : -1;
}

static void forget(struct written *written) {
    while (written->count)
        tensorboard__event__free_unpacked(written->events[--written->count],
                                          NULL);
}

static int remove_dir(void **state) {
    struct written *written = *state;
    forget(written);
    int status = system(textf("rm -rf %s", written->dir));
    free(written);
    return status;
}

FIXTURE(make_dir, remove_dir);

/* Reads the only event file of FOLDER, a pattern below the directory; the
 * frames are those of tensorboard_writer_test.c. */
static void read_events(struct written *written, const char *folder) {
    glob_t found;
    uint64_t length;
    uint8_t bytes[4096];
    forget(written);
    const char *pattern =
        textf("%s/%s/events.out.tfevents.*", written->dir, folder);
    assert_int_equal(glob(pattern, 0, NULL, &found), 0);
    assert_int_equal(found.gl_pathc, 1);
    FILE *file = fopen(found.gl_pathv[0], "rb");
    globfree(&found);
    assert_non_null(file);
    while (fread(&length, sizeof length, 1, file) == 1) {
        assert_in_range(length, 1, sizeof bytes);
        fseek(file, 4, SEEK_CUR);
        assert_int_equal(fread(bytes, length, 1, file), 1);
        fseek(file, 4, SEEK_CUR);
        Tensorboard__Event *event =
            tensorboard__event__unpack(NULL, length, bytes);
        assert_non_null(event);
        assert_true(written->count < MAX_EVENTS);
        written->events[written->count++] = event;
    }
    fclose(file);
}

/* The value with TAG of the events that were read; NULL: there is none. */
static const Tensorboard__Summary__Value *value_of(
    const struct written *written, const char *tag) {
    for (size_t i = 0; i < written->count; i++) {
        const Tensorboard__Summary *summary =
            written->events[i]->what_case == TENSORBOARD__EVENT__WHAT_SUMMARY
                ? written->events[i]->summary
                : NULL;
        if (summary && !strcmp(summary->value[0]->tag, tag))
            return summary->value[0];
    }
    return NULL;
}

/* The caller's. */
static Hparams__PluginData *data_of(const struct written *written,
                                    const char *tag) {
    const Tensorboard__Summary__Value *value = value_of(written, tag);
    assert_non_null(value);
    assert_int_equal(value->value_case,
                     TENSORBOARD__SUMMARY__VALUE__VALUE_TENSOR);
    const Tensorboard__SummaryMetadata__PluginData *plugin =
        value->metadata->plugin_data;
    assert_string_equal(plugin->plugin_name, "hparams");
    Hparams__PluginData *data = hparams__plugin_data__unpack(
        NULL, plugin->content.len, plugin->content.data);
    assert_non_null(data);
    return data;
}

static void write_result(struct written *written, const char *text) {
    struct failure why = {0};
    json_t *result = json_loads(text, 0, NULL);
    assert_non_null(result);
    if (compare_hparams_check(written->dir, &why) ||
        compare_hparams_write(result, written->dir, &why))
        fail_msg("%s", why.text);
    json_decref(result);
}

#define CASE(MODE, PS, REST)                                                   \
    "{\"mode\":\"" MODE "\",\"workers\":2,\"ps\":" PS ",\"replicas\":4," REST  \
    "}"
static const char result[] =
    "{\"job\":\"it's.json\",\"date\":\"2026-11-28T21:00:00Z\","
    "\"samples_per_step\":32,\"cases\":[" CASE("allreduce", "0", "\"error\":\"no room\"") "," CASE(
        "ps", "1",
        "\"error\":null,\"train_loss\":0.25,"
        "\"examples_per_second\":{\"mean\":900.0,\"median\":1.0}") "," CASE("ps-async",
                                                                            "1",
                                                                            "\"error\":null,\"train_loss\":0.5") "]}";

/* Expects what the case says of itself. */
static void expect_session(const struct written *written, const char *mode,
                           double ps, double batch, Hparams__Status status) {
    Hparams__PluginData *start =
        data_of(written, "_hparams_/session_start_info");
    Hparams__PluginData *end = data_of(written, "_hparams_/session_end_info");
    const Hparams__SessionStartInfo *info = start->session_start_info;
    const char *const names[] = {"job", "mode", "workers", "ps", "batch"};
    const double numbers[] = {0, 0, 2, ps, batch};
    assert_int_equal(info->n_hparams, 5);
    for (int i = 0; i < 5; i++) {
        assert_string_equal(info->hparams[i]->key, names[i]);
        if (i > 1)
            assert_true(info->hparams[i]->value->number_value == numbers[i]);
    }
    assert_string_equal(info->hparams[0]->value->string_value, "it's.json");
    assert_string_equal(info->hparams[1]->value->string_value, mode);
    assert_int_equal(end->session_end_info->status, status);
    hparams__plugin_data__free_unpacked(start, NULL);
    hparams__plugin_data__free_unpacked(end, NULL);
}

static void expect_figure(const struct written *written, const char *tag,
                          float figure) {
    const Tensorboard__Summary__Value *value = value_of(written, tag);
    assert_non_null(value);
    assert_true(value->simple_value == figure);
}

/* A round is of all replicas, an asynchronous step of one. */
TEST(each_case_is_a_session_with_its_figures) {
    write_result(written, result);
    read_events(written, "2026-11-28T21:00:00Z/2-workers-1-ps");
    expect_session(written, "ps", 1, 128, HPARAMS__STATUS__STATUS_SUCCESS);
    expect_figure(written, "examples_per_second_mean", 900);
    expect_figure(written, "train_loss", 0.25f);
    assert_null(value_of(written, "test_accuracy"));
    read_events(written, "2026-11-28T21:00:00Z/2-workers-1-ps-async");
    expect_session(written, "ps-async", 1, 32, HPARAMS__STATUS__STATUS_SUCCESS);
    read_events(written, "2026-11-28T21:00:00Z/2-workers-allreduce");
    expect_session(written, "allreduce", 0, 128,
                   HPARAMS__STATUS__STATUS_FAILURE);
    assert_null(value_of(written, "train_loss"));
}

TEST(the_experiment_lists_the_figures_that_a_case_has) {
    write_result(written, result);
    read_events(written, "2026-11-28T21:00:00Z");
    Hparams__PluginData *data = data_of(written, "_hparams_/experiment");
    const Hparams__Experiment *experiment = data->experiment;
    assert_int_equal(experiment->n_hparam_infos, 5);
    assert_int_equal(experiment->n_metric_infos, 2);
    assert_string_equal(experiment->metric_infos[0]->name->tag, "train_loss");
    assert_string_equal(experiment->metric_infos[1]->name->tag,
                        "examples_per_second_mean");
    assert_string_equal(experiment->metric_infos[1]->display_name,
                        "examples/s");
    hparams__plugin_data__free_unpacked(data, NULL);
}

/* A command is in place of a job, and a case that never ran has no replicas. */
TEST(what_is_not_known_is_left_out) {
    write_result(written,
                 textf("{\"command\":\"train %0*d\",\"date\":\"D\",\"cases\":"
                       "[{\"mode\":\"ps\",\"workers\":1,\"ps\":2}]}",
                       2000, 7));
    read_events(written, "D/1-workers-2-ps");
    Hparams__PluginData *data =
        data_of(written, "_hparams_/session_start_info");
    const Hparams__SessionStartInfo *start = data->session_start_info;
    assert_int_equal(start->n_hparams, 4);
    assert_int_equal(strlen(start->hparams[0]->value->string_value), 2006);
    assert_string_equal(start->hparams[3]->key, "ps");
    hparams__plugin_data__free_unpacked(data, NULL);
}

TEST(a_folder_that_cannot_be_made_is_refused_before_the_runs) {
    struct failure why = {0};
    const char *file = textf("%s/file", written->dir);
    assert_int_equal(close(creat(file, 0600)), 0);
    assert_fails(compare_hparams_check(textf("%s/a", file), &why), &why,
                 FAILURE_OUTPUT_UNUSABLE);
    assert_contains(why.text, "--tensorboard");
    assert_contains(why.text, file);
    assert_fails(compare_hparams_check(file, &why), &why,
                 FAILURE_OUTPUT_UNUSABLE);
}
