/* SPDX-License-Identifier: Apache-2.0 */
/* Where an MLflow server is, by its tracking URI. */
#ifndef CAPSTAN_MLFLOW_URI_H
#define CAPSTAN_MLFLOW_URI_H

#include <stdbool.h>
#include <stddef.h>

/* Writes the address over HTTP of the server that TEXT names, without a slash
 * at its end. False: there is none; PROBLEM says what is allowed and what to
 * do, without the value of TEXT where it has a password. */
bool mlflow_uri_read(const char *text, char *url, size_t size, char *problem,
                     size_t problem_size);

#endif
