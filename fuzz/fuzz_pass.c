/* fuzz_pass.c - passes and ranges of workers: any bytes give a pass that is signed, or a status with a sentence; a range stays inside its total. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "kv/pass.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const uint8_t secret[IS_KEY_BYTES] = { 7 };
static const is_pass_for of = { "GET", "/inferscale/kv/vault/x", "" };

static void check(int holds, const char *what)
{
    if (holds) return;
    fprintf(stderr, "does not hold: %s\n", what);
    abort();
}

static void try_pass(const char *text)
{
    is_pass p;
    is_status st = is_pass_read(secret, &of, text, 0, &p);

    if (st == INFERSCALE_OK) return;
    check(*is_error() != 0, "it says why");
    check(st == INFERSCALE_E_PARSE || st == INFERSCALE_E_DENIED || st == INFERSCALE_E_STALE, "as declared");
}

/* The input laid over a pass that is right: what is refused first must not hide what comes behind it. */
static void try_over(const char *text)
{
    char good[IS_PASS_TEXT];
    size_t n = strnlen(text, IS_PASS_TEXT - 1);

    check(is_pass_write(secret, &of, "", 0, 0, good) == INFERSCALE_OK, "memory");
    for (size_t i = 0; i < n && good[i]; i++)
        if (text[i] != ' ') good[i] = text[i];
    try_pass(good);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = is_strndup((const char *)data, size);
    uint64_t at, n, total;

    check(text != NULL, "memory");
    try_pass(text);
    try_over(text);
    if (is_pass_range(text, &at, &n, &total)) check(n > 0 && at < total && n <= total - at, "inside");
    is_free(text);
    return 0;
}
