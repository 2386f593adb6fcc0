/* chat_format.c - the literal pieces of the chat format, found by having a server render its template with placeholders for all that
 * is said.
 *
 * It is rendered twice, with placeholders that differ in length, digits and the blanks at their ends. The pieces that the first
 * rendering gives must make up the second: a template that reorders, drops or changes what is said, or writes today's date, does not
 * pass, and a plain format is used (counted, with the reason). A template that only trims passes, and it is said: its pieces are
 * literal all the same, and blanks at the ends of what is said are tokens like others. */
#include "engine/vllm/internal.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

typedef struct said { const char *system, *user, *assistant, *second; } said;

static const said first_said = { "Qsystemz", "Quserz", "Qassistantz", "Qsecondz" };
static const said blank_said = { "  Xsys 41 tem words\n", " Xus 1999 er\n\n", "\nXassi 7 stant, longer than before  ", "\tXse 23 cond " };
static const said tight_said = { "Xsys 41 tem words", "Xus 1999 er", "Xassi 7 stant, longer than before", "Xse 23 cond" };

static int add_bytes(const char *p, size_t n, void *buf)
{
    is_buf_add(buf, p, n);
    return is_buf_ok(buf) ? 0 : -1;
}

/* ---- Rendering ----------------------------------------------------------------------------------------------------------- */

static json_t *message(const char *role, const char *content)
{
    return json_pack("{s:s, s:s}", "role", role, "content", content);
}

/* Whole: system, user, assistant, user, opener of the answer. Else one user turn, without an opener. Without system where the
 * template has no place for one. Strings hold no NUL. */
static is_status render(vllm *e, const said *s, bool whole, bool system, char **out)
{
    json_t *list = json_array(), *answer = NULL, *request;
    is_buf body = IS_BUF_INIT, text = IS_BUF_INIT;
    int32_t *ids = NULL;
    uint32_t n = 0;
    is_status st;

    *out = NULL;
    if (whole && system) json_array_append_new(list, message("system", s->system));
    json_array_append_new(list, message("user", s->user));
    if (whole) json_array_append_new(list, message("assistant", s->assistant));
    if (whole) json_array_append_new(list, message("user", s->second));
    request = json_pack("{s:s, s:o, s:b}", "model", e->model->name, "messages", list, "add_generation_prompt", (int)whole);
    if (!request || json_dump_callback(request, add_bytes, &body, JSON_COMPACT) != 0) {
        json_decref(request);
        is_buf_free(&body);
        return vllm_no_memory();
    }
    json_decref(request);
    st = vllm_ask_any(e, NULL, "/tokenize", (const char *)body.data, (vllm_flags){ 0 }, vllm_limit.small_ms, &answer);
    if (st == INFERSCALE_OK) st = vllm_ids_read(e, answer, &ids, &n);
    if (st == INFERSCALE_OK) {
        is_buf_str(&text, "");
        vllm_model_text(e->model, ids, n, &text);
        if (is_buf_ok(&text)) *out = is_buf_take(&text);
        else st = vllm_no_memory();
    }
    is_buf_free(&text);
    is_buf_free(&body);
    is_free(ids);
    json_decref(answer);
    return st;
}

/* ---- Cutting ------------------------------------------------------------------------------------------------------------- */

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

/* How many bytes at the ends of a and b are the opener of a user turn: `want`, or the longest they share. */
static size_t shared_tail(const char *a, const char *b, const char *want)
{
    size_t n = strlen(a), m = strlen(b), k = 0;

    if (want && *want && ends_with(a, want) && ends_with(b, want)) return strlen(want);
    while (k < n && k < m && a[n - 1 - k] == b[m - 1 - k]) k++;
    while (k > 0 && ((unsigned char)a[n - k] & 0xc0) == 0x80) k--; /* not inside a character */
    return k;
}

/* The template may write BOS itself; tokenising adds it, so it is taken off. */
static void strip_bos(const vllm *e, char *s)
{
    const vllm_special *bos = e->model->adds_bos ? vllm_model_special(e->model, e->model->bos) : NULL;

    if (bos && strncmp(s, bos->text, bos->len) == 0) memmove(s, s + bos->len, strlen(s + bos->len) + 1);
}

static bool complete(const is_chat_format *f)
{
    return f->system_open && f->system_close && f->user_open && f->user_close && f->assistant_open && f->assistant_close;
}

void vllm_chat_free(is_chat_format *f)
{
    is_free(f->system_open);
    is_free(f->system_close);
    is_free(f->user_open);
    is_free(f->user_close);
    is_free(f->assistant_open);
    is_free(f->assistant_close);
    memset(f, 0, sizeof *f);
}

/* Pieces from the whole rendering and the one of a user turn alone; incomplete if a placeholder is not where it should be. */
static void cut(const vllm *e, const char *whole, const char *alone, bool system, is_chat_format *f)
{
    const said *s = &first_said;
    char *open = between(alone, NULL, s->user), *close = between(alone, s->user, NULL);
    char *before_user = system ? between(whole, s->system, s->user) : is_strdup("\n\n"), *before_second = between(whole, s->assistant, s->second);
    char *joint = between(whole, s->second, NULL);

    f->system_open = between(whole, NULL, system ? s->system : s->user);
    if (open) strip_bos(e, open);
    if (f->system_open) strip_bos(e, f->system_open);
    if (before_user && before_second && joint && close) {
        size_t k = system ? shared_tail(before_user, before_second, open) : 0;
        size_t n = strncmp(joint, close, strlen(close)) == 0 ? strlen(close) : 0;

        f->system_close = is_strndup(before_user, strlen(before_user) - k);
        f->user_open = is_strdup(before_user + strlen(before_user) - k);
        f->assistant_close = is_strndup(before_second, strlen(before_second) - k);
        f->user_close = is_strndup(joint, n);
        f->assistant_open = is_strdup(joint + n);
    }
    is_free(open);
    is_free(close);
    is_free(before_user);
    is_free(before_second);
    is_free(joint);
}

