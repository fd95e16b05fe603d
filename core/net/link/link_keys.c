/* SPDX-License-Identifier: Apache-2.0 */
/* Private keys are in locked memory here; libzmq copies those that it is given
 * to its own. */
#include "core/net/link/link_keys.h"

#include "core/base/secret_file.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

/* zmq.h has its name only with ZMQ_BUILD_DRAFT_API, but libzmq 4.3 its effect
 * always: without it an empty domain, or a context without a handler of ZAP,
 * admits everybody. */
enum { ZAP_ENFORCE_DOMAIN = 93 };
#define ZAP_DOMAIN "capstan"
#define LABEL "capstan 1"

_Static_assert(LINK_KEY_BYTES == crypto_box_PUBLICKEYBYTES &&
                   LINK_KEY_BYTES == crypto_box_SECRETKEYBYTES &&
                   LINK_KEY_BYTES == crypto_box_SEEDBYTES &&
                   SECRET_FILE_BYTES == crypto_generichash_KEYBYTES,
               "the keys of CURVE are those of crypto_box");

struct pair {
    unsigned char public[LINK_KEY_BYTES], private[LINK_KEY_BYTES];
};

struct public_key {
    unsigned char bytes[LINK_KEY_BYTES];
    struct link_party party;
};

/* Public keys, sorted by bytes. */
struct public_keys {
    struct public_key *all;
    uint32_t count;
};

/* In locked memory. */
struct private_keys {
    struct pair client, servers[LINK_KEYS_OWN];
    unsigned char proof[LINK_KEY_BYTES];
};

struct link_keys {
    struct link_keys_settings settings;
    struct private_keys *own;
    struct public_keys clients, servers;
};

static void add_part(crypto_generichash_state *state, const char *part) {
    unsigned char length = (unsigned char)strlen(part);
    crypto_generichash_update(state, &length, sizeof length);
    crypto_generichash_update(state, (const unsigned char *)part, length);
}

static void derive_seed(unsigned char seed[LINK_KEY_BYTES],
                        const unsigned char *secret, struct link_party party,
                        const char *side) {
    crypto_generichash_state state;
    char index[16];
    snprintf(index, sizeof index, "%u", party.index);
    crypto_generichash_init(&state, secret, SECRET_FILE_BYTES, LINK_KEY_BYTES);
    add_part(&state, LABEL);
    add_part(&state, party.role);
    add_part(&state, index);
    add_part(&state, side);
    crypto_generichash_final(&state, seed, LINK_KEY_BYTES);
    sodium_memzero(&state, sizeof state);
}

static void derive(struct pair *pair, const unsigned char *secret,
                   struct link_party party, const char *side) {
    unsigned char seed[LINK_KEY_BYTES];
    derive_seed(seed, secret, party, side);
    crypto_box_seed_keypair(pair->public, pair->private, seed);
    sodium_memzero(seed, sizeof seed);
}

static int compare_public(const void *a, const void *b) {
    return memcmp(a, b, LINK_KEY_BYTES); /* the first member of both */
}

static uint32_t num_of_role(const struct link_keys_role *role, bool servers) {
    return !role->role ? 0 : servers ? role->servers : role->clients;
}

/* False: no memory. */
static bool derive_public(struct public_keys *keys, const unsigned char *secret,
                          const struct link_keys_role *roles, bool servers) {
    uint32_t count = 0;
    struct pair pair;
    for (int r = 0; r < LINK_KEYS_ROLES; r++)
        count += num_of_role(&roles[r], servers);
    keys->all = calloc(count + 1, sizeof *keys->all);
    if (!keys->all)
        return false;
    for (int r = 0; r < LINK_KEYS_ROLES; r++)
        for (uint32_t i = 0; i < num_of_role(&roles[r], servers); i++) {
            struct public_key *key = &keys->all[keys->count++];
            key->party = (struct link_party){roles[r].role, i};
            derive(&pair, secret, key->party, servers ? "server" : "client");
            memcpy(key->bytes, pair.public, sizeof key->bytes);
        }
    sodium_memzero(&pair, sizeof pair);
    qsort(keys->all, keys->count, sizeof *keys->all, compare_public);
    return true;
}

enum status link_keys_open(struct link_keys **out, const unsigned char *secret,
                           const struct link_keys_settings *settings,
                           struct failure *why) {
    struct link_keys *keys = *out = calloc(1, sizeof *keys);
    if (keys) {
        keys->settings = *settings;
        keys->own = sodium_malloc(sizeof *keys->own);
    }
    if (!keys || !keys->own ||
        !derive_public(&keys->clients, secret, settings->roles, false) ||
        !derive_public(&keys->servers, secret, settings->roles, true)) {
        link_keys_close(out);
        return status_fail(why, FAILURE_NO_MEMORY, "no memory for keys");
    }
    derive(&keys->own->client, secret, settings->client, "client");
    for (int i = 0; i < LINK_KEYS_OWN; i++)
        if (settings->servers[i].role)
            derive(&keys->own->servers[i], secret, settings->servers[i],
                   "server");
    derive_seed(keys->own->proof, secret, (struct link_party){"all", 0},
                "proof");
    return STATUS_OK;
}

