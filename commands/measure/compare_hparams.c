/* SPDX-License-Identifier: Apache-2.0 */
#include "commands/measure/compare_hparams.h"

#include "chief/report/tensorboard_writer.h"
#include "commands/measure/compare_table.h"
#include "commands/measure/hparams.pb-c.h"
#include "core/base/time.h"
#include "core/store/fs_info.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What a case is: the plugin's hyperparameters. */
static const struct parameter {
    const char *name;
    Hparams__DataType type;
} parameters[] = {
    {"job", HPARAMS__DATA_TYPE__DATA_TYPE_STRING},
    {"mode", HPARAMS__DATA_TYPE__DATA_TYPE_STRING},
    {"workers", HPARAMS__DATA_TYPE__DATA_TYPE_FLOAT64},
    {"ps", HPARAMS__DATA_TYPE__DATA_TYPE_FLOAT64},
    {"batch", HPARAMS__DATA_TYPE__DATA_TYPE_FLOAT64},
};
enum { PARAMETERS = sizeof parameters / sizeof *parameters };

enum { MAX_FOLDER = 4096 };

enum status compare_hparams_check(const char *dir, struct failure *why) {
    enum status status = fs_info_make_folder(dir, why);
    if (status) {
        status_context(why, "--tensorboard");
        why->code = FAILURE_OUTPUT_UNUSABLE;
        return STATUS_CONFIG;
    }
    return access(dir, W_OK | X_OK)
               ? status_errno(why, FAILURE_OUTPUT_UNUSABLE, errno,
                              "--tensorboard %s", dir)
               : STATUS_OK;
}

static enum status join_path(char path[MAX_FOLDER], const char *folder,
                             const char *name, struct failure *why) {
    return snprintf(path, MAX_FOLDER, "%s/%s", folder, name) < MAX_FOLDER
               ? STATUS_OK
               : status_fail(why, FAILURE_OUTPUT_UNUSABLE,
                             "--tensorboard: a path is over %d bytes: %s/%s",
                             MAX_FOLDER - 1, folder, name);
}

/* The text of RESULT's job or, without one, of its command. */
static const char *job_of(const json_t *result) {
    const char *job = json_string_value(json_object_get(result, "job"));
    const char *command = json_string_value(json_object_get(result, "command"));
    return job ? job : command ? command : "";
}

static const char *mode_of_case(const json_t *one) {
    const char *mode = json_string_value(json_object_get(one, "mode"));
    return mode ? mode : "";
}

/* Samples of a step of ONE as the job counts steps: of all replicas in a round,
 * of one in an asynchronous step; NAN: not known. */
static double batch_of(const json_t *result, const json_t *one) {
    double samples = compare_table_number(result, NULL, "samples_per_step");
    return strcmp(mode_of_case(one), "ps-async") == 0
               ? samples
               : samples * compare_table_number(one, NULL, "replicas");
}

/* Appends the message DATA under TAG. */
static enum status add_data(struct tensorboard_writer *writer, const char *tag,
                            Hparams__PluginData *data, struct failure *why) {
    size_t size = hparams__plugin_data__get_packed_size(data);
    uint8_t *bytes = malloc(size + 1);
    if (!bytes)
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for %s", tag);
    hparams__plugin_data__pack(data, bytes);
    enum status status =
        tensorboard_writer_add_plugin(writer, tag, "hparams", bytes, size, why);
    free(bytes);
    return status;
}

/* Sets VALUE of parameter P of ONE. False: it has none. */
static bool find_value(Hparams__Value *value, int p, const json_t *result,
                       const json_t *one) {
    const char *name = parameters[p].name;
    *value = (Hparams__Value)HPARAMS__VALUE__INIT;
    if (parameters[p].type == HPARAMS__DATA_TYPE__DATA_TYPE_STRING) {
        value->kind_case = HPARAMS__VALUE__KIND_STRING_VALUE;
        value->string_value =
            (char *)(strcmp(name, "job") == 0 ? job_of(result)
                                              : mode_of_case(one));
        return value->string_value[0];
    }
    value->kind_case = HPARAMS__VALUE__KIND_NUMBER_VALUE;
    value->number_value = strcmp(name, "batch") == 0
                              ? batch_of(result, one)
                              : compare_table_number(one, NULL, name);
    return !isnan(value->number_value);
}

static enum status add_start(struct tensorboard_writer *writer,
                             const json_t *result, const json_t *one,
                             struct failure *why) {
    Hparams__Value values[PARAMETERS];
    Hparams__SessionStartInfo__Entry entries[PARAMETERS];
    Hparams__SessionStartInfo__Entry *found[PARAMETERS];
    Hparams__SessionStartInfo start = HPARAMS__SESSION_START_INFO__INIT;
    Hparams__PluginData data = HPARAMS__PLUGIN_DATA__INIT;
    start.hparams = found;
    for (int p = 0; p < PARAMETERS; p++) {
        if (!find_value(&values[p], p, result, one))
            continue;
        entries[p] = (Hparams__SessionStartInfo__Entry)
            HPARAMS__SESSION_START_INFO__ENTRY__INIT;
        entries[p].key = (char *)parameters[p].name;
        entries[p].value = &values[p];
        found[start.n_hparams++] = &entries[p];
    }
    start.start_time_secs = time_calendar();
    data.data_case = HPARAMS__PLUGIN_DATA__DATA_SESSION_START_INFO;
    data.session_start_info = &start;
    return add_data(writer, "_hparams_/session_start_info", &data, why);
}

