/* SPDX-License-Identifier: Apache-2.0 */
/* Users' files are not trusted: every entry of a header is checked when a file
 * is opened, so that reading a tensor only compares it with the model. A
 * written file appears whole or not at all (atomic_file.h); at most one tensor
 * is in memory. */
#include "core/store/tensor_file.h"

#include "core/store/atomic_file.h"
#include "core/store/fs_info.h"
#include "core/store/npz.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* safetensors: the header's length in 8 bytes, little-endian, the header, a
 * JSON object, then the tensors; the format allows 100 MB of header. */
enum { LENGTH_BYTES = 8, MAX_HEADER_BYTES = 100000000 };

struct tensor_file {
    int fd;
    json_t *header;
    uint64_t data, data_bytes; /* offset of the tensors, and their bytes */
    char path[PATH_MAX];
};

enum status tensor_format_of(const char *path, enum tensor_format *format,
                             struct failure *why) {
    const char *ending = strrchr(path, '.');
    if (ending && strcmp(ending, ".safetensors") == 0)
        *format = TENSOR_SAFETENSORS;
    else if (ending && strcmp(ending, ".npz") == 0)
        *format = TENSOR_NPZ;
    else
        return status_fail(why, FAILURE_WEIGHTS_INVALID,
                           "%s: the name of a file of weights ends in "
                           ".safetensors or .npz",
                           path);
    return STATUS_OK;
}

static json_t *header_entry(const struct parameter *tensor, uint64_t begin) {
    json_t *shape = json_array();
    for (uint32_t d = 0; d < tensor->num_dims; d++)
        json_array_append_new(shape, json_integer(tensor->dims[d]));
    uint64_t end = begin + tensor->elements * sizeof(float);
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", "F32", "shape", shape,
                     "data_offsets", (json_int_t)begin, (json_int_t)end);
}

/* The header, padded so that the tensors after it are aligned to 8 bytes; the
 * caller frees it. NULL if memory is short. */
static char *tensor_file_make_header(const struct parameter *tensors,
                                     uint32_t count, size_t *length) {
    json_t *root = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
    uint64_t begin = 0;
    bool whole = root != NULL;
    for (uint32_t t = 0; t < count && whole; t++) {
        whole = !json_object_set_new(root, tensors[t].name,
                                     header_entry(&tensors[t], begin));
        begin += tensors[t].elements * sizeof(float);
    }
    char *text = whole ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    size_t used = text ? strlen(text) : 0;
    *length = (used + 7) / 8 * 8;
    char *header = text ? malloc(*length) : NULL;
    if (header) {
        memset(header, ' ', *length);
        memcpy(header, text, used);
    }
    free(text);
    return header;
}

static enum status safetensors_write(struct atomic_file *file,
                                     const struct tensor_source *source,
                                     float *floats, struct failure *why) {
    size_t length;
    char *header =
        tensor_file_make_header(source->tensors, source->count, &length);
    if (!header)
        return status_errno(why, FAILURE_NO_MEMORY, ENOMEM, "%s", file->path);
    unsigned char prefix[LENGTH_BYTES];
    for (unsigned i = 0; i < LENGTH_BYTES; i++)
        prefix[i] = (unsigned char)((uint64_t)length >> (8 * i));
    enum status status = atomic_file_write(file, prefix, LENGTH_BYTES, why);
    if (!status)
        status = atomic_file_write(file, header, length, why);
    free(header);
    for (uint32_t t = 0; t < source->count && !status; t++) {
        status = source->fetch(source->context, t, floats, why);
        if (!status)
            status = atomic_file_write(
                file, floats, source->tensors[t].elements * sizeof *floats,
                why);
    }
    return status;
}

static enum status append_tensor(struct npz *npz,
                                 const struct parameter *tensor,
                                 const float *floats, struct failure *why) {
    struct npz_array array = {.name = tensor->name,
                              .descr = "<f4",
                              .num_dims = tensor->num_dims,
                              .bytes = tensor->elements * sizeof *floats};
    for (uint32_t d = 0; d < tensor->num_dims; d++)
        array.shape[d] = tensor->dims[d];
    enum status status = npz_begin(npz, &array, why);
    return status ? status : npz_append(npz, floats, array.bytes, why);
}

/* Appends the archive of SOURCE to FILE. FLOATS must hold the largest tensor.
 */
