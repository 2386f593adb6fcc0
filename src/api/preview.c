/* preview.c - what a question would run: the plan and the final prompt, without running the model. */
#include <stdio.h>
#include <string.h>

#include "api/answer.h"
#include "base/mem.h"

enum { CONTROLS_MAX = 64, PIECE_MAX = 512 };

/* Control tokens have no text of their own in an answer; here they are written as the chat format writes them. */
typedef struct controls {
    struct { int32_t token; char text[64]; } known[CONTROLS_MAX];
    size_t n;
} controls;

/* If text[n] is one control token, its spelling is known from now on. */
static is_status learn(is_engine *e, controls *c, const char *text, size_t n)
{
    int32_t *ids = NULL;
    uint32_t n_ids = 0;
    char piece[PIECE_MAX];

    if (n >= sizeof c->known[0].text || c->n == CONTROLS_MAX) return INFERSCALE_OK;
    IS_TRY(is_engine_tokenize(e, NULL, text, n, true, false, &ids, &n_ids));
    if (n_ids == 1 && is_engine_piece(e, ids[0], piece, (int)sizeof piece) == 0) {
        c->known[c->n].token = ids[0];
        snprintf(c->known[c->n++].text, sizeof c->known[0].text, "%.*s", (int)n, text);
    }
    is_free(ids);
    return INFERSCALE_OK;
}

/* Control tokens are spelt <...> or [...] in every chat format that we know. */
static is_status learn_from(is_engine *e, controls *c, const char *format)
{
    for (const char *at = format; (at = strpbrk(at, "<[")) != NULL; at++) {
        const char *end = strchr(at, *at == '<' ? '>' : ']');

        if (end) IS_TRY(learn(e, c, at, (size_t)(end - at) + 1));
    }
    return INFERSCALE_OK;
}

static is_status learn_all(is_engine *e, controls *c)
{
    const is_chat_format *f = is_engine_chat(e);
    const char *const pieces[] = { f->system_open, f->system_close, f->user_open, f->user_close, f->assistant_open, f->assistant_close,
                                   "<s> <bos> <|begin_of_text|> <|endoftext|> <|startoftext|>" }; /* what texts begin with */

    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) IS_TRY(learn_from(e, c, pieces[i]));
    return INFERSCALE_OK;
}

static void add_token(is_engine *e, const controls *c, int32_t token, is_buf *out)
{
    char piece[PIECE_MAX];
    int n = is_engine_piece(e, token, piece, (int)sizeof piece);

    if (n > 0) {
        is_buf_add(out, piece, (size_t)n);
        return;
    }
    for (size_t i = 0; i < c->n; i++)
        if (c->known[i].token == token) {
            is_buf_str(out, c->known[i].text);
            return;
        }
    is_buf_fmt(out, "<token %d>", token);
}

static char *part_text(is_engine *e, const controls *c, const is_part *part)
{
    is_buf b = IS_BUF_INIT;

    is_buf_str(&b, "");
    for (uint32_t i = 0; i < part->n_tokens; i++) add_token(e, c, part->tokens[i], &b);
    return is_buf_take(&b);
}

/* The tail has the footer's role, and stands behind the question. */
static const char *role_name(const is_plan *plan, uint32_t i)
{
    if (i > 0 && plan->parts[i - 1].role == IS_ROLE_QUESTION) return "tail";
    switch (plan->parts[i].role) {
    case IS_ROLE_HEADER: return "header";
    case IS_ROLE_FACT: return "fact";
    case IS_ROLE_FOOTER: return "footer";
    case IS_ROLE_QUESTION: return "question";
    default: return "turn";
    }
}

static double score_of(const inferscale_answer *a, int64_t id)
{
    for (size_t i = 0; i < a->n_facts; i++)
        if (a->facts[i].id == id) return a->facts[i].score;
    return 0;
}

static is_status add_parts(is_asking *a, const is_plan *plan, const controls *c, inferscale_preview *out)
{
    is_buf prompt = IS_BUF_INIT;

    out->parts = is_calloc(plan->n_parts + 1, sizeof *out->parts);
    if (!out->parts) return is_fail(INFERSCALE_E_NOMEM, "out of memory");
    is_buf_str(&prompt, "");
    for (uint32_t i = 0; i < plan->n_parts; i++) {
        const is_part *part = &plan->parts[i];
        char *text = part_text(a->is->engine, c, part);

        out->parts[i] = (inferscale_preview_part){ .role = role_name(plan, i), .source = (int)part->source, .id = part->fact_id,
                                                   .version = part->version, .score = score_of(a->answer, part->fact_id),
                                                   .position = part->pos, .tokens = part->n_tokens, .text = text };
        out->n_parts++;
        if (text) is_buf_str(&prompt, text);
        else prompt.failed = true;
        if (part->source == IS_SRC_STORED) out->tokens_stored += part->n_tokens;
        else out->tokens_computed += part->n_tokens;
    }
    out->tokens_prompt = plan->n_tokens;
    out->prompt = is_buf_take(&prompt);
    return out->prompt ? INFERSCALE_OK : is_fail(INFERSCALE_E_NOMEM, "out of memory");
}

static is_status describe(is_asking *a, is_planned *planned, inferscale_preview *out)
{
    const is_plan *plan = a->o.mode == INFERSCALE_MODE_TEXT ? is_planned_twin(planned) : is_planned_plan(planned);
    controls c = { .n = 0 };

    IS_TRY(learn_all(a->is->engine, &c));
    IS_TRY(add_parts(a, plan, &c, out));
    is_buf_str(&a->why, "");
    out->fallback = is_buf_take(&a->why);
    if (!out->fallback) return is_fail(INFERSCALE_E_NOMEM, "out of memory");
    out->mode = a->answer->mode;
    out->n_dropped = a->answer->n_dropped;
    out->fallbacks = a->answer->fallbacks;
    out->n_unembedded = a->answer->n_unembedded;
    out->embed_ms = a->answer->embed_ms;
    out->recall_ms = a->answer->recall_ms;
    out->plan_ms = a->answer->plan_ms;
    return INFERSCALE_OK;
}

is_status inferscale_dry_run(inferscale *is, const inferscale_scope *scope, const char *question, const inferscale_ask_options *options,
                             inferscale_preview **out)
{
    inferscale_preview *p;
    is_planned *planned = NULL;
    is_asking a;
    is_status st;

    if (!out) return is_fail(INFERSCALE_E_INVALID, "there is no place for the plan; pass its address");
    *out = NULL;
    IS_TRY(is_handle_check(is));
    IS_TRY(is_scope_check(scope));
    p = is_calloc(1, sizeof *p);
    if (!p) return is_fail(INFERSCALE_E_NOMEM, "out of memory");
    st = is_asking_begin(&a, is, scope, question, options);
    if (st == INFERSCALE_OK) st = is_asking_plan(&a, &planned);
    if (st == INFERSCALE_OK) st = describe(&a, planned, p);
    is_planned_free(planned);
    is_asking_free(&a);
    if (st == INFERSCALE_OK) *out = p;
    else inferscale_preview_free(p);
    return st;
}

void inferscale_preview_free(inferscale_preview *preview)
{
    if (!preview) return;
    for (size_t i = 0; i < preview->n_parts; i++) is_free((char *)(uintptr_t)preview->parts[i].text);
    is_free(preview->parts);
    is_free(preview->prompt);
    is_free(preview->fallback);
    is_free(preview);
}
