/* `capstan compare`: parameter server and all-reduce beside each other,
 * measured here or predicted. */
#ifndef CAPSTAN_VERB_COMPARE_H
#define CAPSTAN_VERB_COMPARE_H

#include "proto/base/status.h"
#include "proto/conf/options.h"

/* Returns what the process exits with. */
enum status verb_compare(const struct options *options,
                         struct failure *why) MUST_CHECK;

#endif
