/* SPDX-License-Identifier: Apache-2.0 */
/* The file that makes a step folder a checkpoint:
 * DIR/step-000001500/manifest.json. It is written last (fsync, rename, fsync of
 * the folder) and removed first. That of a delta names its base, an earlier
 * checkpoint beside it, and both together are the checkpoint. */
#ifndef CAPSTAN_MANIFEST_H
#define CAPSTAN_MANIFEST_H

#include "core/base/status.h"
#include "core/store/shard_file.h"
#include "core/tensor/layout.h"
#include "core/tensor/loss_scaler.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

enum {
    MANIFEST_MAX_SLOTS = 64,
    MANIFEST_MAX_GROUPS = 256,
    MANIFEST_MAX_FILES = 1 << 16,
    MANIFEST_MAX_BYTES = 1 << 28, /* of its text */
};

/* An optimizer: its name, as in the job ("SGD"), and its state tensors. */
struct manifest_rule {
    char name[64];
    uint32_t num_slots;
    char slot_names[MANIFEST_MAX_SLOTS][32];
};

/* What the layout does not say of a table. */
struct manifest_table {
    char rule[64]; /* its optimizer, as in the job: "Ftrl" */
    uint32_t num_slots;
    struct shard_rows_count count;
};

/* A full checkpoint, as a delta names it. */
struct manifest_name {
    uint64_t step, hash; /* the XXH3-64 in its manifest */
};

struct manifest {
    uint64_t run;
    uint64_t lineage;  /* the run that was not resumed from another */
    uint64_t features; /* what the features were, a digest; 0: none */
    uint64_t step;     /* rounds (synchronous) or updates (otherwise) */
    uint64_t epoch;    /* whole epochs done; of an external model the number of
                          the epoch that rank 0 is in, */
    uint64_t epoch_step; /* and the steps done in it */
    uint64_t samples;    /* read by all trainers together */
    uint64_t seed;
    bool final;                  /* the last of the run */
    char *job;                   /* the job's text, one JSON object, or NULL */
    uint32_t num_rules;          /* 1, or as many as parameters have groups */
    struct manifest_rule *rules; /* [num_rules]; the first is the run's */
    struct layout *layout;
    uint32_t num_files;
    struct shard_info *files;
    uint32_t *block_file;          /* layout_units indexes into files */
    struct manifest_table *tables; /* [layout->num_tables] */
    uint32_t num_kept;
    struct shard_info *kept; /* what trainers keep: kept_file.h */
    struct loss_scaler
        scaler;    /* written unless it is the initial state of a fixed scale */
    bool is_delta; /* of its tables the files have what changed since */
    struct manifest_name base_name;
    struct manifest *base; /* of that name; owned. NULL: not read */
    uint64_t hash;         /* of its text; set by reading and writing it */
};

/* The optimizer of PARAMETER; view. */
const struct manifest_rule *manifest_rule(const struct manifest *manifest,
                                          uint32_t parameter);

/* Frees all but the struct itself. */
void manifest_clear(struct manifest *manifest);

/* Writes FOLDER/manifest.json durably and sets MANIFEST's hash. */
enum status manifest_write(struct manifest *manifest, const char *folder,
                           struct failure *why) MUST_CHECK;

/* Reads and checks FOLDER/manifest.json without the base of a delta. The caller
 * clears *OUT. */
enum status manifest_read_alone(struct manifest *out, const char *folder,
                                struct failure *why) MUST_CHECK;

/* Reads and checks FOLDER/manifest.json, and of a delta that of its base, in
 * the folder of its step beside FOLDER; every field is range-checked. The
 * caller clears *OUT. */
enum status manifest_read(struct manifest *out, const char *folder,
                          struct failure *why) MUST_CHECK;

/* May NAME be that of a checkpoint's file, in its folder? */
bool manifest_is_file_name(const char *name);

/* The canonical text that manifest_write writes (the caller frees it); it is
 * also sent from chief to ps. It contains its own XXH3; `job` is stored in its
 * most compact form. NULL if `job` is not a JSON object, a count is above 2^63
 * - 1, or memory is short. */
char *manifest_text(const struct manifest *manifest);

/* Reads a manifest from a text, without its base; *OUT as above. */
enum status manifest_parse(struct manifest *out, const char *text,
                           struct failure *why) MUST_CHECK;

/* Reads the base of MANIFEST, a delta without one, from TEXT: a full manifest
 * of the step that it names, with the same tables. Its hash is not compared. */
enum status manifest_parse_base(struct manifest *manifest, const char *text,
                                struct failure *why) MUST_CHECK;

/* XXH3-64 of OBJECT's compact text as 16 hex digits: the value of its key
 * "xxh3", which OBJECT does not have yet. False if memory is short. */
bool manifest_text_digest(const json_t *object, char digits[17]);

/* That digest of TEXT, one that manifest_text made. */
uint64_t manifest_text_hash(const char *text);

#endif
