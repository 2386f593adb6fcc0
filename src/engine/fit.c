/* fit.c - tokens of a text that has to fit into a context, and may be far too long for it.
 *
 * No engine's tokenizer can be stopped, and one takes seconds for a megabyte. So a text that cannot fit is refused before: by its bytes,
 * where the engine knows the longest text of a token, and else by its first pieces, tokenised apart with a look at the flag between
 * them. A cut may make a few tokens more, and never twice as many: what is refused for its pieces has more than twice the room. */
#include "base/mem.h"
#include "engine/engine.h"

enum { PIECE = 32 << 10, SPARE = 1024 };

static bool is_set(const volatile int *flag) { return flag && __atomic_load_n(flag, __ATOMIC_ACQUIRE); }

static is_status too_long(is_engine *e, uint64_t least, size_t len, const is_fit *fit)
{
    return is_fail(INFERSCALE_E_CONTEXT, "this model's maximum context length is %u tokens and %u are left here, but a text of %zu bytes "
                   "has at least %llu; shorten it, or open the model with a larger context",
                   is_engine_describe(e)->n_ctx, fit->room, len, (unsigned long long)least);
}

/* The piece's end: in front of a letter, not within one. */
static size_t cut(const char *text, size_t at, size_t len)
{
    size_t end = len - at > PIECE ? at + PIECE : len;

    while (end < len && end > at + 1 && ((unsigned char)text[end] & 0xc0) == 0x80) end--;
    return end;
}

static is_status by_pieces(is_engine *e, const is_realm *whose, const char *text, size_t len, const is_fit *fit)
{
    uint64_t n_all = 0;

    for (size_t at = 0, end; at < len; at = end) {
        int32_t *ids = NULL;
        uint32_t n = 0;

        if (is_set(fit->cancel)) return is_fail(INFERSCALE_E_CANCELLED, "cancelled by the caller; ask again to go on");
        end = cut(text, at, len);
        IS_TRY(is_engine_tokenize(e, whose, text + at, end - at, false, false, &ids, &n));
        is_free(ids);
        n_all += n;
        if (n_all > 2 * (uint64_t)fit->room + SPARE) return too_long(e, n_all / 2, len, fit);
    }
    return INFERSCALE_OK;
}

is_status is_engine_tokenize_fit(is_engine *e, const is_realm *whose, const char *text, size_t len, bool parse_special, bool add_bos,
                                 const is_fit *fit, int32_t **out, uint32_t *n)
{
    const uint32_t longest = is_engine_describe(e)->longest_piece;

    *out = NULL;
    *n = 0;
    if (fit && is_set(fit->cancel)) return is_fail(INFERSCALE_E_CANCELLED, "cancelled by the caller; ask again to go on");
    if (fit && longest && len / longest > fit->room) return too_long(e, len / longest, len, fit);
    if (fit && len > PIECE) IS_TRY(by_pieces(e, whose, text, len, fit));
    return is_engine_tokenize(e, whose, text, len, parse_special, add_bos, out, n);
}
