/* keys.h - API keys: a file of them, read again when it changes, compared in constant time.
 *
 *   # comment                       one key a line: the key (16 bytes or more), then what it may do
 *   isk_3f...  admin                everything
 *   isk_91...  user=anna            bound: names this owner, and no other
 *   isk_77...  tenant=acme          any owner of the tenant
 *   isk_52...                       any owner without tenant */
#ifndef IS_SERVE_KEYS_H
#define IS_SERVE_KEYS_H

#include <stdbool.h>
#include <stddef.h>

#include "inferscale.h"

typedef struct is_keys is_keys;
typedef struct is_key {
    char name[24];                 /* for logs: the first characters of the key's hash, never the key */
    bool admin, bound;
    char tenant[INFERSCALE_NAME_MAX + 1], user[INFERSCALE_NAME_MAX + 1], agent[INFERSCALE_NAME_MAX + 1]; /* "" = free */
    char run[INFERSCALE_NAME_MAX + 1], app[INFERSCALE_NAME_MAX + 1];
} is_key;

inferscale_status is_keys_open(const char *path, is_keys **out); /* E_NOTFOUND, E_PARSE with the line, E_DENIED (others may read the file) */
void is_keys_close(is_keys *k);
/* *out = a copy of what the key may do; false = there is no such key. A thread of its own looks
 * twice a second whether the file changed: one that is still being written, or no longer parses
 * (logged), leaves the old keys in force. Waits for no file. Thread safe. */
bool is_keys_find(is_keys *k, const char *key, is_key *out);
/* Parses text as the file is parsed, and keeps nothing; the text is taken apart. */
inferscale_status is_keys_check_text(char *text, size_t n, size_t *n_keys);

#endif
