/* plain.c - see plain.h. */
#include "eval/plain.h"

#include <string.h>

#include "base/clock.h"
#include "base/mem.h"

void plain_system(is_buf *out, const char *system, const plain_fact *facts, size_t n)
{
    is_buf_str(out, system ? system : is_profile_system_default());
    if (n) is_buf_str(out, "\n\nUser memories:");
    for (size_t i = 0; i < n; i++) {
        char date[32];

        is_date_text(facts[i].event_time, date);
        is_buf_fmt(out, "\n- %s%s%s", date, date[0] ? ": " : "", facts[i].text);
    }
}

/* Appends the ids of a text. special: control tokens written out in it become control tokens. */
static is_status add_text(is_engine *e, const char *text, bool special, bool add_bos, is_buf *ids)
{
    int32_t *part = NULL;
    uint32_t n = 0;

    IS_TRY(is_engine_tokenize(e, NULL, text, strlen(text), special, add_bos, &part, &n));
    is_buf_add(ids, part, n * sizeof *part);
    is_free(part);
    return INFERSCALE_OK;
}

static is_status tokenise(is_engine *e, const char *system, const char *question, is_tokens *out)
{
    const is_chat_format *c = is_engine_chat(e);
    const struct {
        const char *text;
        bool special;
    } pieces[] = { { c->system_open, true },    { system, false },       { c->system_close, true },
                   { c->user_open, true },      { question, false },     { c->user_close, true },
                   { c->assistant_open, true } };
    is_buf ids = IS_BUF_INIT;
    is_status st = INFERSCALE_OK;

    for (size_t i = 0; i < sizeof pieces / sizeof *pieces && st == INFERSCALE_OK; i++)
        if (pieces[i].text[0] || i == 0)
            st = add_text(e, pieces[i].text, pieces[i].special, i == 0, &ids);
    if (st == INFERSCALE_OK && !is_buf_ok(&ids))
        st = is_fail(INFERSCALE_E_NOMEM, "out of memory while tokenising the plain prompt");
    if (st != INFERSCALE_OK) {
        is_buf_free(&ids);
        return st;
    }
    out->n = (uint32_t)(ids.len / sizeof(int32_t));
    out->ids = (int32_t *)(void *)ids.data;
    return INFERSCALE_OK;
}

static is_status build(is_engine *e, const char *system, const plain_fact *facts, size_t n,
                       const char *question, is_tokens *out)
{
    is_buf text = IS_BUF_INIT;
    is_status st;

    plain_system(&text, system, facts, n);
    st = is_buf_ok(&text) ? tokenise(e, (const char *)text.data, question, out)
                          : is_fail(INFERSCALE_E_NOMEM, "out of memory for the plain prompt");
    is_buf_free(&text);
    return st;
}

/* What stays of the prompt of another user, with another fact and another question. */
static is_status find_shared(is_engine *e, const char *system, size_t n, plain_prompt *p)
{
    static const plain_fact other = { "Of somebody else.", 0 };
    is_tokens t = { 0 };

    IS_TRY(build(e, system, &other, n > 0, "Another one?", &t));
    while (p->n_shared + 1 < p->tokens.n && p->n_shared < t.n &&
           p->tokens.ids[p->n_shared] == t.ids[p->n_shared])
        p->n_shared++;
    is_tokens_free(&t);
    return INFERSCALE_OK;
}

is_status plain_prompt_new(is_engine *e, const char *system, const plain_fact *facts, size_t n,
                           const char *question, plain_prompt *out)
{
    *out = (plain_prompt){ .tokens = { 0 } };
    IS_TRY(build(e, system, facts, n, question, &out->tokens));
    IS_TRY(find_shared(e, system, n, out));
    plain_prompt_split(out, out->n_shared);
    return INFERSCALE_OK;
}

void plain_prompt_split(plain_prompt *p, uint32_t n)
{
    p->parts[0] = (is_part){ .role = IS_ROLE_HEADER, .source = IS_SRC_COMPUTED,
                             .tokens = p->tokens.ids, .n_tokens = n };
    p->parts[1] = (is_part){ .role = IS_ROLE_QUESTION, .source = IS_SRC_COMPUTED,
                             .tokens = p->tokens.ids + n, .n_tokens = p->tokens.n - n, .pos = n };
    p->plan = (is_plan){ .n_parts = n ? 2 : 1, .parts = p->parts + (n ? 0 : 1),
                         .n_tokens = p->tokens.n };
}

void plain_prompt_free(plain_prompt *p)
{
    is_tokens_free(&p->tokens);
    *p = (plain_prompt){ .tokens = { 0 } };
}
