/* SPDX-License-Identifier: Apache-2.0 */
#include "chief/compare/vm_table.h"

#include "proto/config/diagnostics.h"

#include <inttypes.h>
#include <strings.h>

/* Azure, under learn.microsoft.com/azure/virtual-machines:
 *   nda100-v4-series, ndm-a100-v4-series: "8 x 200 Gigabit HDR"
 *   ndv2-series: "100-Gigabit InfiniBand EDR"
 *   nc-a100-v4-series: network bandwidth 20,000, 40,000, 80,000 Mbps
 *   ncv3-series: devices only, no network bandwidth
 * AWS: aws.amazon.com/ec2/instance-types/p3 and .../p4.
 * Inside a host, half of what NVIDIA states for both directions together:
 * NVLink 3.0 of an A100 600 GB/s, NVLink 2.0 of a V100 300 GB/s (p3.8xlarge:
 * 200 GB/s); PCIe 4.0 x16 31.5 GB/s each way where devices are in pairs. */
static const struct vm table[] = {
    {"Standard_ND96asr_v4", "A100 40 GB", 8, 1600, 2400},
    {"Standard_ND96amsr_A100_v4", "A100 80 GB", 8, 1600, 2400},
    {"Standard_ND40rs_v2", "V100 32 GB", 8, 100, 1200},
    {"Standard_NC24ads_A100_v4", "A100 80 GB PCIe", 1, 20, 0},
    {"Standard_NC48ads_A100_v4", "A100 80 GB PCIe", 2, 40, 2400},
    {"Standard_NC96ads_A100_v4", "A100 80 GB PCIe", 4, 80, 252},
    {"Standard_NC6s_v3", "V100 16 GB", 1, 0, 0},
    {"p4d.24xlarge", "A100 40 GB", 8, 400, 2400},
    {"p3dn.24xlarge", "V100 32 GB", 8, 100, 1200},
    {"p3.16xlarge", "V100 16 GB", 8, 25, 1200},
    {"p3.8xlarge", "V100 16 GB", 4, 10, 800},
    {"p3.2xlarge", "V100 16 GB", 1, 10, 0},
};
enum { COUNT = sizeof table / sizeof *table };

const struct vm *vm_table_find(const char *name) {
    for (int i = 0; i < COUNT; i++)
        if (!strcasecmp(table[i].name, name))
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
    fprintf(out, "%-26s %-16s %7s %12s %12s\n", "machine", "device", "devices",
            "link Gbit/s", "inner Gbit/s");
    for (int i = 0; i < COUNT; i++) {
        fprintf(out, "%-26s %-16s %7" PRIu32, table[i].name, table[i].device,
                table[i].devices);
        vm_table_print_rate(out, 12, table[i].link_gbits);
        vm_table_print_rate(out, 12, table[i].inner_gbits);
        fprintf(out, "\n");
    }
}

const char *vm_table_nearest(const char *name) {
    const struct vm *best = table;
    for (int i = 1; i < COUNT; i++)
        if (diagnostics_nearest_distance(name, table[i].name) <
            diagnostics_nearest_distance(name, best->name))
            best = &table[i];
    return best->name;
}

const char *vm_table_names(void) {
    return "Standard_ND96asr_v4, Standard_ND96amsr_A100_v4, "
           "Standard_ND40rs_v2, Standard_NC24ads_A100_v4, "
           "Standard_NC48ads_A100_v4, Standard_NC96ads_A100_v4, "
           "Standard_NC6s_v3, p4d.24xlarge, p3dn.24xlarge, p3.16xlarge, "
           "p3.8xlarge, p3.2xlarge";
}
