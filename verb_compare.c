#include "verb_compare.h"

#include "chief/prediction.h"

enum status verb_compare(const struct options *options, struct failure *why) {
    return prediction_print(stdout, &options->compare, options->json, why);
}
