/* SPDX-License-Identifier: Apache-2.0 */
/* Hosts for the processes of a test: network namespaces
 * (tests/cluster/net/hosts.sh), which need root, and a link each that can be
 * cut or made slower. */
#ifndef CAPSTAN_NET_HOSTS_H
#define CAPSTAN_NET_HOSTS_H

#include "tests/cluster/cluster_run.h"

#include <stdbool.h>
#include <stdio.h>
#include <sys/types.h>

enum { NET_HOSTS = 4, NET_HOSTS_PS = 2 };

struct net_hosts {
    struct cluster_run *run;
    pid_t holder_pid;
    int hold; /* closed: the hosts go */
    FILE *said;
    char name[64], skipped[64]; /* skipped: why there are none, or "" */
    int hosts[NET_HOSTS];       /* namespaces: 10.0.0.1, ... */
};

/* For cmocka: *STATE is a struct net_hosts whose links pass 100 Mbit/s each
 * way. */
int net_hosts_setup(void **state);
int net_hosts_teardown(void **state);

/* Skips the test, with a word, where there can be no hosts. */
void net_hosts_require(const struct net_hosts *net);

/* HOST's port of the switch goes DOWN, or up. */
void net_hosts_set_link_down(const struct net_hosts *net, int host, bool down);

/* A firewall on host AT that handles packets of the hosts FROM by VERDICT, as
 * nft writes it ("drop", "reject with tcp reset"), until net_hosts_unblock.
 * Skips the test, with a word, where there is no nft. */
void net_hosts_block(const struct net_hosts *net, int at, int from,
                     const char *verdict);
void net_hosts_unblock(const struct net_hosts *net, int at);

/* HOST's link passes RATE each way from now on, as tc writes it. */
void net_hosts_set_rate(const struct net_hosts *net, int host,
                        const char *rate);

/* Starts task INDEX of TYPE of the described cluster on HOST. */
struct cluster_process *net_hosts_task(struct net_hosts *net, int host,
                                       const char *type, unsigned index,
                                       const char *const *arguments);

/* A cluster of ps 0, ps 1, worker 0, which leads, and worker 1, each on its
 * host: describes it, and starts it too; ARGUMENTS are the leader's. */
void net_hosts_describe(struct net_hosts *net);
void net_hosts_start(struct net_hosts *net,
                     struct cluster_process *tasks[NET_HOSTS],
                     const char *const *arguments);

#endif
