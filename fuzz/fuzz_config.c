/* fuzz_config.c - the files of settings and of API keys: any bytes give settings or sentences that name the line. The first byte chooses:
 * 'k' for keys, all else for settings. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "serve/config.h"
#include "serve/keys.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(int holds, const char *what)
{
    if (holds) return;
    fprintf(stderr, "does not hold: %s\n", what);
    abort();
}

static void each_error(void *ctx, const char *sentence)
{
    check(strncmp(sentence, "fuzz, line ", 11) == 0, "the sentence names the line");
    ++*(size_t *)ctx;
}

static void settings(char *text, size_t n)
{
    is_config c;
    size_t n_errors = 0;
    check(is_config_init(&c) == INFERSCALE_OK, "the defaults are right");
    is_status st = is_config_text(&c, "fuzz", text, n, each_error, &n_errors);
    check((st == INFERSCALE_OK) == (n_errors == 0), "the status tells whether there were errors");
    check(st == INFERSCALE_OK || st == INFERSCALE_E_PARSE, "a bad line is a parse error");
    check(c.port <= 65535 && c.parallel >= 1 && c.k >= 1 && c.k <= 1000 && c.audit >= 0 && c.audit <= 1,
          "values stay in their range");
    for (int i = 0; i < IS_N_SETTINGS; i++) {
        char *v = is_config_value(&c, (enum is_setting_id)i);
        check(v && is_utf8_valid(v, strlen(v), NULL), "values are UTF-8");
        is_free(v);
    }
    is_config_check(&c, NULL, NULL);
    is_config_free(&c);
}

static void keys(char *text, size_t n)
{
    size_t n_keys;
    is_status st = is_keys_check_text(text, n, &n_keys);
    check(st == INFERSCALE_OK || st == INFERSCALE_E_PARSE, "a bad line is a parse error");
    check(st == INFERSCALE_OK || strncmp(is_error(), "keys file", 9) == 0, "the sentence says which file");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1); /* of just this size: a byte too far is seen */
    if (!text) return 0;
    memcpy(text, data, size);
    text[size] = '\0';
    if (size && text[0] == 'k')
        keys(text + 1, size - 1);
    else if (size)
        settings(text + 1, size - 1);
    free(text);
    return 0;
}