static enum status add_end(struct tensorboard_writer *writer, const json_t *one,
                           struct failure *why) {
    Hparams__SessionEndInfo end = HPARAMS__SESSION_END_INFO__INIT;
    Hparams__PluginData data = HPARAMS__PLUGIN_DATA__INIT;
    end.status = json_is_string(json_object_get(one, "error"))
                     ? HPARAMS__STATUS__STATUS_FAILURE
                     : HPARAMS__STATUS__STATUS_SUCCESS;
    end.end_time_secs = time_calendar();
    data.data_case = HPARAMS__PLUGIN_DATA__DATA_SESSION_END_INFO;
    data.session_end_info = &end;
    return add_data(writer, "_hparams_/session_end_info", &data, why);
}

static enum status write_figures(struct tensorboard_writer *writer,
                                 const json_t *one, struct failure *why) {
    enum status status = STATUS_OK;
    for (int c = 0; c < COMPARE_TABLE_COLUMNS && !status; c++) {
        const struct compare_table_column *column = &compare_table_columns[c];
        double value = compare_table_number(one, column->inside, column->key);
        if (column->title && !isnan(value))
            status = tensorboard_writer_add_scalar(writer, column->name, 0,
                                                   value, why);
    }
    return status;
}

/* Writes a session in a folder of FOLDER. */
static enum status write_case(const json_t *result, const json_t *one,
                              const char *folder, struct failure *why) {
    char path[MAX_FOLDER], name[80];
    struct tensorboard_writer *writer = NULL;
    unsigned workers = (unsigned)compare_table_number(one, NULL, "workers"),
             ps = (unsigned)compare_table_number(one, NULL, "ps");
    if (ps)
        snprintf(name, sizeof name, "%u-workers-%u-%.16s", workers, ps,
                 mode_of_case(one));
    else
        snprintf(name, sizeof name, "%u-workers-%.16s", workers,
                 mode_of_case(one));
    enum status status = join_path(path, folder, name, why);
    if (!status)
        status = tensorboard_writer_open(&writer, path, why);
    if (!status)
        status = add_start(writer, result, one, why);
    if (!status)
        status = write_figures(writer, one, why);
    if (!status)
        status = add_end(writer, one, why);
    if (!status)
        status = tensorboard_writer_flush(writer, why);
    tensorboard_writer_close(&writer);
    return status;
}

/* Has a case of RESULT the figure of COLUMN? */
static bool has_figure(const json_t *result,
                       const struct compare_table_column *column) {
    size_t i;
    const json_t *one;
    json_array_foreach(json_object_get(result, "cases"), i, one) {
        if (!isnan(compare_table_number(one, column->inside, column->key)))
            return true;
    }
    return false;
}

/* The metrics of EXPERIMENT: the figures that a case has. */
static void list_metrics(Hparams__Experiment *experiment,
                         Hparams__MetricName *names, Hparams__MetricInfo *infos,
                         const json_t *result) {
    for (int c = 0; c < COMPARE_TABLE_COLUMNS; c++) {
        const struct compare_table_column *column = &compare_table_columns[c];
        if (!column->title || !has_figure(result, column))
            continue;
        names[c] = (Hparams__MetricName)HPARAMS__METRIC_NAME__INIT;
        infos[c] = (Hparams__MetricInfo)HPARAMS__METRIC_INFO__INIT;
        names[c].tag = (char *)column->name;
        infos[c].name = &names[c];
        infos[c].display_name = (char *)column->title;
        experiment->metric_infos[experiment->n_metric_infos++] = &infos[c];
    }
}

static enum status add_experiment(struct tensorboard_writer *writer,
                                  const json_t *result, struct failure *why) {
    Hparams__MetricName names[COMPARE_TABLE_COLUMNS];
    Hparams__MetricInfo metrics[COMPARE_TABLE_COLUMNS];
    Hparams__MetricInfo *metrics_found[COMPARE_TABLE_COLUMNS];
    Hparams__HParamInfo infos[PARAMETERS], *listed[PARAMETERS];
    Hparams__Experiment experiment = HPARAMS__EXPERIMENT__INIT;
    Hparams__PluginData data = HPARAMS__PLUGIN_DATA__INIT;
    for (int p = 0; p < PARAMETERS; p++) {
        infos[p] = (Hparams__HParamInfo)HPARAMS__HPARAM_INFO__INIT;
        infos[p].name = (char *)parameters[p].name;
        infos[p].type = parameters[p].type;
        listed[p] = &infos[p];
    }
    experiment.description = (char *)"capstan compare";
    experiment.time_created_secs = time_calendar();
    experiment.n_hparam_infos = PARAMETERS;
    experiment.hparam_infos = listed;
    experiment.metric_infos = metrics_found;
    list_metrics(&experiment, names, metrics, result);
    data.data_case = HPARAMS__PLUGIN_DATA__DATA_EXPERIMENT;
    data.experiment = &experiment;
    return add_data(writer, "_hparams_/experiment", &data, why);
}

enum status compare_hparams_write(const json_t *result, const char *dir,
                                  struct failure *why) {
    char folder[MAX_FOLDER];
    struct tensorboard_writer *writer = NULL;
    const char *date = json_string_value(json_object_get(result, "date"));
    size_t i;
    const json_t *one;
    enum status status = join_path(folder, dir, date ? date : "compare", why);
    if (!status)
        status = tensorboard_writer_open(&writer, folder, why);
    if (!status)
        status = add_experiment(writer, result, why);
    if (!status)
        status = tensorboard_writer_flush(writer, why);
    tensorboard_writer_close(&writer);
    json_array_foreach(json_object_get(result, "cases"), i, one) {
        if (!status)
            status = write_case(result, one, folder, why);
    }
    return status;
}
