/* chat_format.c - the literal pieces of the model's chat format.
 *
 * libllama's template function is no Jinja: it recognises some 55 formats. A conversation is rendered with placeholders and cut at them
 * (engine/chat_pieces.h). */
#include "engine/chat_pieces.h"
#include "engine/llama/internal.h"

#include <string.h>

static const is_chat_marks marks = { "\x01S\x01", "\x01U\x01", "\x01" "A\x01", "\x01V\x01" };

/* The rendered conversation (is_free), or NULL if the template is not known. */
/* *out NULL = the template is not one that libllama knows. */
static is_status render(const char *tmpl, const struct llama_chat_message *msgs, size_t n, bool add_assistant, char **out)
{
    int32_t len = is_shim_chat_apply(tmpl, msgs, n, add_assistant, NULL, 0);

    *out = NULL;
    if (len <= 0 || len >= 1 << 16) return INFERSCALE_OK;
    *out = is_calloc(1, (size_t)len + 1);
    if (!*out) return is_fail(INFERSCALE_E_NOMEM, "out of memory for the chat template; free some and try again");
    if (is_shim_chat_apply(tmpl, msgs, n, add_assistant, *out, len) == len) return INFERSCALE_OK;
    is_free(*out);
    *out = NULL;
    return INFERSCALE_OK;
}

/* A template may write BOS itself; tokenising adds it, so it is taken off. NULL = it does not. */
static const char *added_bos(const is_llama *e)
{
    llama_token bos = llama_vocab_bos(e->vocab);

    return bos != LLAMA_TOKEN_NULL && llama_vocab_get_add_bos(e->vocab) ? llama_vocab_get_text(e->vocab, bos) : NULL;
}

static is_status from_template(is_llama *e, const char *tmpl, is_chat_format *f, bool *found)
{
    struct llama_chat_message all[] = { { "system", marks.system }, { "user", marks.user }, { "assistant", marks.assistant },
                                        { "user", marks.second } };
    char *whole = NULL, *alone = NULL;
    is_status st = render(tmpl, all, 4, true, &whole);

    *found = false;
    if (st == INFERSCALE_OK) st = render(tmpl, &all[1], 1, false, &alone);
    if (st == INFERSCALE_OK && whole) st = is_chat_cut(&marks, whole, alone, added_bos(e), f, found);
    is_free(whole);
    is_free(alone);
    return st;
}

is_status is_chat_format_find(is_llama *e)
{
    const char *tmpl = llama_model_chat_template(e->model, NULL);
    is_chat_format *f = &e->chat;

    e->info.has_chat_template = false;
    if (tmpl) IS_TRY(from_template(e, tmpl, f, &e->info.has_chat_template));
    if (e->info.has_chat_template) return INFERSCALE_OK;
    if (tmpl) is_log(IS_LOG_WARN, "the chat template of %s is not one that libllama knows; a plain format is used",
                     e->info.name);
    is_chat_format_free(f);
    return is_chat_plain(f);
}
