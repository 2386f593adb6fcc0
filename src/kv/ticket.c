/* ticket.c - tickets as bytes: written, signed, read back and checked field by field. */
#include "kv/ticket.h"

#include <string.h>

#include "base/base64.h"
#include "base/buf.h"
#include "base/mem.h"

enum {
    VERSION = 1,
    FIXED_BYTES = 184,  /* before the parts */
    PART_BYTES = 48,
    MAX_BYTES = FIXED_BYTES + PART_BYTES * IS_TICKET_MAX_PARTS + IS_HASH_BYTES,
};

static is_status no_memory(void)
{
    return is_fail(INFERSCALE_E_NOMEM, "out of memory for a ticket; free memory and try again");
}

/* The domain stands before the bytes: nothing else that is signed with the secret can be taken for a ticket. */
static is_status sign(const uint8_t secret[IS_KEY_BYTES], const void *p, size_t n, uint8_t out[IS_HASH_BYTES])
{
    static const char domain[] = "inferscale ticket 1";
    is_hash *h;

    IS_TRY(is_hash_new(secret, &h));
    is_hash_field(h, domain, sizeof domain);
    is_hash_field(h, p, n);
    is_hash_end(h, out);
    return INFERSCALE_OK;
}

/* ---- What a ticket may say ----------------------------------------------------------------------------------------------- */

static is_status nonsense(const char *what)
{
    return is_fail(INFERSCALE_E_INVALID, "a ticket with %s; gateway and connector must be of versions that know each other", what);
}

static is_status check_parts(const inferscale_ticket *t)
{
    uint64_t end = 0;

    for (uint32_t i = 0; i < t->n_parts; i++) {
        const inferscale_kv_part *p = &t->parts[i];

        if (!p->n_tokens) return nonsense("an empty part");
        if (p->pos < end) return nonsense("parts that overlap or are out of order");
        end = (uint64_t)p->pos + p->n_tokens;
        if (end > t->n_prompt) return nonsense("a part outside its prompt");
        if ((uint64_t)p->begin + p->n_tokens > UINT32_MAX) return nonsense("a part outside every segment");
    }
    return INFERSCALE_OK;
}

static is_status check(const inferscale_ticket *t)
{
    bool parts = t->op == INFERSCALE_TICKET_INJECT || t->op == INFERSCALE_TICKET_CAPTURE;

    if (t->op < INFERSCALE_TICKET_DESCRIBE || t->op > INFERSCALE_TICKET_STATUS) return nonsense("an unknown operation");
    if (t->n_prompt > IS_TICKET_MAX_PROMPT) return nonsense("a prompt of more than 2^24 tokens");
    if (t->n_parts > IS_TICKET_MAX_PARTS || (t->n_parts && (!parts || !t->parts))) return nonsense("parts where there can be none");
    if ((t->op == INFERSCALE_TICKET_CAPTURE) != (t->capture_n > 0) || (!t->capture_n && t->capture_from))
        return nonsense("rows to capture in an operation that does not");
    if ((uint64_t)t->capture_from + t->capture_n > t->n_prompt) return nonsense("rows to capture outside its prompt");
    return check_parts(t);
}

/* ---- Write ----------------------------------------------------------------------------------------------------------------- */

static void put(is_buf *b, const inferscale_ticket *t)
{
    is_buf_u8(b, VERSION);
    is_buf_u8(b, (uint8_t)t->op);
    is_buf_u16(b, 0);
    is_buf_u32(b, t->n_prompt);
    is_buf_add(b, t->id, sizeof t->id);
    is_buf_add(b, t->fingerprint, sizeof t->fingerprint);
    is_buf_add(b, t->tag, sizeof t->tag);
    is_buf_add(b, t->salt, sizeof t->salt);
    is_buf_u64(b, t->epoch);
    is_buf_u64(b, (uint64_t)t->expires);
    is_buf_add(b, t->prompt_hash, sizeof t->prompt_hash);
    is_buf_u32(b, t->capture_from);
    is_buf_u32(b, t->capture_n);
    is_buf_u32(b, t->n_parts);
    is_buf_u32(b, 0);
    for (uint32_t i = 0; i < t->n_parts; i++) {
        const inferscale_kv_part *p = &t->parts[i];

        is_buf_add(b, p->name, sizeof p->name);
        is_buf_u32(b, p->dir);
        is_buf_u32(b, p->begin);
        is_buf_u32(b, p->n_tokens);
        is_buf_u32(b, p->pos);
    }
}

is_status is_ticket_write(const inferscale_ticket *t, const uint8_t secret[IS_KEY_BYTES], char **text)
{
    uint8_t signature[IS_HASH_BYTES];
    is_buf b = IS_BUF_INIT;
    is_status st;

    *text = NULL;
    IS_TRY(check(t));
    put(&b, t);
    st = is_buf_ok(&b) ? sign(secret, b.data, b.len, signature) : no_memory();
    if (st == INFERSCALE_OK) {
        is_buf_add(&b, signature, sizeof signature);
        if (is_buf_ok(&b)) *text = is_base64url(b.data, b.len);
        if (!*text) st = no_memory();
    }
    is_buf_free(&b);
    return st;
}

/* ---- Read ------------------------------------------------------------------------------------------------------------------ */

