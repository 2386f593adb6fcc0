/* chat_format.c - the literal pieces of the chat format, found by having a server render its template with placeholders for all that
 * is said.
 *
 * It is rendered twice, with placeholders that differ in length, digits and the blanks at their ends. The pieces that the first
 * rendering gives must make up the second: a template that reorders, drops or changes what is said, or writes today's date, does not
 * pass, and a plain format is used (counted, with the reason). A template that only trims passes, and it is said: its pieces are
 * literal all the same, and blanks at the ends of what is said are tokens like others. */
#include "engine/chat_pieces.h"
#include "engine/vllm/internal.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

static const is_chat_marks first_said = { "Qsystemz", "Quserz", "Qassistantz", "Qsecondz" };
static const is_chat_marks blank_said = { "  Xsys 41 tem words\n", " Xus 1999 er\n\n", "\nXassi 7 stant, longer than before  ", "\tXse 23 cond " };
static const is_chat_marks tight_said = { "Xsys 41 tem words", "Xus 1999 er", "Xassi 7 stant, longer than before", "Xse 23 cond" };

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
static is_status render(vllm *e, const is_chat_marks *s, bool whole, bool system, char **out)
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
    request = json_pack("{s:o, s:b}", "messages", list, "add_generation_prompt", (int)whole);
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

/* The template may write BOS itself; tokenising adds it, so it is taken off. NULL = it does not. */
static const char *added_bos(const vllm *e)
{
    const vllm_special *bos = e->model->adds_bos ? vllm_model_special(e->model, e->model->bos) : NULL;

    return bos ? bos->text : NULL;
}

/* ---- Is it what it looks like? ------------------------------------------------------------------------------------------- */

/* The first rendering with what the second one says, in *out (is_free); *out NULL: a placeholder does not stand in it
 * once and in order. E_NOMEM. */
static is_status substitute(const char *whole, const is_chat_marks *s, bool system, char **out)
{
    const char *from[] = { first_said.system, first_said.user, first_said.assistant, first_said.second };
    const char *to[] = { s->system, s->user, s->assistant, s->second };
    is_buf b = IS_BUF_INIT;

    *out = NULL;
    for (size_t i = system ? 0 : 1; i < 4; i++) {
        const char *at = strstr(whole, from[i]);

        if (!at || strstr(at + 1, from[i])) {
            is_buf_free(&b);
            return INFERSCALE_OK;
        }
        is_buf_add(&b, whole, (size_t)(at - whole));
        is_buf_str(&b, to[i]);
        whole = at + strlen(from[i]);
    }
    is_buf_str(&b, whole);
    *out = is_buf_take(&b);
    return *out ? INFERSCALE_OK : vllm_no_memory();
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

is_status vllm_chat_doubt(const char *whole, const char *again, bool system, bool *trims, const char **why)
{
    char *as_is = NULL, *tight = NULL;
    is_status st = substitute(whole, &blank_said, system, &as_is);

    if (st == INFERSCALE_OK) st = substitute(whole, &tight_said, system, &tight);
    *why = "it says something twice, or not in order";
    if (as_is && tight) {
        *trims = strcmp(again, tight) == 0;
        *why = strcmp(again, as_is) == 0 || *trims ? NULL : "it reorders, drops or changes what is said";
    }
    if (holds_today(again)) *why = "it writes today's date";
    is_free(as_is);
    is_free(tight);
    return st;
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
        bool found = false;

        if (strstr(alone, first_said.user)) st = is_chat_cut(&first_said, whole, alone, added_bos(e), f, &found);
        *why = "what is said does not stand in it in order";
        if (st == INFERSCALE_OK && found) st = vllm_chat_doubt(whole, again, system, trims, why);
    }
    is_free(whole);
    is_free(alone);
    is_free(again);
    return st;
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
    is_chat_format_free(&e->chat);
    return is_chat_plain(&e->chat);
}
