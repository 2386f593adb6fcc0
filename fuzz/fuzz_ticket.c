/* fuzz_ticket.c - tickets: any bytes, as text and as what stands behind a signature that is right, give a ticket that can be written again
 * as it was read, or a status with a sentence. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base64.h"
#include "base/mem.h"
#include "kv/ticket.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const uint8_t secret[IS_KEY_BYTES] = { 7 };

static void check(int holds, const char *what)
{
    if (holds) return;
    fprintf(stderr, "does not hold: %s\n", what);
    abort();
}

static void try(const char *text)
{
    inferscale_ticket *t = NULL;
    char *again = NULL;
    is_status st = is_ticket_read(text, secret, 0, &t);

    check((st == INFERSCALE_OK) == (t != NULL), "a ticket or a failure");
    if (st != INFERSCALE_OK) {
        check(*is_error() != 0, "it says why");
        check(st == INFERSCALE_E_PARSE || st == INFERSCALE_E_DENIED || st == INFERSCALE_E_STALE || st == INFERSCALE_E_INVALID, "as declared");
        return;
    }
    check(is_ticket_write(t, secret, &again) == INFERSCALE_OK && !strcmp(again, text), "written as it was read");
    is_free(again);
    is_free(t);
}

static void try_signed(const uint8_t *data, size_t size)
{
    uint8_t *bytes = is_malloc(size + IS_HASH_BYTES);
    char *text;
    is_hash *h;

    check(bytes && is_hash_new(secret, &h) == INFERSCALE_OK, "memory");
    memcpy(bytes, data, size);
    is_hash_field(h, "inferscale ticket 1", 20);
    is_hash_field(h, bytes, size);
    is_hash_end(h, bytes + size);
    text = is_base64url(bytes, size + IS_HASH_BYTES);
    check(text != NULL, "memory");
    try(text);
    is_free(text);
    is_free(bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = is_strndup((const char *)data, size);

    check(text != NULL, "memory");
    try(text);
    is_free(text);
    if (size) try_signed(data, size);
    return 0;
}
