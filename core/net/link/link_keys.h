/* SPDX-License-Identifier: Apache-2.0 */
/* The CURVE keys (RFC 25 and 26 of ZeroMQ) of a job's processes. All are
 * derived from the job's secret, so that who has it knows each public key
 * before the first packet, and nothing is enrolled:
 *
 *   seed = crypto_generichash(32 bytes, key = the secret,
 *              input = "capstan 1", role, index, "server" or "client"),
 *
 * each part of the input after its length in one byte, the index as decimal
 * digits; crypto_box_seed_keypair makes the pair of the seed (libsodium). A key
 * tells who a peer is: its role and index. The seed of "all", 0 and "proof" is
 * the key of connections that are not ZeroMQ's. */
#ifndef CAPSTAN_LINK_KEYS_H
#define CAPSTAN_LINK_KEYS_H

#include "core/base/status.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    LINK_KEY_BYTES = 32, /* of a key, public or secret */
    LINK_KEYS_ROLES = 4,
    LINK_KEYS_OWN = 2
};

/* A process, as its keys name it. */
struct link_party {
    const char *role; /* borrowed; NULL: none */
    uint32_t index;
};

/* Of ROLE those below CLIENTS are admitted, and this process may connect to
 * those below SERVERS. */
struct link_keys_role {
    const char *role; /* borrowed */
    uint32_t clients, servers;
};

struct link_keys_settings {
    struct link_keys_role roles[LINK_KEYS_ROLES]; /* those after the last: no
                                                     name */
    struct link_party client;                     /* who this process is, */
    struct link_party servers[LINK_KEYS_OWN];     /* and who it listens as */
};

struct link_keys;

/* Derives the keys from SECRET (SECRET_FILE_BYTES), which the caller forgets
 * then. */
enum status link_keys_open(struct link_keys **out, const unsigned char *secret,
                           const struct link_keys_settings *settings,
                           struct failure *why) MUST_CHECK;

/* Wipes and frees *KEYS (may be NULL) and clears it. */
void link_keys_close(struct link_keys **keys);

/* The key by which connections other than ZeroMQ's prove that both sides have
 * the secret (LINK_KEY_BYTES); NULL if KEYS is. A view. */
const unsigned char *link_keys_proof(const struct link_keys *keys);

/* As whom this process connects; its role is NULL if KEYS is. */
struct link_party link_keys_self(const struct link_keys *keys);

/* Whose public key is KEY? False: nobody's who is admitted. */
bool link_keys_find_client(const struct link_keys *keys,
                           const unsigned char key[LINK_KEY_BYTES],
                           struct link_party *party);

/* Makes SOCKET, not yet bound, the server OWN, of the settings' servers: who
 * connects by TCP has a key that ZAP admits (zap_handler.h). */
enum status link_keys_serve(const struct link_keys *keys, void *socket,
                            struct link_party own,
                            struct failure *why) MUST_CHECK;

/* Makes SOCKET, not yet connected, a client of SERVER. */
enum status link_keys_connect(const struct link_keys *keys, void *socket,
                              struct link_party server,
                              struct failure *why) MUST_CHECK;

/* Makes SOCKET a client of OWN, of the settings' servers, whose key nobody
 * knows. */
enum status link_keys_connect_unknown(const struct link_keys *keys,
                                      void *socket, struct link_party own,
                                      struct failure *why) MUST_CHECK;

/* Writes "ps:1", as ZAP names PARTY to the receiver of a message. */
void link_party_text(struct link_party party, char *text, size_t size);

#endif
