/* SPDX-License-Identifier: Apache-2.0 */
#include "commands/verbs.h"

#include "commands/process_settings.h"
#include "core/base/collective_head.h"
#include "core/base/machine.h"
#include "core/base/plugin.h"
#include "core/base/version.h"
#include "worker/ops/device.h"

#include <archive.h>
#include <dnnl.h>
#include <google/protobuf-c/protobuf-c.h>
#include <isa-l.h>
#include <jansson.h>
#include <limits.h>
#include <lmdb.h>
#include <microhttpd.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>
#include <zlib.h>
#include <zmq.h>

static json_t *describe_cpu(const struct rule_loops *loops) {
    struct machine machine;
    machine_describe(&machine);
    return json_pack("{s:s, s:b, s:s, s:i, s:s}", "name", "cpu", "available", 1,
                     "processor", machine.processor, "cores",
                     (int)machine.cores, "update_rules",
                     rule_variant_name(loops));
}

static json_t *describe_plugin(const char *name, const char *symbol,
                               uint32_t abi) {
    char path[PATH_MAX + 64];
    const void *table;
    struct failure why;
    plugin_path(name, path, sizeof path);
    if (plugin_find(&table, name, symbol, abi, &why))
        return json_pack("{s:s, s:b, s:s}", "name", name, "available", 0,
                         "reason", why.text);
    const struct plugin_head *head = table;
    return json_pack("{s:s, s:b, s:s, s:s}", "name", name, "available", 1,
                     "plugin", path, "version", head->version);
}

static json_t *info_command_describe_device(const struct device_head *head,
                                            uint32_t index) {
    struct device_description about;
    struct failure why;
    char name[64], capability[32];
    snprintf(name, sizeof name, "%s %u", head->name, index);
    if (head->describe(index, &about, &why))
        return json_pack("{s:s, s:b, s:s}", "name", name, "available", 0,
                         "reason", why.text);
    snprintf(capability, sizeof capability, "%u.%u", about.major, about.minor);
    json_t *device =
        json_pack("{s:s, s:b, s:s, s:s, s:I, s:I}", "name", name, "available",
                  about.usable, "processor", about.name, "compute_capability",
                  capability, "memory_bytes", (json_int_t)about.total,
                  "memory_free_bytes", (json_int_t)about.free);
    if (!about.usable)
        json_object_set_new(device, "reason", json_string(about.reason));
    return device;
}

/* The CPU, the plugin, and each of its devices. */
static json_t *describe_devices(const struct rule_loops *loops) {
    json_t *devices =
        json_pack("[o, o]", describe_cpu(loops),
                  describe_plugin("cuda", DEVICE_SYMBOL, DEVICE_ABI));
    const void *table;
    if (plugin_find(&table, "cuda", DEVICE_SYMBOL, DEVICE_ABI, NULL))
        return devices;
    const struct device_head *head = table;
    for (uint32_t i = 0; i < head->count(); i++)
        json_array_append_new(devices, info_command_describe_device(head, i));
    return devices;
}

static json_t *version_string(int major, int minor, int patch) {
    char text[64];
    snprintf(text, sizeof text, "%d.%d.%d", major, minor, patch);
    return json_string(text);
}

/* A version packed into one number, each part below POWER. */
static json_t *packed_version(int version_number, int power) {
    return version_string(version_number / power / power,
                          version_number / power % power,
                          version_number % power);
}

/* Versions of the libraries at run time; ISA-L has no such call, so its version
 * at build time. */
