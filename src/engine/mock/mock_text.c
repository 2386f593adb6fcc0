/* mock_text.c - a tokenizer that can be undone: bytes, pairs of lower-case letters and spaces, and a few control tokens.
 *
 * Text is cut greedily from the left, so the ids of a text depend on that text alone; "ab" "c" and "a" "bc" differ, as pieces
 * tokenised apart do in real models. */
#include "engine/mock/mock.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

static const struct control { const char *text; int32_t id; } controls[] = {
    { "<s>", MOCK_BOS }, { "<|end|>", MOCK_END }, { "<|system|>", MOCK_SYSTEM }, { "<|user|>", MOCK_USER },
    { "<|assistant|>", MOCK_ASSISTANT },
};

static int pair_index(char c)
{
    return c == ' ' ? 26 : c >= 'a' && c <= 'z' ? c - 'a' : -1;
}

static const struct control *control_at(const char *p, size_t n)
{
    for (size_t i = 0; i < sizeof controls / sizeof *controls; i++) {
        size_t len = strlen(controls[i].text);
        if (len <= n && memcmp(p, controls[i].text, len) == 0) return &controls[i];
    }
    return NULL;
}

is_status mock_cut(const char *text, size_t len, bool parse_special, bool add_bos, int32_t **out, uint32_t *n)
{
    uint32_t k = 0;

    *out = NULL;
    *n = 0;
    if (len > (1u << 30)) return is_fail(INFERSCALE_E_INVALID, "mock: %zu bytes are too long a text; split it", len);
    int32_t *ids = is_malloc((len + 1) * sizeof *ids);
    if (!ids) return is_fail(INFERSCALE_E_NOMEM, "mock: no memory for the tokens of %zu bytes; free some and try again", len);
    if (add_bos) ids[k++] = MOCK_BOS;
    for (size_t i = 0; i < len;) {
        const struct control *c = parse_special ? control_at(text + i, len - i) : NULL;
        int a = pair_index(text[i]), b = i + 1 < len ? pair_index(text[i + 1]) : -1;
        if (c) {
            ids[k++] = c->id;
            i += strlen(c->text);
        } else if (a >= 0 && b >= 0) {
            ids[k++] = MOCK_PAIRS + 27 * a + b;
            i += 2;
        } else
            ids[k++] = MOCK_BYTES + (uint8_t)text[i++];
    }
    *out = ids;
    *n = k;
    return INFERSCALE_OK;
}

static void note(const mock *m, size_t len)
{
    FILE *f = m->opt.text_log[0] ? fopen(m->opt.text_log, "ae") : NULL;

    if (!f) return;
    fprintf(f, "%zu\n", len);
    fclose(f);
}

is_status mock_tokenize(void *impl, const is_realm *whose, const char *text, size_t len, bool parse_special, bool add_bos,
                        int32_t **out, uint32_t *n)
{
    mock *m = impl;

    *out = NULL;
    *n = 0;
    IS_TRY(mock_call(&m->opt, MOCK_TOKENIZE));
    note(m, len);
    return mock_cut(text, len, parse_special, add_bos, out, n);
}

void mock_tokens_free(void *impl, int32_t *tokens)
{
    is_free(tokens);
}

int mock_token_piece(void *impl, int32_t token, char *buf, int cap)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz ";
    char piece[2];
    int len = 0;

    if (token >= MOCK_PAIRS && token < MOCK_VOCAB) {
        piece[0] = letters[(token - MOCK_PAIRS) / 27];
        piece[1] = letters[(token - MOCK_PAIRS) % 27];
        len = 2;
    } else if (token >= MOCK_BYTES && token < MOCK_PAIRS) {
        piece[0] = (char)(token - MOCK_BYTES);
        len = 1;
    }
    if (len > cap) return -len;
    if (len) memcpy(buf, piece, (size_t)len);
    return len;
}

bool mock_is_eog(void *impl, int32_t token)
{
    return token == MOCK_END;
}

is_status mock_check_tokens(const int32_t *tokens, uint32_t n, const char *what)
{
    if (n && !tokens) return is_fail(INFERSCALE_E_INVALID, "%s has %u tokens but no token array; pass both", what, n);
    for (uint32_t i = 0; i < n; i++)
        if (tokens[i] < 0 || tokens[i] >= MOCK_VOCAB)
            return is_fail(INFERSCALE_E_INVALID, "%s: token %u is %d, not one of the %d known; tokenise with this engine", what,
                           i, tokens[i], MOCK_VOCAB);
    return INFERSCALE_OK;
}
