/* pass.c - passes of workers: written, read back, compared in a time that does not depend on what is wrong. */
#include "kv/pass.h"

#include <stdio.h>
#include <string.h>

enum { FORM = '1', TIME_MAX = 12, NONCE = 16 };

/* The domains stand first: nothing else that is signed with the secret can be taken for one. */
static is_status sign(const uint8_t secret[IS_KEY_BYTES], const is_pass_for *of, const is_pass *p, uint8_t out[IS_HASH_BYTES])
{
    static const char domain[] = "inferscale pass 1";
    is_hash *h;

    memset(out, 0, IS_HASH_BYTES);
    IS_TRY(is_hash_new(secret, &h));
    is_hash_field(h, domain, sizeof domain - 1);
    is_hash_field(h, of->method, strlen(of->method));
    is_hash_field(h, of->path, strlen(of->path));
    is_hash_field(h, of->range, strlen(of->range));
    is_hash_u64(h, (uint64_t)p->time);
    is_hash_field(h, p->nonce, sizeof p->nonce);
    is_hash_field(h, p->body, sizeof p->body);
    is_hash_end(h, out);
    return INFERSCALE_OK;
}

is_status is_pass_write(const uint8_t secret[IS_KEY_BYTES], const is_pass_for *of, const void *body, size_t n, int64_t now,
                        char out[IS_PASS_TEXT])
{
    char nonce[2 * NONCE + 1], hash[IS_HASH_HEX], signature[IS_HASH_HEX];
    is_pass p = { .time = now };

    is_random(p.nonce, sizeof p.nonce);
    is_hash_once(NULL, body, n, p.body);
    IS_TRY(sign(secret, of, &p, p.signature));
    is_hex(p.nonce, NONCE, nonce);
    is_hex(p.body, IS_HASH_BYTES, hash);
    is_hex(p.signature, IS_HASH_BYTES, signature);
    snprintf(out, IS_PASS_TEXT, "%c.%lld.%s.%s.%s", FORM, (long long)now, nonce, hash, signature);
    return INFERSCALE_OK;
}

/* ---- Read ------------------------------------------------------------------------------------------------------------------ */

/* Digits at *p, one at least and most of them at most, without a zero before others. */
static bool take_number(const char **p, size_t most, uint64_t *out)
{
    size_t n = strspn(*p, "0123456789");

    if (n == 0 || n > most || (n > 1 && **p == '0')) return false;
    *out = 0;
    for (size_t i = 0; i < n; i++) *out = 10 * *out + (uint64_t)((*p)[i] - '0');
    *p += n;
    return true;
}

static bool take_hex(const char **p, uint8_t *out, size_t n)
{
    if (!is_unhex(*p, n, out)) return false;
    *p += 2 * n;
    return true;
}

static bool take_char(const char **p, char c)
{
    return **p == c ? (*p)++, true : false;
}

static bool parse(const char *text, is_pass *out)
{
    const char *p = text;
    uint64_t time;

    if (!take_char(&p, FORM) || !take_char(&p, '.') || !take_number(&p, TIME_MAX, &time)) return false;
    out->time = (int64_t)time;
    return take_char(&p, '.') && take_hex(&p, out->nonce, NONCE) && take_char(&p, '.') && take_hex(&p, out->body, IS_HASH_BYTES) &&
           take_char(&p, '.') && take_hex(&p, out->signature, IS_HASH_BYTES) && !*p;
}

is_status is_pass_read(const uint8_t secret[IS_KEY_BYTES], const is_pass_for *of, const char *text, int64_t now, is_pass *out)
{
    uint8_t own[IS_HASH_BYTES];

    memset(out, 0, sizeof *out);
    if (!parse(text, out))
        return is_fail(INFERSCALE_E_PARSE, "not a worker's pass of this version; gateway and connector must be of versions that know each other");
    IS_TRY(sign(secret, of, out, own));
    if (!is_same_secret(own, out->signature, sizeof own))
        return is_fail(INFERSCALE_E_DENIED, "a pass that is not signed for this request with this secret; give the connector the gateway's "
                       "vllm/secret, and the gateway's own address");
    if (out->time > now + IS_PASS_SKEW || out->time < now - IS_PASS_SKEW)
        return is_fail(INFERSCALE_E_STALE, "a pass of another time (%lld, it is %lld); set the machines' clocks", (long long)out->time,
                       (long long)now);
    return INFERSCALE_OK;
}

bool is_pass_fits(const is_pass *p, const void *body, size_t n)
{
    uint8_t own[IS_HASH_BYTES];

    is_hash_once(NULL, body, n, own);
    return is_same_secret(own, p->body, sizeof own);
}

is_status is_pass_seal(const uint8_t secret[IS_KEY_BYTES], const is_pass *p, is_hash **out)
{
    static const char domain[] = "inferscale seal 1";

    IS_TRY(is_hash_new(secret, out));
    is_hash_field(*out, domain, sizeof domain - 1);
    is_hash_field(*out, p->signature, sizeof p->signature);
    return INFERSCALE_OK;
}

bool is_pass_range(const char *text, uint64_t *at, uint64_t *n, uint64_t *total)
{
    const char *p = text;
    uint64_t last;

    if (strncmp(p, "bytes ", 6) != 0) return false;
    p += 6;
    if (!take_number(&p, 15, at) || !take_char(&p, '-') || !take_number(&p, 15, &last) || !take_char(&p, '/') ||
        !take_number(&p, 15, total) || *p || last < *at || last >= *total)
        return false;
    *n = last - *at + 1;
    return true;
}