/* p[0..n): the bytes without the signature, which is right. */
static is_status take(const uint8_t *p, size_t n, inferscale_ticket **out)
{
    uint32_t n_parts = is_get_u32(p + 176);
    inferscale_kv_part *parts;
    inferscale_ticket *t;

    if (p[2] || p[3] || is_get_u32(p + 180)) return nonsense("reserved bytes in use");
    if (n_parts > IS_TICKET_MAX_PARTS || n != FIXED_BYTES + (size_t)n_parts * PART_BYTES) return nonsense("another length than it says");
    t = is_calloc(1, sizeof *t + n_parts * sizeof *parts);
    if (!t) return no_memory();
    parts = (inferscale_kv_part *)(t + 1);
    *t = (inferscale_ticket){ .struct_size = sizeof *t, .op = p[1], .n_prompt = is_get_u32(p + 4), .epoch = is_get_u64(p + 120),
                              .expires = (int64_t)is_get_u64(p + 128), .capture_from = is_get_u32(p + 168),
                              .capture_n = is_get_u32(p + 172), .n_parts = n_parts, .parts = n_parts ? parts : NULL };
    memcpy(t->id, p + 8, sizeof t->id);
    memcpy(t->fingerprint, p + 24, sizeof t->fingerprint);
    memcpy(t->tag, p + 56, sizeof t->tag);
    memcpy(t->salt, p + 88, sizeof t->salt);
    memcpy(t->prompt_hash, p + 136, sizeof t->prompt_hash);
    p += FIXED_BYTES;
    for (uint32_t i = 0; i < n_parts; i++, p += PART_BYTES) {
        memcpy(parts[i].name, p, sizeof parts[i].name);
        parts[i].dir = is_get_u32(p + 32);
        parts[i].begin = is_get_u32(p + 36);
        parts[i].n_tokens = is_get_u32(p + 40);
        parts[i].pos = is_get_u32(p + 44);
    }
    *out = t;
    return INFERSCALE_OK;
}

static is_status read_bytes(const uint8_t *p, size_t n, const uint8_t secret[IS_KEY_BYTES], int64_t now, inferscale_ticket **out)
{
    uint8_t signature[IS_HASH_BYTES];
    is_status st;

    if (n < FIXED_BYTES + IS_HASH_BYTES || p[0] != VERSION)
        return is_fail(INFERSCALE_E_PARSE, "not a ticket of this version; gateway and connector must be of versions that know each other");
    n -= IS_HASH_BYTES;
    IS_TRY(sign(secret, p, n, signature));
    if (!is_same_secret(signature, p + n, sizeof signature))
        return is_fail(INFERSCALE_E_DENIED, "a ticket that is not signed with this secret; give connector and gateway the same secret file");
    IS_TRY(take(p, n, out));
    st = check(*out);
    if (st == INFERSCALE_OK && now > (*out)->expires)
        st = is_fail(INFERSCALE_E_STALE, "a ticket whose time was over at %lld; set the machines' clocks, or ask again",
                     (long long)(*out)->expires);
    if (st == INFERSCALE_OK) return INFERSCALE_OK;
    is_free(*out);
    *out = NULL;
    return st;
}

is_status is_ticket_read(const char *text, const uint8_t secret[IS_KEY_BYTES], int64_t now, inferscale_ticket **out)
{
    uint8_t *p;
    is_status st;
    size_t n;

    *out = NULL;
    IS_TRY(is_base64url_read(text, MAX_BYTES, &p, &n));
    st = read_bytes(p, n, secret, now, out);
    is_free(p);
    return st;
}

/* ---- Hashes that both sides make --------------------------------------------------------------------------------------------- */

is_status is_ticket_prompt(const int32_t *tokens, size_t n, uint8_t out[IS_HASH_BYTES])
{
    is_hash *h;

    memset(out, 0, IS_HASH_BYTES);
    IS_TRY(is_hash_new(NULL, &h));
    for (size_t i = 0; i < n; i++) {
        uint32_t v = (uint32_t)tokens[i];
        uint8_t bytes[4] = { (uint8_t)v, (uint8_t)(v >> 8), (uint8_t)(v >> 16), (uint8_t)(v >> 24) };

        is_hash_bytes(h, bytes, sizeof bytes);
    }
    is_hash_end(h, out);
    return INFERSCALE_OK;
}

is_status is_ticket_salt(const uint8_t secret[IS_KEY_BYTES], const is_ticket_salt_of *of, uint8_t out[IS_HASH_BYTES])
{
    static const char domain[] = "inferscale salt 1";
    is_hash *h;

    memset(out, 0, IS_HASH_BYTES);
    IS_TRY(is_hash_new(secret, &h));
    is_hash_field(h, domain, sizeof domain);
    is_hash_field(h, of->tag, sizeof of->tag);
    is_hash_u64(h, of->epoch);
    is_hash_field(h, of->fingerprint, sizeof of->fingerprint);
    is_hash_field(h, of->profile, sizeof of->profile);
    is_hash_u64(h, of->attempt);
    is_hash_u64(h, of->n_names);
    for (size_t i = 0; i < of->n_names; i++) is_hash_field(h, of->names[i], IS_HASH_BYTES);
    is_hash_end(h, out);
    return INFERSCALE_OK;
}
