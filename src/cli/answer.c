/* answer.c - answers for people and for programs. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "cli/answer.h"
#include "cli/out.h"
#include "cli/store.h"
#include "exchange/json.h"

/* A search by meaning makes it load. */
static inferscale_status search_by_meaning(inferscale *is, const inferscale_scope *scope)
{
    inferscale_recall_options o = INFERSCALE_RECALL_OPTIONS_INIT;
    inferscale_list *list = NULL;
    inferscale_status st;
    o.k = 1;
    o.method = INFERSCALE_DENSE;
    st = inferscale_recall(is, scope, "load", &o, &list);
    inferscale_list_free(list);
    return st;
}

inferscale_status cli_load_embedder(const cli_args *a, inferscale *is, const inferscale_scope *scope)
{
    return cli_str(a, "--embedder", NULL) ? search_by_meaning(is, scope) : INFERSCALE_OK;
}

inferscale_status cli_load(const cli_args *a, inferscale *is, const inferscale_scope *scope, const inferscale_ask_options *ask,
                           inferscale_model_info *info, double *ms)
{
    double t0 = is_now_ms();
    inferscale_status st;
    st = inferscale_model(is, info);
    if (st == INFERSCALE_OK && ask->mode != INFERSCALE_MODE_NONE &&
        !(ask->recall && ask->recall->method == INFERSCALE_LEXICAL)) {
        inferscale_status searched = search_by_meaning(is, scope);
        if (cli_str(a, "--embedder", NULL)) st = searched;
    }
    *ms = is_now_ms() - t0;
    return st;
}

json_t *cli_answer_json(inferscale *is, const inferscale_scope *scope, const inferscale_answer *r)
{
    json_t *facts = json_array(), *o;
    for (size_t i = 0; i < r->n_facts; i++) {
        const inferscale_used *u = &r->facts[i];
        json_t *fact = json_pack("{s:I,s:i,s:f,s:I,s:s}", "id", (json_int_t)u->id, "version", u->version, "score", u->score,
                                 "tokens", (json_int_t)u->tokens, "source", cli_source_name(u->source));
        json_object_set_new(fact, "policy", u->policy[0] ? json_string(u->policy) : json_null());
        char *text = is ? cli_fact_text(is, scope, u->id) : NULL;
        if (text) json_object_set_new(fact, "text", cli_json_text(text));
        is_free(text);
        json_array_append_new(facts, fact);
    }
    o = json_pack("{s:o,s:s,s:s,s:o,s:o,s:I,s:o,s:I,s:I,s:I}", "answer", cli_json_text(r->text), "mode", cli_mode_name(r->mode), "finish",
                  r->finish ? r->finish : "", "fallback", cli_json_text(r->fallback ? r->fallback : ""),
                  "fallbacks", is_json_fallbacks(r->fallbacks), "not_embedded", (json_int_t)r->n_unembedded, "facts", facts,
                  "facts_dropped", (json_int_t)r->n_dropped, "facts_refined", (json_int_t)r->n_refined, "facts_exact",
                  (json_int_t)r->n_exact);
    json_object_set_new(o, "rows_digest", json_string(r->rows_digest));
    const struct { const char *name; uint32_t v; } counts[] = {
        { "tokens_prompt", r->tokens_prompt },     { "tokens_computed", r->tokens_computed },
        { "tokens_injected", r->tokens_injected }, { "tokens_resident", r->tokens_resident },
        { "tokens_answer", r->tokens_answer },
    };
    const struct { const char *name; double v; } times[] = {
        { "ttft_ms", r->ttft_ms },         { "embed_ms", r->embed_ms },
        { "recall_ms", r->recall_ms },     { "plan_ms", r->plan_ms },
        { "compose_ms", r->compose_ms },   { "inject_ms", r->inject_ms },
        { "question_ms", r->question_ms }, { "first_token_ms", r->first_token_ms },
        { "total_ms", r->total_ms },
    };
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        json_object_set_new(o, counts[i].name, json_integer(counts[i].v));
    for (size_t i = 0; i < sizeof times / sizeof *times; i++) json_object_set_new(o, times[i].name, json_real(times[i].v));
    return o;
}

void cli_answer_facts(FILE *f, inferscale *is, const inferscale_scope *scope, const inferscale_answer *r)
{
    int columns = cli_columns();
    fprintf(f, "%s%6s  %6s  %6s  %-8s  TEXT%s\n", cli_on_in(f, CLI_DIM), "ID", "SCORE", "TOKENS", "SOURCE", cli_off_in(f));
    for (size_t i = r->n_facts; i-- > 0;) {
        const inferscale_used *u = &r->facts[i];
        char *text = cli_fact_text(is, scope, u->id);
        fprintf(f, "%6lld  %6.2f  %6u  %-8s  ", (long long)u->id, u->score, u->tokens, cli_source_name(u->source));
        cli_put_cut(f, text ? text : "(forgotten meanwhile)", columns > 50 ? columns - 34 : columns ? 16 : 0);
        fputc('\n', f);
        is_free(text);
    }
}

static void part(FILE *f, const char *name, double ms)
{
    char text[32];
    cli_ms(ms, text);
    fprintf(f, "  %-14s %10s\n", name, text);
}

void cli_answer_stats(FILE *f, const inferscale_answer *r)
{
    fprintf(f, "%sprompt %u tokens: %u computed, %u injected, %u already there; answer %u%s\n", cli_on_in(f, CLI_DIM),
            r->tokens_prompt, r->tokens_computed, r->tokens_injected, r->tokens_resident, r->tokens_answer, cli_off_in(f));
    part(f, "embed", r->embed_ms);
    part(f, "recall", r->recall_ms);
    part(f, "plan", r->plan_ms);
    part(f, "compose", r->compose_ms);
    part(f, "inject", r->inject_ms);
    part(f, "question", r->question_ms);
    part(f, "first token", r->first_token_ms);
    part(f, "TTFT", r->ttft_ms);
    part(f, "total", r->total_ms);
}

int cli_stream(void *ctx, const char *text, size_t len)
{
    char piece[512];
    if (ctx && len) *(bool *)ctx = true;
    if (!isatty(STDOUT_FILENO)) return fwrite(text, 1, len, stdout) != len || fflush(stdout) != 0; /* a pipe, too, hears it as it is told */
    while (len) {
        size_t n = len < sizeof piece - 1 ? len : sizeof piece - 1;
        while (n < len && n > 1 && ((unsigned char)text[n] & 0xc0) == 0x80) n--; /* end between characters */
        memcpy(piece, text, n);
        piece[n] = '\0';
        cli_put_text(stdout, piece, false);
        text += n;
        len -= n;
    }
    return fflush(stdout) != 0;
}
