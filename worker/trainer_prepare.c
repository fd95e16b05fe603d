/* What a trainer has to have before there is a plan, and what it declares of
 * it: data, the model's parameters, devices and what is free on them. No memory
 * for the model is had yet. */
#include "worker/trainer_parts.h"

#include <stdio.h>

static enum status load_data(struct trainer *trainer, struct failure *why) {
    const struct job *job = trainer->settings.job;
    const struct job_data *data = &job->data;
    const char *in = data->dir ? ", in data.dir" : "";
    enum status status = dataset_load(&trainer->train, data->train_images,
                                      data->train_labels, why);
    if (status)
        return status_context(why, "data.train%s", in);
    if (data->test_images)
        status = dataset_load(&trainer->test, data->test_images,
                              data->test_labels, why);
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

/* Where other ranks are lost the device would wait for them. */
static bool gives_up(void *context) {
    struct trainer *trainer = context;
    return trainer_is_cancelled(trainer) ||
           partner_lost(trainer->partner, NULL);
}

static enum status find_device(struct trainer *trainer, struct failure *why) {
    const struct job *job = trainer->settings.job;
    struct device_wish wish = {
        .kind = job->device,
        .threads = job->threads,
        .local_rank = trainer->settings.local_rank,
        .local_trainers = trainer->settings.local_trainers,
        .cuda = trainer->settings.cuda,
        .timeout = job->timeouts.step,
        .given_up = gives_up,
        .context = trainer,
    };
    struct team_search search = {
        .wish = &wish,
        .alone = wish.local_trainers == 1 && wish.local_rank == 0,
        .most = job->devices,
        .nccl = trainer->settings.nccl,
        .log = trainer->settings.log,
    };
    return team_find(&trainer->team, &search, why);
}

static void declare_device(struct trainer_report *declaration,
                           const struct device *device) {
    struct trainer_device *told =
        &declaration->devices[declaration->num_devices];
    if (!device_free(device, &told->free, told->id))
        return;
    snprintf(told->name, sizeof told->name, "%s", device->name);
    declaration->num_devices++;
}

static void declare(struct trainer *trainer) {
    const struct team *team = &trainer->team;
    struct trainer_report declaration = {
        .event = TRAINER_DECLARES,
        .train_samples = trainer->train->count,
        .test_samples = trainer->test ? trainer->test->count : 0,
        .replicas = team->count,
        .adds_on_host = team_adds_on_host(team),
    };
    for (uint32_t i = 0; i < team->count; i++)
        declare_device(&declaration, &team->members[i].replica.engine.device);
    reports_put(&trainer->reports, &declaration);
}

enum status trainer_prepare(struct trainer *trainer, struct failure *why) {
    enum status status = load_data(trainer, why);
    if (!status)
        status = open_layout(trainer, why);
    if (!status)
        status = find_device(trainer, why);
    if (!status)
        declare(trainer);
    return status;
}