static enum status tensor_file_write_npz(struct atomic_file *file,
                                         const struct tensor_source *source,
                                         float *floats, struct failure *why) {
    struct npz *npz;
    enum status status = npz_open(&npz, file, why);
    for (uint32_t t = 0; t < source->count && !status; t++) {
        status = source->fetch(source->context, t, floats, why);
        if (!status)
            status = append_tensor(npz, &source->tensors[t], floats, why);
    }
    if (!status)
        status = npz_finish(npz, why);
    npz_close(&npz);
    return status;
}

static enum status tensor_file_write_all(struct atomic_file *file,
                                         enum tensor_format format,
                                         const struct tensor_source *source,
                                         struct failure *why) {
    uint64_t largest = 1;
    for (uint32_t t = 0; t < source->count; t++)
        if (source->tensors[t].elements > largest)
            largest = source->tensors[t].elements;
    float *floats = malloc(largest * sizeof *floats);
    if (!floats)
        return status_errno(why, FAILURE_NO_MEMORY, ENOMEM,
                            "%s: a tensor of %" PRIu64 " elements", file->path,
                            largest);
    enum status status = format == TENSOR_NPZ
                             ? tensor_file_write_npz(file, source, floats, why)
                             : safetensors_write(file, source, floats, why);
    free(floats);
    return status;
}

enum status tensor_file_write(const char *path, enum tensor_format format,
                              const struct tensor_source *source,
                              struct failure *why) {
    struct atomic_file file;
    char folder[PATH_MAX];
    uint64_t bytes = 0;
    for (uint32_t t = 0; t < source->count; t++)
        bytes += source->tensors[t].elements * sizeof(float);
    enum status status =
        fs_info_parent_folder(path, folder, sizeof folder, why);
    if (!status)
        status = fs_info_check_space(folder, path, bytes, why);
    if (!status)
        status = atomic_file_create(&file, path, bytes, why);
    if (status)
        return status;
    return atomic_file_finish(
        &file, tensor_file_write_all(&file, format, source, why), why);
}

static enum status tensor_file_report_invalid(const struct tensor_file *file,
                                              const char *reason,
                                              struct failure *why) {
    return status_fail(why, FAILURE_WEIGHTS_INVALID,
                       "%s is not a valid safetensors file: %s", file->path,
                       reason);
}

