/* pass.h - what a worker on another host shows to fetch a segment from the gateway or to bring captured rows (docs/formats.md, "Pass").
 *
 * Both have the secret. A pass is bound to one method, one path, one range, one body and a time; who has none is nobody. What is fetched
 * ends with a seal, bound to the pass that it was asked for with: the worker takes no bytes that the gateway did not send. */
#ifndef IS_KV_PASS_H
#define IS_KV_PASS_H

#include "base/hash.h"

enum {
    IS_PASS_SKEW = 300,     /* seconds that the two clocks may be apart */
    IS_PASS_TEXT = 192,     /* longer than any pass, with its end */
};

typedef struct is_pass_for {
    const char *method, *path;      /* as they stand in the request line; the path begins with /inferscale/ */
    const char *range;              /* Content-Range; "" = none */
} is_pass_for;

typedef struct is_pass {
    int64_t time;
    uint8_t nonce[16];
    uint8_t body[IS_HASH_BYTES];    /* hash of the body, without a key */
    uint8_t signature[IS_HASH_BYTES];
} is_pass;

/* A pass for now, as text. E_NOMEM. */
is_status is_pass_write(const uint8_t secret[IS_KEY_BYTES], const is_pass_for *of, const void *body, size_t n, int64_t now,
                        char out[IS_PASS_TEXT]);
/* E_PARSE (not a pass), E_DENIED (not signed with this secret, or for another request), E_STALE (of another time), E_NOMEM. The body is not
 * looked at: that is is_pass_fits. */
is_status is_pass_read(const uint8_t secret[IS_KEY_BYTES], const is_pass_for *of, const char *text, int64_t now, is_pass *out);
bool is_pass_fits(const is_pass *p, const void *body, size_t n);

/* The seal of what was fetched with a pass: is_hash_bytes of it all, then is_hash_end. */
is_status is_pass_seal(const uint8_t secret[IS_KEY_BYTES], const is_pass *p, is_hash **out);

/* "bytes A-B/TOTAL" with A <= B < TOTAL: the piece [at, at + n) of total. false: it is something else. */
bool is_pass_range(const char *text, uint64_t *at, uint64_t *n, uint64_t *total);

#endif
