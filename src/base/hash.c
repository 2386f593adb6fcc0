/* hash.c - keyed BLAKE2b names (libsodium), XXH3 checksums (xxhash), randomness. */
#include "base/hash.h"

#include <sodium.h>
#include <string.h>
#include <xxhash.h>

#include "base/mem.h"

_Static_assert(IS_KEY_BYTES >= crypto_generichash_blake2b_KEYBYTES_MIN &&
               IS_KEY_BYTES <= crypto_generichash_blake2b_KEYBYTES_MAX, "a partition's key is a BLAKE2b key");

struct is_hash {
    crypto_generichash_blake2b_state state; /* 64-byte aligned by its type */
};

/* sodium_init is idempotent and thread safe; without it the portable code would still be right, only slower. */
static void ready(void)
{
    if (sodium_init() < 0) return; /* nothing to do about it, and nothing lost */
}

is_status is_hash_new(const uint8_t key[IS_KEY_BYTES], is_hash **out)
{
    is_hash *h = is_malloc_aligned(64, sizeof *h);

    *out = NULL;
    if (!h) return is_fail(INFERSCALE_E_NOMEM, "no memory for a hash; free some memory and try again");
    ready();
    crypto_generichash_blake2b_init(&h->state, key, key ? IS_KEY_BYTES : 0, IS_HASH_BYTES);
    *out = h;
    return INFERSCALE_OK;
}

static void update(is_hash *h, const void *p, size_t n)
{
    crypto_generichash_blake2b_update(&h->state, p, n);
}

static void le64(uint64_t v, uint8_t out[8])
{
    for (int i = 0; i < 8; i++) out[i] = (uint8_t)(v >> (8 * i));
}

void is_hash_field(is_hash *h, const void *p, size_t n)
{
    uint8_t prefix[8];

    if (!h) return;
    le64(n, prefix);
    update(h, prefix, sizeof prefix);
    if (n) update(h, p, n);
}

void is_hash_bytes(is_hash *h, const void *p, size_t n)
{
    if (h && n) update(h, p, n);
}

void is_hash_u64(is_hash *h, uint64_t v)
{
    uint8_t bytes[8];

    le64(v, bytes);
    is_hash_field(h, bytes, sizeof bytes);
}

void is_hash_end(is_hash *h, uint8_t out[IS_HASH_BYTES])
{
    if (!h) {
        memset(out, 0, IS_HASH_BYTES);
        return;
    }
    crypto_generichash_blake2b_final(&h->state, out, IS_HASH_BYTES);
    sodium_memzero(h, sizeof *h); /* the state holds the key */
    is_free(h);
}

void is_hash_once(const uint8_t key[IS_KEY_BYTES], const void *p, size_t n, uint8_t out[IS_HASH_BYTES])
{
    ready();
    crypto_generichash_blake2b(out, IS_HASH_BYTES, p, n, key, key ? IS_KEY_BYTES : 0);
}

void is_hex(const uint8_t *p, size_t n, char *out)
{
    static const char digits[] = "0123456789abcdef";

    for (size_t i = 0; i < n; i++) {
        out[2 * i] = digits[p[i] >> 4];
        out[2 * i + 1] = digits[p[i] & 15];
    }
    out[2 * n] = 0;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool is_unhex(const char *s, size_t n, uint8_t *out)
{
    for (size_t i = 0; i < n; i++) {
        int high = hex_digit(s[2 * i]), low = high < 0 ? -1 : hex_digit(s[2 * i + 1]);

        if (low < 0) return false;
        out[i] = (uint8_t)(high << 4 | low);
    }
    return true;
}

void is_wipe(void *p, size_t n)
{
    if (p && n) sodium_memzero(p, n);
}

uint64_t is_checksum(const void *p, size_t n)
{
    return XXH3_64bits(p, n);
}

void is_random(void *p, size_t n)
{
    ready();
    randombytes_buf(p, n);
}

bool is_same_secret(const void *a, const void *b, size_t n)
{
    return sodium_memcmp(a, b, n) == 0;
}
