/* policy.c - names of policies, and the contexts of those that have one context a fact. */
#include "encode/policy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "encode/encode.h"
#include "encode/nearest.h"

enum { W_MAX = 1000, PAGE_OVERLAP = 5, COMPANY_PASSES = 12, COMPANY_PASSES_MAX = 64 };

static is_status unknown(const char *text)
{
    return is_fail(INFERSCALE_E_INVALID, "there is no encoding policy \"%.40s\"; use alone, cwe:W, header, turns:W, turns:W+source, "
                   "facts:W, near:N, page:N, page:N+OVERLAP/ONE_IN@ORDER (random, time, topic), company:N or company:NxPASSES, numbers "
                   "from 1 to %d", text, W_MAX);
}

/* A number from 1 to max at *s; *s is moved behind it. 0 = there is none. */
static uint32_t number(const char **s, uint32_t max)
{
    char *end;
    unsigned long n;

    if (**s < '0' || **s > '9') return 0;
    n = strtoul(*s, &end, 10);
    *s = end;
    return n >= 1 && n <= max ? (uint32_t)n : 0;
}

/* What may follow page:N. */
static bool page_tail(const char *s, is_policy *out)
{
    static const char *const orders[] = { "@random", "@time", "@topic" };

    out->overlap = PAGE_OVERLAP;
    if (*s == '+') {
        s++;
        if (s[0] == '0' && (s[1] == 0 || s[1] == '/' || s[1] == '@')) out->overlap = 0, s++;
        else if ((out->overlap = number(&s, W_MAX)) == 0) return false;
    }
    if (*s == '/') {
        s++;
        if ((out->header_one_in = number(&s, W_MAX)) == 0) return false;
    }
    for (int i = 0; i < 3; i++)
        if (strcmp(s, orders[i]) == 0) {
            out->order = (is_page_order)i;
            return true;
        }
    return *s == 0;
}

static bool tail(const char *s, is_policy *out)
{
    if (out->kind == IS_POLICY_TURNS && strcmp(s, "+source") == 0) {
        out->with_source = true;
        return true;
    }
    if (out->kind == IS_POLICY_PAGE) return page_tail(s, out);
    if (out->kind == IS_POLICY_COMPANY) {
        out->passes = COMPANY_PASSES;
        if (*s == 'x') {
            s++;
            out->passes = number(&s, COMPANY_PASSES_MAX);
            if (out->passes == 0) return false;
        }
    }
    return *s == 0;
}

static void name_it(const char *text, is_policy *out)
{
    static const char redundant[] = "@random";
    size_t n = strlen(text), m = sizeof redundant - 1;

    if (out->kind == IS_POLICY_PAGE && n > m && strcmp(text + n - m, redundant) == 0) n -= m;
    snprintf(out->name, sizeof out->name, "%.*s", (int)n, text);
}

is_status is_policy_parse(const char *text, is_policy *out)
{
    static const struct { const char *name; is_policy_kind kind; bool has_w; } known[] = {
        { "alone", IS_POLICY_ALONE, false }, { "header", IS_POLICY_HEADER, false }, { "turns", IS_POLICY_TURNS, true },
        { "facts", IS_POLICY_FACTS, true },  { "cwe", IS_POLICY_CWE, true },        { "near", IS_POLICY_NEAR, true },
        { "page", IS_POLICY_PAGE, true },    { "company", IS_POLICY_COMPANY, true },
    };
    const char *colon = strchr(text, ':');
    size_t n_name = colon ? (size_t)(colon - text) : strlen(text);

    memset(out, 0, sizeof *out);
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        const char *s = colon ? colon + 1 : "";

        if (strlen(known[i].name) != n_name || strncmp(text, known[i].name, n_name) != 0 || known[i].has_w != (colon != NULL)) continue;
        out->kind = known[i].kind;
        if (out->kind == IS_POLICY_CWE && strcmp(s, "0") == 0) return is_policy_parse("alone", out);
        if (colon) out->w = number(&s, W_MAX);
        if ((colon && out->w == 0) || !tail(s, out) || strlen(text) >= sizeof out->name) break;
        name_it(text, out);
        return INFERSCALE_OK;
    }
    memset(out, 0, sizeof *out);
    return unknown(text);
}

bool is_policy_takes_header(const is_policy *policy, int64_t fact_id)
{
    return is_bank_one_in(fact_id, policy->header_one_in);
}

/* ---- Contexts ------------------------------------------------------------------------------------------------------------ */

void is_context_free(is_context *c)
{
    if (!c) return;
    is_tokens_free(&c->tokens);
    is_free(c->deps);
    for (uint32_t i = 0; i < c->n_stored; i++) is_segment_unref(c->stored[i]);
    is_free(c->stored);
    *c = (is_context){ 0 };
}

