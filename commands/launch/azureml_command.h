/* SPDX-License-Identifier: Apache-2.0 */
/* What each process of an Azure ML job runs, made ready for this machine. */
#ifndef CAPSTAN_AZUREML_COMMAND_H
#define CAPSTAN_AZUREML_COMMAND_H

#include "core/base/status.h"

#include <jansson.h>

struct azureml_command {
    char *text;          /* for a shell; expressions are replaced */
    char *folder;        /* where it runs, absolute: that of the code */
    json_t *environment; /* its variables: texts by name */
    json_t *outputs;     /* absolute paths of folders that it expects */
    char unused[256];    /* the file's keys that mean nothing here */
};

/* Reads the file PATH, which azureml_read has accepted: a job of CLI v2, or a
 * run configuration of SDK v1 with a command or script. In the command and the
 * variables ${{inputs.NAME}} becomes the input's value or local path, and
 * ${{outputs.NAME}} its local path, or FOLDER/outputs/FILE/NAME, with FILE that
 * of PATH without its ending, where Azure ML chooses or has the place. INPUTS,
 * of NUM_INPUTS texts NAME=VALUE, replace values and paths of the file; their
 * paths start at the current directory, the file's at its own. On STATUS_CONFIG
 * WHY lists what cannot be had here, each with the path of its key. The caller
 * frees COMMAND after STATUS_OK. */
enum status azureml_command_read(struct azureml_command *command,
                                 const char *path, const char *const *inputs,
                                 unsigned num_inputs,
                                 struct failure *why) MUST_CHECK;

/* Frees what COMMAND holds and clears it. */
void azureml_command_free(struct azureml_command *command);

#endif