const unsigned char *link_keys_proof(const struct link_keys *keys) {
    return keys ? keys->own->proof : NULL;
}

struct link_party link_keys_self(const struct link_keys *keys) {
    return keys ? keys->settings.client : (struct link_party){0};
}

void link_keys_close(struct link_keys **where) {
    struct link_keys *keys = *where;
    *where = NULL;
    if (!keys)
        return;
    sodium_free(keys->own);
    free(keys->clients.all);
    free(keys->servers.all);
    free(keys);
}

bool link_keys_find_client(const struct link_keys *keys,
                           const unsigned char key[LINK_KEY_BYTES],
                           struct link_party *party) {
    const struct public_key *found =
        bsearch(key, keys->clients.all, keys->clients.count,
                sizeof *keys->clients.all, compare_public);
    if (found)
        *party = found->party;
    return found;
}

static bool is_party(struct link_party a, struct link_party b) {
    return a.role && b.role && !strcmp(a.role, b.role) && a.index == b.index;
}

static const struct pair *own_pair(const struct link_keys *keys,
                                   struct link_party own) {
    for (int i = 0; i < LINK_KEYS_OWN; i++)
        if (is_party(keys->settings.servers[i], own))
            return &keys->own->servers[i];
    return NULL;
}

static enum status fail_without_key(struct link_party party, const char *what,
                                    struct failure *why) {
    return status_fail(why, FAILURE_SYSTEM_REFUSED,
                       "this process has no key %s %s %u", what,
                       party.role ? party.role : "nobody", party.index);
}

static bool set_key(void *socket, int option, const unsigned char *key) {
    return !zmq_setsockopt(socket, option, key, LINK_KEY_BYTES);
}

static bool set_and_read(void *socket, int option, int value) {
    int is = -1;
    size_t size = sizeof is;
    return !zmq_setsockopt(socket, option, &value, sizeof value) &&
           !zmq_getsockopt(socket, option, &is, &size) && is == value;
}

/* The domain is read back as well: an empty one admits everybody. */
static bool enforce_zap(void *socket) {
    char domain[sizeof ZAP_DOMAIN + 1] = "";
    size_t size = sizeof domain;
    return !zmq_setsockopt(socket, ZMQ_ZAP_DOMAIN, ZAP_DOMAIN,
                           strlen(ZAP_DOMAIN)) &&
           set_and_read(socket, ZAP_ENFORCE_DOMAIN, 1) &&
           !zmq_getsockopt(socket, ZMQ_ZAP_DOMAIN, domain, &size) &&
           !strcmp(domain, ZAP_DOMAIN);
}

static enum status fail_to_set(struct failure *why) {
    return status_fail(why, FAILURE_SYSTEM_REFUSED,
                       "this libzmq cannot authenticate peers: a run with a "
                       "secret needs one of 4.3 with CURVE: %s",
                       zmq_strerror(zmq_errno()));
}

enum status link_keys_serve(const struct link_keys *keys, void *socket,
                            struct link_party own, struct failure *why) {
    const struct pair *pair = own_pair(keys, own);
    if (!pair)
        return fail_without_key(own, "to listen as", why);
    return enforce_zap(socket) && set_and_read(socket, ZMQ_CURVE_SERVER, 1) &&
                   set_key(socket, ZMQ_CURVE_SECRETKEY, pair->private)
               ? STATUS_OK
               : fail_to_set(why);
}

static const unsigned char *server_key(const struct link_keys *keys,
                                       struct link_party server) {
    for (uint32_t i = 0; i < keys->servers.count; i++)
        if (is_party(keys->servers.all[i].party, server))
            return keys->servers.all[i].bytes;
    return NULL;
}

static enum status connect_as(void *socket, const unsigned char *server,
                              const struct pair *client, struct failure *why) {
    return set_key(socket, ZMQ_CURVE_SERVERKEY, server) &&
                   set_key(socket, ZMQ_CURVE_PUBLICKEY, client->public) &&
                   set_key(socket, ZMQ_CURVE_SECRETKEY, client->private)
               ? STATUS_OK
               : fail_to_set(why);
}

enum status link_keys_connect(const struct link_keys *keys, void *socket,
                              struct link_party server, struct failure *why) {
    const unsigned char *key = server_key(keys, server);
    return key ? connect_as(socket, key, &keys->own->client, why)
               : fail_without_key(server, "of", why);
}

enum status link_keys_connect_unknown(const struct link_keys *keys,
                                      void *socket, struct link_party own,
                                      struct failure *why) {
    const struct pair *server = own_pair(keys, own);
    struct pair pair;
    crypto_box_keypair(pair.public, pair.private);
    return server ? connect_as(socket, server->public, &pair, why)
                  : fail_without_key(own, "to listen as", why);
}

void link_party_text(struct link_party party, char *text, size_t size) {
    snprintf(text, size, "%s:%u", party.role, party.index);
}