is_status is_context_add(is_context *c, const is_tokens *line, is_dep dep)
{
    int32_t *ids = is_realloc(c->tokens.ids, (size_t)(c->tokens.n + line->n + 1) * sizeof *ids);

    if (!ids) return is_fail(INFERSCALE_E_NOMEM, "out of memory while building an encoding context");
    c->tokens.ids = ids;
    if (dep.item_id) {
        is_dep *deps = is_realloc(c->deps, (c->n_deps + 1) * sizeof *deps);

        if (!deps) return is_fail(INFERSCALE_E_NOMEM, "out of memory while building an encoding context");
        c->deps = deps;
        c->deps[c->n_deps++] = dep;
    }
    memcpy(ids + c->tokens.n, line->ids, line->n * sizeof *ids);
    c->tokens.n += line->n;
    return INFERSCALE_OK;
}

/* The last of the items whose lines fit into the room: the farthest are the ones left out. */
static is_status add_items(is_engine *e, const is_realm *whose, const inferscale_list *items, uint32_t room, is_context *c)
{
    is_tokens *lines = is_calloc(items->n + 1, sizeof *lines);
    is_status st = lines ? INFERSCALE_OK : is_fail(INFERSCALE_E_NOMEM, "out of memory while building an encoding context");
    size_t from = items->n;

    while (st == INFERSCALE_OK && from > 0) {
        const inferscale_item *item = &items->items[from - 1];

        st = item->kind == INFERSCALE_TURNS ? is_profile_turn(e, whose, item, &lines[from - 1])
                                             : is_profile_fact(e, whose, item, &lines[from - 1]);
        if (st != INFERSCALE_OK || lines[from - 1].n > room) break;
        room -= lines[--from].n;
    }
    for (size_t i = from; st == INFERSCALE_OK && i < items->n; i++)
        st = is_context_add(c, &lines[i], (is_dep){ items->items[i].id, items->items[i].version });
    for (size_t i = 0; lines && i < items->n; i++) is_tokens_free(&lines[i]);
    is_free(lines);
    return st;
}

/* The turns before the source turn, and itself where the policy wants it. */
static is_status turns_before(const is_encoder *enc, const is_partition *p, const is_policy *policy, int64_t source, inferscale_list **out)
{
    inferscale_list *itself = NULL;
    is_status st;

    IS_TRY(is_bank_turns_before(enc->bank, p, source, policy->w, out));
    if (!policy->with_source) return INFERSCALE_OK;
    st = is_bank_get(enc->bank, p, &source, 1, &itself);
    for (size_t i = 0; st == INFERSCALE_OK && i < itself->n; i++)
        if (!itself->items[i].withdrawn) st = is_list_add(*out, &itself->items[i]);
    inferscale_list_free(itself);
    return st;
}

static is_status nearest_before(const is_encoder *enc, const is_partition *p, const is_policy *policy, const inferscale_item *fact,
                                inferscale_list **out)
{
    int64_t *ids = is_malloc(policy->w * sizeof *ids);
    size_t n = 0;
    is_status st = ids ? is_nearest(enc, p, fact, policy->w, IS_NEAREST_DENSE, ids, &n)
                       : is_fail(INFERSCALE_E_NOMEM, "out of memory for %u neighbours", policy->w);

    for (size_t i = 0; i < n / 2; i++) {
        int64_t swap = ids[i];

        ids[i] = ids[n - 1 - i]; /* the nearest last */
        ids[n - 1 - i] = swap;
    }
    if (st == INFERSCALE_OK) st = is_bank_get(enc->bank, p, ids, n, out);
    is_free(ids);
    return st;
}

is_status is_policy_context(const is_encoder *enc, const is_partition *p, const is_policy *policy, const inferscale_item *fact,
                            uint32_t max_tokens, is_context *out)
{
    const is_tokens *header = &enc->profile->header;
    const is_realm whose = is_realm_of(p);
    inferscale_list *list = NULL;
    uint32_t room = max_tokens;
    is_status st = INFERSCALE_OK;

    *out = (is_context){ 0 };
    if (policy->kind == IS_POLICY_ALONE) return INFERSCALE_OK;
    if (policy->kind == IS_POLICY_PAGE || policy->kind == IS_POLICY_COMPANY)
        return is_fail(INFERSCALE_E_INVALID, "%s is not one context a fact; encode its facts together", policy->name);
    if (policy->kind != IS_POLICY_CWE) {
        if (header->n > max_tokens)
            return is_fail(INFERSCALE_E_CONTEXT, "the encoding header has %u tokens and only %u fit; use a shorter system text or a "
                           "larger context", header->n, max_tokens);
        room -= header->n;
        st = is_context_add(out, header, (is_dep){ 0, 0 });
    }
    if (st == INFERSCALE_OK && (policy->kind == IS_POLICY_TURNS || policy->kind == IS_POLICY_CWE) && fact->source_turn)
        st = turns_before(enc, p, policy, fact->source_turn, &list);
    if (st == INFERSCALE_OK && policy->kind == IS_POLICY_FACTS) st = is_bank_facts_before(enc->bank, p, fact->id, policy->w, &list);
    if (st == INFERSCALE_OK && policy->kind == IS_POLICY_NEAR) st = nearest_before(enc, p, policy, fact, &list);
    if (st == INFERSCALE_OK && list) st = add_items(enc->engine, &whose, list, room, out);
    inferscale_list_free(list);
    if (st != INFERSCALE_OK) is_context_free(out);
    return st;
}