/* ---- Is it what it looks like? ------------------------------------------------------------------------------------------- */

/* The first rendering with what the second one says; NULL if a placeholder does not stand in it once and in order, or without memory. */
static char *substitute(const char *whole, const said *s, bool system)
{
    const char *from[] = { first_said.system, first_said.user, first_said.assistant, first_said.second };
    const char *to[] = { s->system, s->user, s->assistant, s->second };
    is_buf b = IS_BUF_INIT;

    for (size_t i = system ? 0 : 1; i < 4; i++) {
        const char *at = strstr(whole, from[i]);

        if (!at || strstr(at + 1, from[i])) {
            is_buf_free(&b);
            return NULL;
        }
        is_buf_add(&b, whole, (size_t)(at - whole));
        is_buf_str(&b, to[i]);
        whole = at + strlen(from[i]);
    }
    is_buf_str(&b, whole);
    return is_buf_take(&b);
}

static bool holds_today(const char *text)
{
    static const char *const forms[] = { "%Y-%m-%d", "%d %b %Y", "%d %B %Y", "%B %d, %Y", "%b %d, %Y", "%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y" };
    time_t now = time(NULL);

    for (int day = -1; day <= 1; day++) { /* the server's clock may be in another zone */
        time_t then = now + day * 86400;
        struct tm tm;
        char date[64];

        gmtime_r(&then, &tm);
        for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
            if (strftime(date, sizeof date, forms[i], &tm) && strstr(text, date)) return true;
    }
    return false;
}

/* Why the pieces are not used; NULL if they are. *trims: the template takes blanks off. */
static const char *doubt(const char *whole, const char *again, bool system, bool *trims)
{
    char *as_is = substitute(whole, &blank_said, system), *tight = substitute(whole, &tight_said, system);
    const char *why = "it says something twice, or not in order";

    if (as_is && tight) {
        *trims = strcmp(again, tight) == 0;
        why = strcmp(again, as_is) == 0 || *trims ? NULL : "it reorders, drops or changes what is said";
    }
    if (holds_today(again)) why = "it writes today's date";
    is_free(as_is);
    is_free(tight);
    return why;
}

/* Pieces of the server's template into f; *why says why they cannot be used. */
static is_status from_template(vllm *e, is_chat_format *f, bool *trims, const char **why)
{
    char *whole = NULL, *alone = NULL, *again = NULL;
    bool system = true;
    is_status st = render(e, &first_said, true, true, &whole);

    *why = NULL;
    if (st == INFERSCALE_E_INVALID || (st == INFERSCALE_OK && !strstr(whole, first_said.system))) { /* no place for a system text */
        system = false;
        is_free(whole);
        whole = NULL;
        st = render(e, &first_said, true, false, &whole);
    }
    if (st == INFERSCALE_OK) st = render(e, &first_said, false, false, &alone);
    if (st == INFERSCALE_OK) st = render(e, &blank_said, true, system, &again);
    if (st == INFERSCALE_E_INVALID) {
        st = INFERSCALE_OK;
        *why = "the server has none, or it takes no conversation of user and assistant";
    } else if (st == INFERSCALE_OK) {
        cut(e, whole, alone, system, f);
        *why = complete(f) ? doubt(whole, again, system, trims) : "what is said does not stand in it in order";
    }
    is_free(whole);
    is_free(alone);
    is_free(again);
    return st;
}

static is_status plain_format(is_chat_format *f)
{
    vllm_chat_free(f);
    f->system_open = is_strdup("");
    f->system_close = is_strdup("\n\n");
    f->user_open = is_strdup("User: ");
    f->user_close = is_strdup("\n");
    f->assistant_open = is_strdup("Assistant:");
    f->assistant_close = is_strdup("\n");
    return complete(f) ? INFERSCALE_OK : vllm_no_memory();
}

is_status vllm_chat_find(vllm *e)
{
    const char *why = NULL;
    bool trims = false;

    IS_TRY(from_template(e, &e->chat, &trims, &why));
    e->has_chat = why == NULL;
    if (trims && !why) {
        snprintf(e->chat_why, sizeof e->chat_why, "it takes blanks off the ends of what is said; they are kept here");
        is_log(IS_LOG_INFO, "the chat template of %s takes blanks off the ends of what is said; they are kept here", e->model->name);
    }
    if (!why) return INFERSCALE_OK;
    snprintf(e->chat_why, sizeof e->chat_why, "%s", why);
    VLLM_COUNT(e, chat_fallbacks, 1);
    is_log(IS_LOG_WARN, "the chat template of %s cannot be used in pieces (%s); a plain format is used", e->model->name, why);
    return plain_format(&e->chat);
}
