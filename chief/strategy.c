#include "chief/strategy.h"

/* With no ps listed, one trainer keeps its weights in its own process. */
enum status strategy_choose(const struct job *job,
                            const struct strategy_case *given,
                            const struct log *log, struct failure *why) {
    uint32_t trainers = given->trainers, num_ps = given->num_ps;
    enum job_strategy strategy = job->strategy;
    if (!trainers)
        return status_fail(why, STATUS_CONFIG,
                           "no trainer at all: no worker is listed and the "
                           "chief only coordinates; list a worker, set "
                           "\"workers\", or let the chief train "
                           "(\"chief\": \"train\")");
    if (strategy == JOB_PS && !num_ps && !given->alone)
        return status_fail(why, STATUS_CONFIG,
                           "strategy.type is ps, but the cluster lists no ps: "
                           "list one, or leave the strategy out");
    if (strategy == JOB_ALLREDUCE || (!num_ps && trainers > 1))
        return status_fail(
            why, STATUS_CONFIG, "%s, which this build does not have: %s",
            strategy == JOB_ALLREDUCE
                ? "strategy.type is allreduce"
                : "several trainers and no ps mean all-reduce",
            num_ps ? "set it to ps" : "list a ps in the cluster");
    if (num_ps)
        log_info(log, "parameter server: %u trainer%s, %u ps%s%s", trainers,
                 trainers == 1 ? "" : "s", num_ps,
                 strategy == JOB_PS ? "" : " (ps are listed)",
                 job->wire == JOB_BF16 ? ", bf16 on the wire" : "");
    else
        log_info(log, "one trainer and no ps: the chief keeps the weights");
    return STATUS_OK;
}
