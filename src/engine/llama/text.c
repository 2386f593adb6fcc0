/* text.c - text to tokens and back. */
#include "engine/llama/internal.h"

#include <limits.h>

/* A WordPiece or Unigram tokenizer makes one unknown token of a word of any length, and drops blanks. */
uint32_t is_llama_longest_piece(const is_llama *e)
{
    const enum llama_vocab_type type = llama_vocab_type(e->vocab);
    uint32_t longest = 1;

    if (type != LLAMA_VOCAB_TYPE_SPM && type != LLAMA_VOCAB_TYPE_BPE && type != LLAMA_VOCAB_TYPE_RWKV) return 0;
    for (uint32_t i = 0; i < e->n_vocab; i++) {
        int32_t n = is_shim_piece(e->vocab, (int32_t)i, NULL, 0, true);

        if (n == SHIM_THROWN) return 0;
        if (n < 0 && (uint32_t)-n > longest) longest = (uint32_t)-n;
    }
    return longest;
}

is_status is_llama_tokenize(void *impl, const is_realm *whose, const char *text, size_t len, bool parse_special, bool add_bos,
                            int32_t **out, uint32_t *n)
{
    is_llama *e = impl;
    bool bos = add_bos && llama_vocab_get_add_bos(e->vocab) && llama_vocab_bos(e->vocab) != LLAMA_TOKEN_NULL;
    size_t cap = len + 2;
    int32_t got, *tokens;

    *out = NULL;
    *n = 0;
    if (llama_vocab_type(e->vocab) == LLAMA_VOCAB_TYPE_NONE)
        return is_fail(INFERSCALE_E_UNSUPPORTED, "this model has no tokenizer; use a complete model file");
    if (len > INT_MAX / 8) return is_fail(INFERSCALE_E_INVALID,
                                          "the text has %zu bytes, which is too long to tokenise; split it", len);
    tokens = is_malloc(cap * sizeof *tokens);
    if (!tokens) return is_fail(INFERSCALE_E_NOMEM, "out of memory for the tokens of a text of %zu bytes", len);
    /* BOS is put by hand: add_special would also append EOS on some models. */
    if (bos) tokens[0] = llama_vocab_bos(e->vocab);
    got = len ? is_shim_tokenize(e->vocab, text, (int32_t)len, tokens + bos, (int32_t)(cap - bos), false, parse_special) : 0;
    if (got < 0 && got != INT32_MIN) { /* more tokens than bytes: rare, but allowed */
        int32_t *more = is_realloc(tokens, ((size_t)-got + 1) * sizeof *tokens);

        if (!more) {
            is_free(tokens);
            return is_fail(INFERSCALE_E_NOMEM, "out of memory for the tokens of a text of %zu bytes", len);
        }
        tokens = more;
        got = is_shim_tokenize(e->vocab, text, (int32_t)len, tokens + bos, -got, false, parse_special);
    }
    if (got < 0) {
        is_free(tokens);
        return is_fail(INFERSCALE_E_ENGINE, "libllama could not tokenise a text of %zu bytes (%s); check that it is UTF-8", len,
                       is_shim_error());
    }
    *out = tokens;
    *n = (uint32_t)got + bos;
    return INFERSCALE_OK;
}

void is_llama_tokens_free(void *impl, int32_t *tokens)
{
    (void)impl;
    is_free(tokens);
}

int is_llama_piece(void *impl, int32_t token, char *buf, int cap)
{
    is_llama *e = impl;
    int32_t n;

    if (token < 0 || (uint32_t)token >= e->n_vocab || llama_vocab_type(e->vocab) == LLAMA_VOCAB_TYPE_NONE) return 0;
    n = is_shim_piece(e->vocab, token, buf, cap, false);
    return n == SHIM_THROWN ? 0 : n;
}

bool is_llama_is_eog(void *impl, int32_t token)
{
    is_llama *e = impl;

    return token >= 0 && (uint32_t)token < e->n_vocab && llama_vocab_is_eog(e->vocab, token);
}
