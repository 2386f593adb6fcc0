/* chat_format.c - the literal pieces of the model's chat format.
 *
 * libllama's template function is no Jinja: it recognises some 55 formats. A conversation is rendered with placeholders and
 * cut at them. Pieces are always used joined (system_close + user_open, user_close + assistant_open, assistant_close +
 * user_open), so formats that merge a system text into the first user turn work too: what matters is that the joints are
 * literal. */
#include "engine/llama/internal.h"

#include <string.h>

#define SYS "\x01S\x01"
#define USR "\x01U\x01"
#define AST "\x01" "A\x01"
#define US2 "\x01V\x01"

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

/* Text between two marks of s; from/to NULL = its start/end. is_free; NULL if a mark is missing. */
static char *between(const char *s, const char *from, const char *to)
{
    const char *a = from ? strstr(s, from) : s, *b;

    if (!a) return NULL;
    if (from) a += strlen(from);
    b = to ? strstr(a, to) : a + strlen(a);
    return b ? is_strndup(a, (size_t)(b - a)) : NULL;
}

static bool ends_with(const char *s, const char *tail)
{
    size_t n = strlen(s), m = strlen(tail);

    return n >= m && strcmp(s + n - m, tail) == 0;
}

/* Cuts the longest common suffix of a and b that is at most `want` long if want fits both, else the longest there is. */
static size_t shared_tail(const char *a, const char *b, const char *want)
{
    size_t n = strlen(a), m = strlen(b), k = 0;

    if (want && *want && ends_with(a, want) && ends_with(b, want)) return strlen(want);
    while (k < n && k < m && a[n - 1 - k] == b[m - 1 - k]) k++;
    while (k > 0 && ((unsigned char)a[n - k] & 0xc0) == 0x80) k--; /* not inside a character */
    return k;
}

/* A template may write BOS itself; tokenising adds it, so it is taken off. */
static void strip_bos(const is_llama *e, char *s)
{
    llama_token bos = llama_vocab_bos(e->vocab);
    const char *text = bos == LLAMA_TOKEN_NULL ? NULL : llama_vocab_get_text(e->vocab, bos);
    size_t n = text ? strlen(text) : 0;

    if (n && llama_vocab_get_add_bos(e->vocab) && strncmp(s, text, n) == 0) memmove(s, s + n, strlen(s + n) + 1);
}

static bool complete(const is_chat_format *f)
{
    return f->system_open && f->system_close && f->user_open && f->user_close && f->assistant_open && f->assistant_close;
}

void is_chat_format_free(is_chat_format *f)
{
    is_free(f->system_open);
    is_free(f->system_close);
    is_free(f->user_open);
    is_free(f->user_close);
    is_free(f->assistant_open);
    is_free(f->assistant_close);
    memset(f, 0, sizeof *f);
}

/* joint = what stands between the user's and the assistant's text: user_close as a plain user turn shows it, then an opener. */
static void split_joint(const char *tmpl, const char *joint, is_chat_format *f)
{
    struct llama_chat_message user = { "user", USR };
    char *alone = render(tmpl, &user, 1, false), *close = alone ? between(alone, USR, NULL) : NULL;
    size_t n = close && strncmp(joint, close, strlen(close)) == 0 ? strlen(close) : 0;

    f->user_close = is_strndup(joint, n);
    f->assistant_open = is_strdup(joint + n);
    is_free(close);
    is_free(alone);
}

static bool from_template(is_llama *e, const char *tmpl, is_chat_format *f)
{
    struct llama_chat_message all[] = { { "system", SYS }, { "user", USR }, { "assistant", AST }, { "user", US2 } };
    struct llama_chat_message user = { "user", USR };
    char *text = render(tmpl, all, 4, true), *alone = render(tmpl, &user, 1, false), *open = alone ? between(alone, NULL,
        USR) : NULL;
    char *before_user = NULL, *before_user2 = NULL, *joint = NULL;
    bool has_system = text && strstr(text, SYS);
    size_t k;

    if (text && has_system) {
        f->system_open = between(text, NULL, SYS);
        before_user = between(text, SYS, USR);
    } else if (text) { /* the format has no place for a system text: it opens the user's turn */
        f->system_open = between(text, NULL, USR);
        before_user = is_strdup("\n\n");
    }
    if (text) {
        before_user2 = between(text, AST, US2);
        joint = between(text, US2, NULL);
    }
    if (open) strip_bos(e, open);
    if (f->system_open && before_user && before_user2 && joint) {
        strip_bos(e, f->system_open);
        k = has_system ? shared_tail(before_user, before_user2, open) : 0;
        f->system_close = is_strndup(before_user, strlen(before_user) - k);
        f->user_open = is_strdup(before_user + strlen(before_user) - k);
        f->assistant_close = is_strndup(before_user2, strlen(before_user2) - k);
        split_joint(tmpl, joint, f);
    }
    is_free(text);
    is_free(alone);
    is_free(open);
    is_free(before_user);
    is_free(before_user2);
    is_free(joint);
    return complete(f);
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
    f->system_open = is_strdup("");
    f->system_close = is_strdup("\n\n");
    f->user_open = is_strdup("User: ");
    f->user_close = is_strdup("\n");
    f->assistant_open = is_strdup("Assistant:");
    f->assistant_close = is_strdup("\n");
    if (complete(f)) return INFERSCALE_OK;
    return is_fail(INFERSCALE_E_NOMEM, "out of memory for the chat format");
}
