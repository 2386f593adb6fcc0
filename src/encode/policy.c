/* policy.c - builds encoding contexts, and says what they depend on. */
#include "encode/policy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum { W_MAX = 1000 };

is_status is_policy_parse(const char *text, is_policy *out)
{
    static const struct { const char *name; is_policy_kind kind; bool has_w; } known[] = {
        { "alone", IS_POLICY_ALONE, false }, { "header", IS_POLICY_HEADER, false },
        { "turns", IS_POLICY_TURNS, true },  { "facts", IS_POLICY_FACTS, true },
    };
    const char *colon = strchr(text, ':');
    size_t n_name = colon ? (size_t)(colon - text) : strlen(text);

    memset(out, 0, sizeof *out);
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        char *end = NULL;
        unsigned long w = 0;

        if (strlen(known[i].name) != n_name || strncmp(text, known[i].name, n_name) != 0 || known[i].has_w != (colon != NULL)) continue;
        if (colon) w = colon[1] >= '0' && colon[1] <= '9' ? strtoul(colon + 1, &end, 10) : 0;
        if (colon && known[i].kind == IS_POLICY_TURNS && end && strcmp(end, "+source") == 0) {
            out->with_source = true;
            end += strlen(end);
        }
        if (colon && (!end || *end || w < 1 || w > W_MAX)) break;
        out->kind = known[i].kind;
        out->w = (uint32_t)w;
        snprintf(out->name, sizeof out->name, "%s", text);
        return INFERSCALE_OK;
    }
    return is_fail(INFERSCALE_E_INVALID, "there is no encoding policy \"%.40s\"; use alone, header, turns:W, turns:W+source or facts:W "
                   "with W from 1 to %d", text, W_MAX);
}

void is_context_free(is_context *c)
{
    if (!c) return;
    is_tokens_free(&c->tokens);
    is_free(c->deps);
    *c = (is_context){ 0 };
}

/* Appends one item of the list in front of what is there: contexts are built from the nearest item backwards, so that the
 * farthest are the ones left out when room ends. */
static is_status prepend(is_context *c, const is_tokens *line)
{
    int32_t *ids = is_malloc((size_t)(c->tokens.n + line->n + 1) * sizeof *ids);

    if (!ids) return is_fail(INFERSCALE_E_NOMEM, "out of memory while building an encoding context");
    memcpy(ids, line->ids, line->n * sizeof *ids);
    if (c->tokens.n) memcpy(ids + line->n, c->tokens.ids, c->tokens.n * sizeof *ids);
    is_free(c->tokens.ids);
    c->tokens.ids = ids;
    c->tokens.n += line->n;
    return INFERSCALE_OK;
}

static is_status add_items(is_engine *e, const inferscale_list *items, uint32_t room, is_context *c)
{
    is_dep *deps = is_realloc(c->deps, (c->n_deps + items->n + 1) * sizeof *deps);

    if (!deps) return is_fail(INFERSCALE_E_NOMEM, "out of memory while building an encoding context");
    c->deps = deps;
    for (size_t i = items->n; i-- > 0;) {
        const inferscale_item *item = &items->items[i];
        is_tokens line = { 0 };
        is_status st = item->kind == INFERSCALE_TURNS ? is_profile_turn(e, item, &line) : is_profile_fact(e, item, &line);
        bool fits = st == INFERSCALE_OK && c->tokens.n + line.n <= room;

        if (fits) st = prepend(c, &line);
        is_tokens_free(&line);
        if (st != INFERSCALE_OK || !fits) return st;
        c->deps[c->n_deps++] = (is_dep){ item->id, item->version };
    }
    return INFERSCALE_OK;
}

/* The W turns before the source turn, and the source turn itself where the policy wants it. */
static is_status add_turns(const is_policy *policy, is_bank *bank, const is_partition *p, is_engine *e, int64_t source, uint32_t room,
                           is_context *c)
{
    inferscale_list *list = NULL;
    is_status st = INFERSCALE_OK;

    if (policy->with_source) {
        st = is_bank_get(bank, p, &source, 1, &list);
        if (st == INFERSCALE_OK) st = add_items(e, list, room, c);
        inferscale_list_free(list);
        list = NULL;
    }
    if (st == INFERSCALE_OK) st = is_bank_turns_before(bank, p, source, policy->w, &list);
    if (st == INFERSCALE_OK) st = add_items(e, list, room, c);
    inferscale_list_free(list);
    return st;
}

is_status is_policy_context(const is_policy *policy, is_bank *bank, const is_partition *p, is_engine *e, const is_profile *profile,
                            const inferscale_item *fact, uint32_t max_tokens, is_context *out)
{
    is_status st = INFERSCALE_OK;

    *out = (is_context){ 0 };
    if (policy->kind == IS_POLICY_ALONE) return INFERSCALE_OK;
    if (profile->header.n > max_tokens)
        return is_fail(INFERSCALE_E_CONTEXT, "the encoding header has %u tokens and only %u fit; use a shorter system text or a larger "
                       "context", profile->header.n, max_tokens);
    if (policy->kind == IS_POLICY_TURNS && fact->source_turn)
        st = add_turns(policy, bank, p, e, fact->source_turn, max_tokens - profile->header.n, out);
    if (policy->kind == IS_POLICY_FACTS) {
        inferscale_list *list = NULL;

        st = is_bank_facts_before(bank, p, fact->id, policy->w, &list);
        if (st == INFERSCALE_OK) st = add_items(e, list, max_tokens - profile->header.n, out);
        inferscale_list_free(list);
    }
    if (st == INFERSCALE_OK) st = prepend(out, &profile->header);
    if (st != INFERSCALE_OK) is_context_free(out);
    return st;
}
