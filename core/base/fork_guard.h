/* SPDX-License-Identifier: Apache-2.0 */
/* What a forked child of the library's caller must not keep, such as a data
 * loader's process that outlives a killed parent: the ports that this process
 * listens on, and files whose locks a child would hold. Any thread. */
#ifndef CAPSTAN_FORK_GUARD_H
#define CAPSTAN_FORK_GUARD_H

#include <stdint.h>

/* Listens on PORT; no more than 256 are remembered. */
void fork_guard_add_port(uint16_t port);
void fork_guard_remove_port(uint16_t port);

/* Holds a lock on FILE; no more than 256 are remembered. */
void fork_guard_add_file(int file);
void fork_guard_remove_file(int file);

/* From now on a child closes them: sockets that listen at those ports or were
 * accepted there, and the files. Once a process. */
void fork_guard_install(void);

/* Forks between the process that called fork_guard_install first and this one:
 * differs in a child from what its parent had. */
unsigned fork_guard_generation(void);

#endif
