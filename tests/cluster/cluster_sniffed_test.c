/* SPDX-License-Identifier: Apache-2.0 */
/* What somebody learns of a run who reads all packets between its processes:
 * without a secret all of it, with one neither weights nor gradients, paths,
 * names of hosts or the run's number. */
#define STATE struct cluster_run *run

#include "tests/cluster/cluster_fixture.h"
#include "tests/lib/skip.h"
#include "tests/lib/test.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

enum { CLASSES = 10, BUFFER = 64 << 20, PACKET = 1 << 17, PIECE = 32 };
#define HOST "sniffed-host"

FIXTURE(cluster_run_setup, cluster_run_teardown);

/* A socket that gets all packets of a new network namespace, which the
 * processes of RUN get from now on, on a host of that name. */
static int open_sniffer(struct cluster_run *run) {
    struct ifreq loopback = {.ifr_name = "lo", .ifr_flags = IFF_UP};
    int own = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC), size = BUFFER;
    if (geteuid() || unshare(CLONE_NEWNET | CLONE_NEWUTS))
        skip_test("only root can make namespaces");
    assert_return_code(sethostname(HOST, strlen(HOST)), errno);
    run->network = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    int sniffer = socket(AF_PACKET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK,
                         htons(ETH_P_ALL));
    int up = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    assert_return_code(ioctl(up, SIOCSIFFLAGS, &loopback), errno);
    assert_return_code(
        setsockopt(sniffer, SOL_SOCKET, SO_RCVBUFFORCE, &size, sizeof size),
        errno);
    assert_return_code(setns(own, CLONE_NEWNET), errno);
    close(up);
    close(own);
    return sniffer;
}

/* All that SNIFFER has got; the caller frees it. */
static char *read_packets(int sniffer, size_t *size) {
    struct tpacket_stats lost;
    socklen_t lost_size = sizeof lost;
    char *all = malloc(BUFFER);
    ssize_t got;
    assert_non_null(all);
    *size = 0;
    while (*size + PACKET <= BUFFER &&
           (got = recv(sniffer, all + *size, PACKET, 0)) > 0)
        *size += (size_t)got;
    assert_return_code(
        getsockopt(sniffer, SOL_PACKET, PACKET_STATISTICS, &lost, &lost_size),
        errno);
    assert_int_equal(lost.tp_drops, 0);
    close(sniffer);
    return all;
}

/* PIECE bytes of the exported tensor of NUM_DIMENSIONS, its first of CLASSES.
 */
static void read_tensor(struct cluster_run *run, size_t num_dimensions,
                        unsigned char piece[PIECE]) {
    char header[4096];
    uint64_t length, start = 0;
    const char *name;
    json_t *tensor;
    FILE *file = fopen(cluster_run_path(run, "weights.safetensors"), "r");
    assert_non_null(file);
    assert_int_equal(fread(&length, 1, sizeof length, file), sizeof length);
    assert_true(length < sizeof header);
    assert_int_equal(fread(header, 1, length, file), length);
    json_t *all = json_loadb(header, length, 0, NULL);
    json_object_foreach(all, name, tensor) {
        json_t *shape = json_object_get(tensor, "shape");
        if (json_array_size(shape) == num_dimensions &&
            json_integer_value(json_array_get(shape, 0)) == CLASSES)
            start = (uint64_t)json_integer_value(json_array_get(
                        json_object_get(tensor, "data_offsets"), 0)) +
                    sizeof length + length;
    }
    json_decref(all);
    assert_true(start);
    assert_int_equal(fseek(file, (long)start, SEEK_SET), 0);
    assert_int_equal(fread(piece, 1, PIECE, file), PIECE);
    fclose(file);
}

/* A bias begins at zero with that initializer: after one step at rate 1 it is
 * its negated gradient.
 */
static void negate(unsigned char piece[PIECE]) {
    for (int i = 3; i < PIECE; i += 4)
        piece[i] ^= 0x80;
}

static uint64_t run_number(const struct cluster_process *chief) {
    const char *at = strstr(cluster_run_errors(chief), ", run ");
    assert_non_null(at);
    return strtoull(at + strlen(", run "), NULL, 16);
}

/* A step by one ps and one worker; each thing is among the packets, or not. */
static void expect_in_packets(struct cluster_run *run, const char *secret,
                              bool expected) {
    const char *options[] = {"--secret-file", secret, "job.json", NULL};
    const char *const *leads = secret ? options : WORDS("job.json");
    const char *const *follows = secret ? WORDS("--secret-file", secret) : NULL;
    unsigned char weights[PIECE], gradient[PIECE];
    size_t size;
    int sniffer = open_sniffer(run);
    struct cluster_process *chief = cluster_run_task(run, "chief", 0, leads),
                           *ps = cluster_run_task(run, "ps", 0, follows),
                           *worker =
                               cluster_run_task(run, "worker", 0, follows);
    cluster_run_expect_soon(chief, 0);
    cluster_run_expect_soon(ps, 0);
    cluster_run_expect_soon(worker, 0);
    char *packets = read_packets(sniffer, &size);
    uint64_t number = run_number(chief);
    read_tensor(run, 2, weights);
    read_tensor(run, 1, gradient);
    negate(gradient);
    const struct {
        const char *name;
        const void *bytes;
        size_t size;
    } things[] = {{"a weight", weights, PIECE},
                  {"a gradient", gradient, PIECE},
                  {"a path", run->folder, strlen(run->folder)},
                  {"the host's name", HOST, strlen(HOST)},
                  {"the run's number", &number, sizeof number}};
    for (size_t i = 0; i < sizeof things / sizeof *things; i++)
        if (expected !=
            (memmem(packets, size, things[i].bytes, things[i].size) != NULL))
            fail_msg("%s is %s among %zu bytes", things[i].name,
                     expected ? "not" : "in the clear", size);
    free(packets);
}

TEST(a_sniffed_run_with_a_secret_tells_nothing_of_what_it_sends) {
    cluster_fixture_tool(run, 0, WORDS("keygen", "secret"));
    setenv("CAPSTAN_LANE", "tcp", 1);
    cluster_run_job(run,
                    textf("{\"steps\": 1, \"chief\": \"coordinate\","
                          " \"model\": {\"init\": \"glorot_uniform\"},"
                          " \"optimizer\": {\"params\": {\"lr\": 1}},"
                          " \"checkpoint\": {\"dir\": \"%s/checkpoint\","
                          " \"resume\": \"never\"},"
                          " \"export\": {\"path\": \"weights.safetensors\"}}",
                          run->folder));
    cluster_run_describe(run, 1, 1, 1);
    expect_in_packets(run, NULL, true);
    expect_in_packets(run, "secret", false);
    unsetenv("CAPSTAN_LANE");
}
