/* chat_format.c - the literal pieces of the model's chat format.
 *
 * libllama's template function is no Jinja: it recognises some 55 formats. A conversation is rendered with placeholders and cut at them
 * (engine/chat_pieces.h). */
#include "engine/chat_pieces.h"
#include "engine/llama/internal.h"

#include <string.h>

static const is_chat_marks marks = { "\x01S\x01", "\x01U\x01", "\x01" "A\x01", "\x01V\x01" };

/* The rendered conversation (is_free), or NULL if the template is not known. */
static char *render(const char *tmpl, const struct llama_chat_message *msgs, size_t n, bool add_assistant)
{
    int32_t len = is_shim_chat_apply(tmpl, msgs, n, add_assistant, NULL, 0);
    char *text = len > 0 && len < 1 << 16 ? is_calloc(1, (size_t)len + 1) : NULL;

    if (text && is_shim_chat_apply(tmpl, msgs, n, add_assistant, text, len) != len) {
        is_free(text);
        return NULL;
    }
    return text;
}

/* A template may write BOS itself; tokenising adds it, so it is taken off. NULL = it does not. */
static const char *added_bos(const is_llama *e)
{
    llama_token bos = llama_vocab_bos(e->vocab);

    return bos != LLAMA_TOKEN_NULL && llama_vocab_get_add_bos(e->vocab) ? llama_vocab_get_text(e->vocab, bos) : NULL;
}

static bool from_template(is_llama *e, const char *tmpl, is_chat_format *f)
{
    struct llama_chat_message all[] = { { "system", marks.system }, { "user", marks.user }, { "assistant", marks.assistant },
                                        { "user", marks.second } };
    char *whole = render(tmpl, all, 4, true), *alone = render(tmpl, &all[1], 1, false);
    bool found = whole && is_chat_cut(&marks, whole, alone, added_bos(e), f);

    is_free(whole);
    is_free(alone);
    return found;
}

is_status is_chat_format_find(is_llama *e)
{
    const char *tmpl = llama_model_chat_template(e->model, NULL);
    is_chat_format *f = &e->chat;

    e->info.has_chat_template = tmpl && from_template(e, tmpl, f);
    if (e->info.has_chat_template) return INFERSCALE_OK;
    if (tmpl) is_log(IS_LOG_WARN, "the chat template of %s is not one that libllama knows; a plain format is used",
                     e->info.name);
    is_chat_format_free(f);
    return is_chat_plain(f);
}