/* Reads BYTES from offset AT. */
static enum status read_at(const struct tensor_file *file, uint64_t at,
                           void *bytes, size_t size, struct failure *why) {
    char *to = bytes;
    while (size) {
        ssize_t got = pread(file->fd, to, size, (off_t)at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return status_errno(why, FAILURE_FILE_UNREADABLE, errno,
                                "cannot read %s", file->path);
        if (got == 0)
            return tensor_file_report_invalid(file, "it ends too early", why);
        to += got;
        at += (uint64_t)got;
        size -= (size_t)got;
    }
    return STATUS_OK;
}

/* PREFIX, which has to be the header's length, may be a compressor's magic. */
static enum status report_header(const struct tensor_file *file,
                                 const unsigned char prefix[LENGTH_BYTES],
                                 const char *reason, struct failure *why) {
    if (!memcmp(prefix, "\x1f\x8b", 2) ||
        !memcmp(prefix, "\x28\xb5\x2f\xfd", 4))
        reason = "it is packed by gzip or Zstandard; unpack it first";
    return tensor_file_report_invalid(file, reason, why);
}

static enum status tensor_file_read_header(struct tensor_file *file,
                                           uint64_t size, struct failure *why) {
    unsigned char prefix[LENGTH_BYTES];
    uint64_t length = 0;
    enum status status = read_at(file, 0, prefix, sizeof prefix, why);
    if (status)
        return status;
    for (unsigned i = 0; i < LENGTH_BYTES; i++)
        length |= (uint64_t)prefix[i] << (8 * i);
    if (length > MAX_HEADER_BYTES || length > size - LENGTH_BYTES)
        return report_header(
            file, prefix, "its header is longer than the file or 100 MB", why);
    char *text = malloc(length + 1);
    if (!text)
        return status_errno(why, FAILURE_NO_MEMORY, ENOMEM, "%s", file->path);
    status = read_at(file, LENGTH_BYTES, text, length, why);
    if (!status)
        file->header = json_loadb(text, length, JSON_REJECT_DUPLICATES, NULL);
    free(text);
    if (!status && !json_is_object(file->header))
        status =
            report_header(file, prefix, "its header is not a JSON object", why);
    file->data = LENGTH_BYTES + length;
    file->data_bytes = size - file->data;
    return status;
}

/* The product of SHAPE; false if it is not a shape or too large. */
static bool shape_elements(const json_t *shape, uint64_t *elements) {
    json_t *dim;
    size_t d;
    *elements = 1;
    json_array_foreach(shape, d, dim) {
        json_int_t number = json_integer_value(dim);
        if (!json_is_integer(dim) || number < 0 ||
            __builtin_mul_overflow(*elements, (uint64_t)number, elements))
            return false;
    }
    return json_is_array(shape);
}

static enum status check_entry(const struct tensor_file *file,
                               const json_t *entry, struct failure *why) {
    const char *type = json_string_value(json_object_get(entry, "dtype"));
    const json_t *offsets = json_object_get(entry, "data_offsets");
    const json_t *begin = json_array_get(offsets, 0);
    const json_t *end = json_array_get(offsets, 1);
    json_int_t from = json_integer_value(begin), to = json_integer_value(end);
    uint64_t elements, bytes;
    if (!type || !shape_elements(json_object_get(entry, "shape"), &elements))
        return tensor_file_report_invalid(
            file, "a tensor has no dtype or no shape", why);
    if (json_array_size(offsets) != 2 || !json_is_integer(begin) ||
        !json_is_integer(end) || from < 0 || to < from ||
        (uint64_t)to > file->data_bytes)
        return tensor_file_report_invalid(
            file, "a tensor lies outside the file", why);
    if (strcmp(type, "F32") == 0 &&
        (__builtin_mul_overflow(elements, sizeof(float), &bytes) ||
         bytes != (uint64_t)(to - from)))
        return tensor_file_report_invalid(
            file, "a tensor's bytes do not match its shape", why);
    return STATUS_OK;
}

static enum status check_header(const struct tensor_file *file,
                                struct failure *why) {
    const char *name;
    json_t *entry;
    json_object_foreach(file->header, name, entry) {
        if (strcmp(name, "__metadata__") == 0)
            continue;
        enum status status = check_entry(file, entry, why);
        if (status)
            return status;
    }
    return STATUS_OK;
}

static enum status tensor_file_open_checked(struct tensor_file *file,
                                            const char *path,
                                            struct failure *why) {
    struct stat st;
    if (strlen(path) >= sizeof file->path)
        return status_errno(why, FAILURE_WEIGHTS_UNREADABLE, ENAMETOOLONG, "%s",
                            path);
    memcpy(file->path, path, strlen(path) + 1);
    /* Not blocking: a pipe of that name must not block the process. */
    file->fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (file->fd < 0)
        return status_errno(why, FAILURE_WEIGHTS_UNREADABLE, errno,
                            "cannot open %s", path);
    if (fstat(file->fd, &st) || !S_ISREG(st.st_mode))
        return status_fail(why, FAILURE_WEIGHTS_UNREADABLE, "%s is not a file",
                           path);
    if (st.st_size < LENGTH_BYTES)
        return tensor_file_report_invalid(file, "it has less than 8 bytes",
                                          why);
    enum status status =
        tensor_file_read_header(file, (uint64_t)st.st_size, why);
    return status ? status : check_header(file, why);
}

enum status tensor_file_open(struct tensor_file **out, const char *path,
                             struct failure *why) {
    *out = calloc(1, sizeof **out);
    if (!*out)
        return status_errno(why, FAILURE_NO_MEMORY, ENOMEM, "%s", path);
    (*out)->fd = -1;
    enum status status = tensor_file_open_checked(*out, path, why);
    if (status)
        tensor_file_close(out);
    return status;
}

void tensor_file_close(struct tensor_file **file_in) {
    struct tensor_file *file = *file_in;
    if (!file)
        return;
    if (file->fd >= 0)
        close(file->fd);
    json_decref(file->header);
    free(file);
    *file_in = NULL;
}

static bool same_shape(const json_t *shape, const struct parameter *tensor) {
    if (json_array_size(shape) != tensor->num_dims)
        return false;
    for (uint32_t d = 0; d < tensor->num_dims; d++)
        if (json_integer_value(json_array_get(shape, d)) != tensor->dims[d])
            return false;
    return true;
}

static enum status shape_differs(const struct tensor_file *file,
                                 const struct parameter *tensor,
                                 const json_t *shape, struct failure *why) {
    char *found = json_dumps(shape, JSON_COMPACT), wanted[64] = "";
    size_t used = 0;
    for (uint32_t d = 0; d < tensor->num_dims; d++)
        used += (size_t)snprintf(wanted + used, sizeof wanted - used, "%s%u",
                                 d ? "," : "", tensor->dims[d]);
    enum status status =
        status_fail(why, FAILURE_WEIGHTS_MISMATCH,
                    "%s: tensor \"%s\" has shape %s, the model [%s]",
                    file->path, tensor->name, found ? found : "?", wanted);
    free(found);
    return status;
}

/* The names that the file has instead tell what the model's are to be. */
static enum status tensor_missing(const struct tensor_file *file,
                                  const char *name, struct failure *why) {
    enum { SHOWN = 8 };
    struct tensor_info infos[SHOWN];
    size_t count = tensor_file_list(file, infos, SHOWN), used = 0;
    char found[640] = "", more[32] = "";
    for (size_t i = 0; i < count && i < SHOWN && used < sizeof found; i++)
        used += (size_t)snprintf(found + used, sizeof found - used,
                                 "%s\"%.60s\"", i ? ", " : ": ", infos[i].name);
    if (count > SHOWN)
        snprintf(more, sizeof more, " and %zu more", count - SHOWN);
    return status_fail(why, FAILURE_WEIGHTS_MISMATCH,
                       "%s has no tensor \"%s\"; it has %zu%s%s. Save it with "
                       "the model's names, which an export has",
                       file->path, name, count, found, more);
}

/* The entry of the tensor NAME, which may have it by torch.compile's. */
static const json_t *find_tensor_entry(const struct tensor_file *file,
                                       const char *name) {
    json_t *entry = json_object_get(file->header, name);
    const char *other;
    char plain[LAYOUT_MAX_NAME];
    if (entry)
        return entry;
    json_object_foreach(file->header, other, entry) {
        if (strlen(other) >= sizeof plain)
            continue;
        strcpy(plain, other);
        layout_plain_name(plain);
        if (strcmp(plain, name) == 0)
            return entry;
    }
    return NULL;
}

enum status tensor_file_read(struct tensor_file *file,
                             const struct parameter *tensor, float *floats,
                             struct failure *why) {
    const json_t *entry = find_tensor_entry(file, tensor->name);
    const json_t *shape = json_object_get(entry, "shape");
    const char *type = json_string_value(json_object_get(entry, "dtype"));
    if (!entry)
        return tensor_missing(file, tensor->name, why);
    if (!type || strcmp(type, "F32") != 0)
        return status_fail(why, FAILURE_WEIGHTS_INVALID,
                           "%s: tensor \"%s\" is %s; only F32 is read",
                           file->path, tensor->name, type ? type : "no tensor");
    if (!same_shape(shape, tensor))
        return shape_differs(file, tensor, shape, why);
    const json_t *offsets = json_object_get(entry, "data_offsets");
    uint64_t begin = (uint64_t)json_integer_value(json_array_get(offsets, 0));
    return read_at(file, file->data + begin, floats,
                   tensor->elements * sizeof *floats, why);
}

size_t tensor_file_list(const struct tensor_file *file,
                        struct tensor_info *infos, size_t most) {
    const char *name;
    json_t *entry;
    size_t count = 0;
    json_object_foreach(file->header, name, entry) {
        const json_t *offsets = json_object_get(entry, "data_offsets");
        json_int_t begin = json_integer_value(json_array_get(offsets, 0));
        json_int_t end = json_integer_value(json_array_get(offsets, 1));
        if (strcmp(name, "__metadata__") == 0)
            continue;
        if (count < most)
            infos[count] = (struct tensor_info){
                name, json_string_value(json_object_get(entry, "dtype")),
                json_object_get(entry, "shape"), (uint64_t)begin,
                (uint64_t)(end - begin)};
        count++;
    }
    return count;
}

enum status tensor_file_read_bytes(const struct tensor_file *file,
                                   uint64_t begin, void *bytes, size_t size,
                                   struct failure *why) {
    return read_at(file, file->data + begin, bytes, size, why);
}