static json_t *describe_libraries(void) {
    json_t *all = json_object();
    int major, minor, patch;
    const dnnl_version_t *dnnl = dnnl_version();
    zmq_version(&major, &minor, &patch);
    json_object_set_new(all, "libzmq", version_string(major, minor, patch));
    json_object_set_new(all, "protobuf-c", json_string(protobuf_c_version()));
    mdb_version(&major, &minor, &patch);
    json_object_set_new(all, "lmdb", version_string(major, minor, patch));
    json_object_set_new(all, "jansson", json_string(jansson_version_str()));
    json_object_set_new(all, "onednn",
                        version_string(dnnl->major, dnnl->minor, dnnl->patch));
    json_object_set_new(all, "zlib", json_string(zlibVersion()));
    json_object_set_new(all, "xxhash",
                        packed_version((int)XXH_versionNumber(), 100));
    json_object_set_new(all, "libarchive",
                        packed_version(archive_version_number(), 1000));
    json_object_set_new(all, "isa-l",
                        version_string(ISAL_MAJOR_VERSION, ISAL_MINOR_VERSION,
                                       ISAL_PATCH_VERSION));
    json_object_set_new(all, "libmicrohttpd", json_string(MHD_get_version()));
    json_object_set_new(all, "libsodium", json_string(sodium_version_string()));
    return all;
}

static json_t *info_command_describe(const struct rule_loops *loops) {
    return json_pack("{s:s, s:s, s:o, s:[o, o], s:o}", "version", VERSION_TEXT,
                     "commit", version_commit, "devices",
                     describe_devices(loops), "collectives",
                     describe_plugin("gloo", COLLECTIVE_SYMBOL, COLLECTIVE_ABI),
                     describe_plugin("nccl", COLLECTIVE_SYMBOL, COLLECTIVE_ABI),
                     "libraries", describe_libraries());
}

static const char *text_of(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

static double gib_of(const json_t *object, const char *key) {
    json_int_t bytes = json_integer_value(json_object_get(object, key));
    return (double)bytes / (1 << 30);
}

static void print_device(const json_t *device, FILE *to) {
    const char *reason = text_of(device, "reason");
    fprintf(to, "%s, compute capability %s, %.1f of %.1f GiB free%s%s\n",
            text_of(device, "processor"), text_of(device, "compute_capability"),
            gib_of(device, "memory_free_bytes"), gib_of(device, "memory_bytes"),
            *reason ? "; " : "", reason);
}

static void print_components(const char *title, const json_t *parts, FILE *to) {
    size_t i;
    json_t *part;
    json_array_foreach(parts, i, part) {
        fprintf(to, "%-12s %-12s ", i ? "" : title, text_of(part, "name"));
        if (json_object_get(part, "cores"))
            fprintf(to,
                    "%s, %" JSON_INTEGER_FORMAT " cores, update rules by "
                    "%s\n",
                    text_of(part, "processor"),
                    json_integer_value(json_object_get(part, "cores")),
                    text_of(part, "update_rules"));
        else if (json_object_get(part, "compute_capability"))
            print_device(part, to);
        else
            fprintf(to, "%s%s%s%s\n", text_of(part, "version"),
                    json_object_get(part, "plugin") ? ", " : "",
                    text_of(part, "plugin"), text_of(part, "reason"));
    }
}

static void info_command_print_lines(const json_t *info, FILE *to) {
    const char *name, *title = "libraries";
    json_t *found;
    fprintf(to, "capstan %s (commit %s)\n", text_of(info, "version"),
            text_of(info, "commit"));
    print_components("devices", json_object_get(info, "devices"), to);
    print_components("collectives", json_object_get(info, "collectives"), to);
    json_object_foreach(json_object_get(info, "libraries"), name, found) {
        fprintf(to, "%-12s %-12s %s\n", title, name, json_string_value(found));
        title = "";
    }
}

void info_command_print(FILE *to, bool json, const struct rule_loops *loops) {
    json_t *info = info_command_describe(loops);
    if (json) {
        json_dumpf(info, to, JSON_COMPACT);
        fputc('\n', to);
    } else {
        info_command_print_lines(info, to);
    }
    json_decref(info);
}

enum status info_command(const struct options *options, struct failure *why) {
    struct process_settings settings;
    enum status status = process_settings_read(&settings, options, why);
    if (!status)
        info_command_print(stdout, options->json, settings.loops);
    return status;
}
