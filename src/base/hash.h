/* hash.h - names and checksums. Names are keyed BLAKE2b-256 (libsodium): without the partition's key nobody can compute one.
 * Checksums are XXH3-64 (xxhash): they find torn and rotten bytes, not malice. */
#ifndef IS_BASE_HASH_H
#define IS_BASE_HASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum { IS_HASH_BYTES = 32, IS_HASH_HEX = 65, IS_KEY_BYTES = 32 };

typedef struct is_hash is_hash; /* a running hash */

is_status is_hash_new(const uint8_t key[IS_KEY_BYTES] /* NULL = unkeyed */, is_hash **out);
/* Fields are length-prefixed, so that ("ab","c") and ("a","bc") differ. */
void is_hash_field(is_hash *h, const void *p, size_t n);
void is_hash_u64(is_hash *h, uint64_t v);
void is_hash_bytes(is_hash *h, const void *p, size_t n); /* no prefix: of a whole file that comes in pieces (b2sum -l 256) */
void is_hash_end(is_hash *h, uint8_t out[IS_HASH_BYTES]); /* frees h; NULL is allowed (zeroes out) */

void is_hash_once(const uint8_t key[IS_KEY_BYTES], const void *p, size_t n, uint8_t out[IS_HASH_BYTES]);
void is_hex(const uint8_t *p, size_t n, char *out /* 2n+1 bytes */);
/* n bytes from the first 2n characters, small digits alone; false (also where the string is shorter): out is undefined. */
bool is_unhex(const char *s, size_t n, uint8_t *out);
uint64_t is_checksum(const void *p, size_t n);   /* XXH3-64, seed 0 */
void is_random(void *p, size_t n);               /* cryptographic */
void is_wipe(void *p, size_t n);                 /* overwrites it, so that the compiler does not leave it out; NULL is allowed */
bool is_same_secret(const void *a, const void *b, size_t n); /* in a time that does not depend on the bytes */

#endif
