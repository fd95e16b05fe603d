/* SPDX-License-Identifier: Apache-2.0 */
/* What a trainer prepares before there is a plan, and reports: data, the
 * model's parameters, devices. Model memory is allocated later. */
#include "worker/train/trainer_internal.h"

static enum status load_data(struct trainer *trainer, struct failure *why) {
    const struct job *job = trainer->settings.job;
    const struct job_data *data = &job->data;
    const struct log *log = trainer->settings.log;
    const char *in = data->dir ? ", in data.dir" : "";
    enum status status = dataset_load(&trainer->train, data->train_images,
                                      data->train_labels, log, why);
    if (status)
        return status_context(why, "data.train%s", in);
    if (data->test_images)
        status = dataset_load(&trainer->test, data->test_images,
                              data->test_labels, log, why);
    if (status)
        return status_context(why, "data.test%s", in);
    status = mlp_check_data(&job->model, trainer->train, data->train_images,
                            data->train_labels, why);
    if (!status && trainer->test)
        status = mlp_check_data(&job->model, trainer->test, data->test_images,
                                data->test_labels, why);
    return status;
}

static enum status open_layout(struct trainer *trainer, struct failure *why) {
    struct parameter parameters[2 * JOB_MAX_LAYERS];
    uint32_t count = mlp_parameters(&trainer->settings.job->model, parameters);
    return layout_build(&trainer->layout, parameters, count, why);
}

static void declare(struct trainer *trainer) {
    struct trainer_report model_spec = {
        .event = TRAINER_DECLARED,
        .train_samples = trainer->train->count,
        .test_samples = trainer->test ? trainer->test->count : 0,
    };
    trainer_device_declare(trainer, &model_spec);
    event_queue_push(&trainer->event_queue, &model_spec);
}

/* Devices are reported first: other trainers wait for the assignment, none for
 * the data. */
enum status trainer_prepare(struct trainer *trainer, struct failure *why) {
    trainer_device_report(trainer);
    enum status status = load_data(trainer, why);
    if (!status)
        status = open_layout(trainer, why);
    if (!status)
        status = trainer_device_find(trainer, why);
    if (!status && !trainer_is_cancelled(trainer))
        declare(trainer);
    return status;
}
