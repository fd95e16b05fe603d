/* SPDX-License-Identifier: Apache-2.0 */
#include "commands/measure/vm_table.h"

#include "core/base/diagnostics.h"

#include <inttypes.h>
#include <strings.h>

/* Azure, under learn.microsoft.com/azure/virtual-machines:
 *   nda100-v4-series, ndm-a100-v4-series: "8 x 200 Gigabit HDR"
 *   ndv2-series: "100-Gigabit InfiniBand EDR"
 *   nc-a100-v4-series: network bandwidth 20,000, 40,000, 80,000 Mbps
 *   ncv3-series: devices only, no network bandwidth; of NC24rs_v3 that it has
 *   RDMA, not how fast
 *   nc-series (retired): devices only, each half of a K80; of NC24r that it has
 *   RDMA
 *   hbv3-series, hc-series, "Backend Network": RDMA performance 200 and 100
 *   Gb/s of each size; no accelerators
 * AWS: aws.amazon.com/ec2/instance-types/p3 and .../p4.
 * Inside a host, half of what NVIDIA states for both directions together:
 * NVLink 3.0 of an A100 600 GB/s, NVLink 2.0 of a V100 300 GB/s (p3.8xlarge:
 * 200 GB/s); PCIe 4.0 x16 31.5 GB/s each way where devices are in pairs. How
 * the devices of nc-series and ncv3-series are linked is not stated: PCIe 3.0
 * x16 is assumed, 32 GB/s in NVIDIA's data sheets of the K80 and the V100. */
static const struct vm table[] = {
    {"Standard_ND96asr_v4", "ND_A100_v4", "A100 40 GB", 8, 1600, 2400},
    {"Standard_ND96amsr_A100_v4", "NDm_A100_v4", "A100 80 GB", 8, 1600, 2400},
    {"Standard_ND40rs_v2", "NDv2", "V100 32 GB", 8, 100, 1200},
    {"Standard_NC24ads_A100_v4", NULL, "A100 80 GB PCIe", 1, 20, 0},
    {"Standard_NC48ads_A100_v4", NULL, "A100 80 GB PCIe", 2, 40, 2400},
    {"Standard_NC96ads_A100_v4", NULL, "A100 80 GB PCIe", 4, 80, 252},
    {"Standard_NC6s_v3", NULL, "V100 16 GB", 1, 0, 0},
    {"Standard_NC12s_v3", NULL, "V100 16 GB", 2, 0, 128},
    {"Standard_NC24s_v3", NULL, "V100 16 GB", 4, 0, 128},
    {"Standard_NC24rs_v3", NULL, "V100 16 GB", 4, 0, 128},
    {"Standard_NC6", NULL, "K80 12 GB", 1, 0, 0},
    {"Standard_NC12", NULL, "K80 12 GB", 2, 0, 128},
    {"Standard_NC24", NULL, "K80 12 GB", 4, 0, 128},
    {"Standard_NC24r", NULL, "K80 12 GB", 4, 0, 128},
    {"Standard_HB120rs_v3", "HBv3", "120 cores", 1, 200, 0},
    {"Standard_HB120-96rs_v3", NULL, "96 cores", 1, 200, 0},
    {"Standard_HB120-64rs_v3", NULL, "64 cores", 1, 200, 0},
    {"Standard_HB120-32rs_v3", NULL, "32 cores", 1, 200, 0},
    {"Standard_HB120-16rs_v3", NULL, "16 cores", 1, 200, 0},
    {"Standard_HC44rs", "HC", "44 cores", 1, 100, 0},
    {"Standard_HC44-32rs", NULL, "32 cores", 1, 100, 0},
    {"Standard_HC44-16rs", NULL, "16 cores", 1, 100, 0},
    {"p4d.24xlarge", NULL, "A100 40 GB", 8, 400, 2400},
    {"p3dn.24xlarge", NULL, "V100 32 GB", 8, 100, 1200},
    {"p3.16xlarge", NULL, "V100 16 GB", 8, 25, 1200},
    {"p3.8xlarge", NULL, "V100 16 GB", 4, 10, 800},
    {"p3.2xlarge", NULL, "V100 16 GB", 1, 10, 0},
};
enum { COUNT = sizeof table / sizeof *table };

/* NAME without Azure's prefix of sizes. */
static const char *size_name(const char *name) {
    static const char prefix[] = "Standard_";
    size_t length = sizeof prefix - 1;
    return strncasecmp(name, prefix, length) ? name : name + length;
}

const struct vm *vm_table_find(const char *name) {
    for (int i = 0; i < COUNT; i++)
        if (!strcasecmp(size_name(table[i].name), size_name(name)) ||
            (table[i].series && !strcasecmp(table[i].series, size_name(name))))
            return &table[i];
    return NULL;
}

/* Prints in WIDTH columns; a dash if unknown. */
static void vm_table_print_rate(FILE *out, int width, double gbits) {
    if (gbits > 0)
        fprintf(out, " %*.0f", width, gbits);
    else
        fprintf(out, " %*s", width, "-");
}

void vm_table_print(FILE *out) {
    fprintf(out, "%-26s %-12s %-16s %7s %12s %12s\n", "machine", "series",
            "device", "devices", "link Gbit/s", "inner Gbit/s");
    for (int i = 0; i < COUNT; i++) {
        fprintf(out, "%-26s %-12s %-16s %7" PRIu32, table[i].name,
                table[i].series ? table[i].series : "-", table[i].device,
                table[i].devices);
        vm_table_print_rate(out, 12, table[i].link_gbits);
        vm_table_print_rate(out, 12, table[i].inner_gbits);
        fprintf(out, "\n");
    }
}

/* The distance of NAME, without the prefix, to VM's name or series. */
static unsigned row_distance(const struct vm *vm, const char *name) {
    unsigned size = diagnostics_nearest_distance(name, size_name(vm->name));
    unsigned series =
        vm->series ? diagnostics_nearest_distance(name, vm->series) : size;
    return series < size ? series : size;
}

const char *vm_table_nearest(const char *name) {
    const struct vm *best = table;
    name = size_name(name);
    for (int i = 1; i < COUNT; i++)
        if (row_distance(&table[i], name) < row_distance(best, name))
            best = &table[i];
    return best->name;
}

const char *vm_table_names(void) {
    return "ND96asr_v4 (ND_A100_v4), ND96amsr_A100_v4 (NDm_A100_v4), "
           "ND40rs_v2 (NDv2), NC24ads_A100_v4, NC48ads_A100_v4, "
           "NC96ads_A100_v4, NC6s_v3, NC12s_v3, NC24s_v3, NC24rs_v3, NC6, NC12, NC24, "
           "NC24r, HB120rs_v3 (HBv3), HC44rs (HC), p4d.24xlarge, p3dn.24xlarge, p3.16xlarge, "
           "p3.8xlarge, p3.2xlarge";
}
