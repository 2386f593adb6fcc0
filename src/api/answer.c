/* answer.c - from a question to a prompt in the engine: find, plan, inject or compute. Every way in which less was done than was asked
 * for is noted, logged and handed to the caller (inferscale_answer.fallback). */
#include "api/answer.h"
#include "api/talks.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

enum { K_DEFAULT = 10, K_MAX = 1000, TOKENS_DEFAULT = 128 };

/* ---- Begin --------------------------------------------------------------------------------------------------------------- */

static is_status check_options(const inferscale_ask_options *o)
{
    if (o->struct_size < sizeof *o)
        return is_fail(INFERSCALE_E_INVALID, "the ask options are not initialised; use INFERSCALE_ASK_OPTIONS_INIT");
    if (o->mode < INFERSCALE_MODE_KV || o->mode > INFERSCALE_MODE_NONE)
        return is_fail(INFERSCALE_E_INVALID, "mode is %d; use INFERSCALE_MODE_KV, _TEXT or _NONE", o->mode);
    if (o->k > K_MAX) return is_fail(INFERSCALE_E_INVALID, "k is %u; use at most %d facts", o->k, K_MAX);
    if (!(o->temperature >= 0) || o->temperature > 100)
        return is_fail(INFERSCALE_E_INVALID, "temperature is %g; use 0 (greedy) or more", o->temperature);
    if (!(o->top_p >= 0) || !(o->min_p >= 0) || o->min_p > 1)
        return is_fail(INFERSCALE_E_INVALID, "top_p is %g and min_p is %g; use values from 0 to 1", o->top_p, o->min_p);
    if (o->stage && o->stage != INFERSCALE_STAGE_FIRST && o->stage != INFERSCALE_STAGE_REFINE)
        return is_fail(INFERSCALE_E_INVALID, "stage is %d; use 0 (the best rows), INFERSCALE_STAGE_FIRST or _REFINE", o->stage);
    return INFERSCALE_OK;
}

is_status is_asking_begin(is_asking *a, inferscale *is, const inferscale_scope *scope, const char *question,
                          const inferscale_ask_options *options)
{
    memset(a, 0, sizeof *a);
    a->t0_ms = is_now_ms();
    IS_TRY(is_handle_check(is));
    IS_TRY(is_text_check(question, "question"));
    a->o = (inferscale_ask_options)INFERSCALE_ASK_OPTIONS_INIT;
    if (options) {
        IS_TRY(check_options(options));
        a->o = *options;
    }
    if (!scope) a->o.mode = INFERSCALE_MODE_NONE;
    if (!a->o.k) a->o.k = K_DEFAULT;
    if (!a->o.max_tokens) a->o.max_tokens = TOKENS_DEFAULT;
    a->is = is;
    a->scope = scope;
    a->question = question;
    a->answer = is_calloc(1, sizeof *a->answer);
    if (!a->answer) return is_fail(INFERSCALE_E_NOMEM, "out of memory");
    a->answer->mode = a->o.mode;
    a->answer->finish = "stop";
    is_gate_enter(is->gate);
    a->inside = true;
    is_hold_enter(&a->hold, is, a->o.recall && a->o.recall->struct_size >= sizeof *a->o.recall ? a->o.recall->as_of : 0);
    return INFERSCALE_OK;
}

void is_asking_free(is_asking *a)
{
    is_hold_leave(&a->hold);
    if (a->inside) is_gate_leave(a->is->gate);
    a->inside = false;
    inferscale_answer_free(a->answer);
    a->answer = NULL;
    is_free(a->variants);
    a->variants = NULL;
    is_sought_free(&a->sought);
    is_made_of_free(&a->used);
    is_buf_free(&a->why);
    is_buf_free(&a->told);
    is_free(a->bias);
    a->bias = NULL;
}

void is_asking_again(is_asking *a)
{
    is_buf_clear(&a->why);
    is_hold_nothing(&a->hold);
    a->n_variants = 0;
    a->answer->n_unembedded = a->answer->fallbacks = 0;
    a->answer->mode = a->o.mode;
}

uint32_t is_asking_room(is_asking *a)
{
    const uint32_t n_ctx = is_engine_describe(a->is->engine)->n_ctx, taken = a->o.max_tokens + a->shape.pos0;

    return n_ctx > taken && taken >= a->shape.pos0 ? n_ctx - taken : 0;
}

/* ---- Find ---------------------------------------------------------------------------------------------------------------- */

is_status is_asking_lease(is_asking *a)
{
    is_status st = a->scope ? is_bank_partition(a->is->bank, a->scope, false, &a->p) : INFERSCALE_E_NOTFOUND;
    bool gone = false;

    a->has_partition = st == INFERSCALE_OK;
    if (st == INFERSCALE_E_NOTFOUND) return INFERSCALE_OK; /* nothing remembered yet */
    if (st == INFERSCALE_OK) st = is_hold_lease(&a->hold, &a->p, &gone);
    return st == INFERSCALE_OK && gone ? is_asking_gone() : st;
}

is_status is_asking_gone(void)
{
    return is_fail(INFERSCALE_E_STALE, "what was to be used was changed or forgotten meanwhile; plan again");
}

static is_status search(is_asking *a, is_hit **hits, size_t *n)
{
    inferscale_recall_options r = INFERSCALE_RECALL_OPTIONS_INIT;
    inferscale_list told = { 0 };
    char why[256];

    if (a->o.recall) {
        if (a->o.recall->struct_size < sizeof r)
            return is_fail(INFERSCALE_E_INVALID, "the recall options are not initialised; use INFERSCALE_RECALL_OPTIONS_INIT");
        r = *a->o.recall;
    }
    r.k = a->o.k + (uint32_t)a->n_skip <= K_MAX ? a->o.k + (uint32_t)a->n_skip : K_MAX;
    r.kinds = INFERSCALE_FACTS;
    IS_TRY(
        is_handle_find(a->is, &a->p, a->scope, a->question, &a->sought, &r, hits, n, &told, why));
    if (why[0]) is_asking_note(a, told.fallbacks, "%s", why);
    a->answer->n_unembedded = told.n_unembedded;
    a->answer->index_ms = told.index_ms;
    a->answer->index_built = told.index_built;
    a->answer->embed_ms = told.embed_ms;
    a->answer->recall_ms = told.recall_ms;
    return INFERSCALE_OK;
}

static is_status no_such_fact(int64_t id, const char *why)
{
    return is_fail(INFERSCALE_E_NOTFOUND, "fact %lld of ids %s; leave it out", (long long)id, why);
}

/* The facts that were named, in that order: each must be there and hold now. */
static is_status take_named(is_asking *a, is_hit **hits, size_t *n)
{
    const is_names none = { 0 };
    inferscale_list *l = NULL;
    is_status st = is_bank_get(a->is->bank, &a->p, a->c.ids, a->c.n_ids, &l);

    *hits = is_calloc(a->c.n_ids + 1, sizeof **hits);
    if (st == INFERSCALE_OK && !*hits) st = is_fail(INFERSCALE_E_NOMEM, "out of memory");
    for (size_t i = 0; st == INFERSCALE_OK && i < a->c.n_ids; i++) {
        const inferscale_item *item = i < l->n && l->items[i].id == a->c.ids[i] ? &l->items[i] : NULL;
        bool holds = false;

        if (!item || item->kind != INFERSCALE_FACTS) {
            st = no_such_fact(a->c.ids[i], "is not among this owner's");
            break;
        }
        const is_dep dep = { item->id, item->version };
        st = is_bank_still_holds(a->is->bank, &a->p, &dep, 1, &none, a->hold.as_of, &holds);
        if (st == INFERSCALE_OK && !holds) st = no_such_fact(item->id, "has expired or was superseded");
        (*hits)[(*n)++] = (is_hit){ .id = item->id, .version = item->version };
    }
    inferscale_list_free(l);
    return st;
}

static is_status find(is_asking *a, is_hit **hits, size_t *n)
{
    IS_TRY(is_asking_lease(a));
    if (!a->has_partition) return a->c.n_ids ? no_such_fact(a->c.ids[0], "is not among this owner's") : INFERSCALE_OK;
    return a->c.n_ids ? take_named(a, hits, n) : search(a, hits, n);
}

static bool placed_already(const is_asking *a, int64_t id, int version)
{
    for (size_t i = 0; i < a->n_skip; i++)
        if (a->skip[i].item_id == id && a->skip[i].version == version) return true;
    return false;
}

/* ---- Segments ------------------------------------------------------------------------------------------------------------ */

/* Token ids of the fact as it stands in the prompt: the segment's own, else tokenised now. */
static is_status fact_tokens(is_asking *a, const inferscale_item *item, is_plan_fact *f)
{
    const is_segment_desc *d;
    const is_realm *whose;

    if (!f->segment) {
        IS_TRY(is_asking_realm(a, &whose));
        return is_profile_fact(a->is->engine, whose, item, &f->tokens);
    }
    d = is_segment_info(f->segment);
    f->tokens.ids = is_malloc(d->n_tokens * sizeof(int32_t));
    if (!f->tokens.ids) return is_fail(INFERSCALE_E_NOMEM, "out of memory");
    memcpy(f->tokens.ids, d->tokens, d->n_tokens * sizeof(int32_t));
    f->tokens.n = d->n_tokens;
    return INFERSCALE_OK;
}

void is_asking_note_damaged(is_asking *a, const is_unusable *n)
{
    if (n->queued)
        is_asking_note(a, INFERSCALE_FALLBACK_DAMAGED, "%zu segments were missing or damaged and are to be encoded again", n->queued);
    if (n->kept)
        is_asking_note(a, INFERSCALE_FALLBACK_DAMAGED, "%zu segments were missing or damaged and are not encoded again for now", n->kept);
    if (n->unread)
        is_asking_note(a, INFERSCALE_FALLBACK_DAMAGED, "%zu segments cannot be read just now and stay as they are", n->unread);
}

is_status is_asking_facts(is_asking *a, const inferscale_list *items, size_t n, is_plan_fact *facts)
{
    bool can = is_engine_geometry(a->is->engine) != NULL, inject = can && a->o.mode == INFERSCALE_MODE_KV;
    is_variant *more = is_realloc(a->variants, (a->n_variants + n + 1) * sizeof *more);
    is_unusable n_bad = { 0 };

    if (!more) return is_fail(INFERSCALE_E_NOMEM, "out of memory");
    a->variants = more;
    for (size_t i = 0; i < n; i++) {
        facts[i].id = items->items[i].id;
        facts[i].version = items->items[i].version;
        if (inject) {
            is_variant *v = &a->variants[a->n_variants++];

            IS_TRY(is_variant_load(a->is, &a->p, &items->items[i], n, a->o.stage, v, &facts[i].segment, &n_bad));
            facts[i].exact_first = v->has_exact;
        }
        if (a->o.cancel && __atomic_load_n(a->o.cancel, __ATOMIC_ACQUIRE))
            return is_fail(INFERSCALE_E_CANCELLED, "cancelled by the caller; ask again to go on");
        IS_TRY(fact_tokens(a, &items->items[i], &facts[i]));
    }
    if (can && !inject) IS_TRY(is_variant_mark_exact(a->is, &a->p, a->o.stage, facts, n));
    if (a->answer->mode == INFERSCALE_MODE_KV && !inject) {
        is_asking_note(a, INFERSCALE_FALLBACK_NO_INJECTION,
                       "this model's KV cannot be injected (%s): facts were computed as text",
                       is_engine_describe(a->is->engine)->why_not);
        a->answer->mode = INFERSCALE_MODE_TEXT;
    }
    is_asking_note_damaged(a, &n_bad);
    return INFERSCALE_OK;
}

/* ---- Plan ---------------------------------------------------------------------------------------------------------------- */

static const is_hit *hit_of(const is_hit *hits, size_t n, int64_t id)
{
    for (size_t i = 0; i < n; i++)
        if (hits[i].id == id) return &hits[i];
    return NULL;
}

is_variant *is_asking_variant(is_asking *a, int64_t id)
{
    for (size_t i = 0; i < a->n_variants; i++)
        if (a->variants[i].id == id) return &a->variants[i];
    return NULL;
}

/* Rows that lost precision when they were stored (int8, int4, or bf16 where the cache is f16) are exact nowhere. */
static bool stores_exactly(const is_asking *a)
{
    return is_codec_keeps(is_handle_profile(a->is)->codec, is_engine_describe(a->is->engine)->exact_codec);
}

/* The fact that came to stand right behind the header takes the rows that are exact there, if it has them. */
static is_status exact_first(is_asking *a, is_planned *planned)
{
    const is_plan *plan = is_planned_plan(planned);
    const size_t at = is_planned_first(planned);
    is_variant *v = at < plan->n_parts ? is_asking_variant(a, plan->parts[at].fact_id) : NULL;
    is_segment *exact = NULL;
    is_unusable n_bad = { 0 };
    is_status st;

    if (!v) return INFERSCALE_OK;
    if (strcmp(v->policy, "header") == 0) {
        v->exact = stores_exactly(a);
        return INFERSCALE_OK;
    }
    IS_TRY(is_variant_exact(a->is, &a->p, v->id, plan->parts[at].version, a->o.stage, &exact, &n_bad));
    if (!exact) return INFERSCALE_OK;
    if (!is_planned_same(planned, at, exact)) { /* an outdated row is still in its place */
        is_segment_unref(exact);
        return INFERSCALE_OK;
    }
    st = is_planned_replace(planned, at, exact);
    is_segment_unref(exact);
    if (st != INFERSCALE_OK) return st;
    *v = (is_variant){ .id = v->id, .policy = "header", .exact = stores_exactly(a) };
    return INFERSCALE_OK;
}

static void report_variant(is_asking *a, int64_t id, inferscale_used *used)
{
    const is_variant *v = is_asking_variant(a, id);

    if (!v) return;
    memcpy(used->policy, v->policy, sizeof used->policy);
    a->answer->n_refined += v->refined;
    a->answer->n_exact += v->exact;
}

static is_status report_facts(is_asking *a, const is_plan *plan, const is_hit *hits, size_t n_hits)
{
    inferscale_answer *ans = a->answer;

    is_free(ans->facts);
    ans->n_facts = ans->n_refined = ans->n_exact = 0;
    ans->facts = is_calloc(plan->n_parts + 1, sizeof *ans->facts);
    if (!ans->facts) return is_fail(INFERSCALE_E_NOMEM, "out of memory");
    for (uint32_t i = 0; i < plan->n_parts; i++) {
        const is_part *part = &plan->parts[i];
        const is_hit *hit = hit_of(hits, n_hits, part->fact_id);

        if (part->role != IS_ROLE_FACT) continue;
        ans->facts[ans->n_facts++] = (inferscale_used){ .id = part->fact_id, .version = part->version, .score = hit ? hit->score : 0,
                                                        .tokens = part->n_tokens, .source = (int)part->source };
        if (part->source == IS_SRC_STORED) report_variant(a, part->fact_id, &ans->facts[ans->n_facts - 1]);
    }
    return INFERSCALE_OK;
}

/* The hits' current items, best first, without those a conversation holds already; at most k. */
static is_status fetch_items(is_asking *a, const is_hit *hits, size_t n, inferscale_list **out, size_t *n_kept)
{
    size_t kept = 0;

    if (n) IS_TRY(is_handle_fetch(a->is, &a->p, hits, n, a->hold.as_of, out));
    if (!*out) *out = is_list_new();
    if (!*out) return is_fail(INFERSCALE_E_NOMEM, "out of memory");
    *n_kept = (*out)->n;
    if (!a->n_skip) return INFERSCALE_OK;
    for (size_t i = 0; i < (*out)->n; i++) {
        inferscale_item *item = &(*out)->items[i], moved = (*out)->items[kept];

        if (placed_already(a, item->id, item->version) || (kept == a->o.k && !a->c.n_ids)) continue;
        (*out)->items[kept++] = *item; /* swap: the list still owns every string */
        *item = moved;
    }
    *n_kept = kept;
    return INFERSCALE_OK;
}

static void free_facts(is_plan_fact *facts, size_t n)
{
    for (size_t i = 0; facts && i < n; i++) {
        is_tokens_free(&facts[i].tokens);
        is_segment_unref(facts[i].segment);
    }
}

/* What the facts hold is the plan's, or freed. */
static is_status plan_facts(is_asking *a, const is_tokens *question, is_plan_fact *facts, size_t n, is_planned **out)
{
    is_plan_opts opts = a->shape;

    opts.repair = a->o.repair;
    opts.with_memory = a->o.mode != INFERSCALE_MODE_NONE;
    opts.n_ctx_left = is_asking_room(a);
    opts.n_ctx = is_engine_describe(a->is->engine)->n_ctx;
    return is_plan_new(is_handle_profile(a->is), facts, n, question, &opts, out);
}

/* Before anything is searched for it: one that cannot fit costs nothing. */
static is_status question_tokens(is_asking *a, is_tokens *out)
{
    const is_fit fit = { is_asking_room(a), a->o.cancel };
    const is_realm *whose = NULL;

    IS_TRY(is_asking_realm(a, &whose));
    return is_profile_words(a->is->engine, whose, a->question, &fit, out);
}

/* Nothing was found. Where there is nothing at all it is said: the owner's name may be misspelt. */
static is_status note_empty(is_asking *a)
{
    const inferscale_scope *s = a->scope;
    inferscale_list *any = NULL;

    if (a->has_partition) IS_TRY(is_bank_list(a->is->bank, &a->p, s, INFERSCALE_FACTS, 0, 1, &any));
    if (!any || any->n == 0)
        is_asking_note(a, INFERSCALE_FALLBACK_NOTHING_REMEMBERED, "nothing is remembered for this %s", s->user && *s->user     ? "user"
                                                               : s->agent && *s->agent ? "agent"
                                                               : s->run && *s->run     ? "run"
                                                                                       : "application");
    inferscale_list_free(any);
    return INFERSCALE_OK;
}

is_status is_asking_plan(is_asking *a, is_planned **out)
{
    const bool first = !a->shape.next_turn && !a->shape.n_turns && !a->shape.n_resident;
    is_hit *hits = NULL;
    inferscale_list *items = NULL;
    is_plan_fact *facts = NULL;
    size_t n_hits = 0, n_facts = 0;
    is_tokens question = { 0 };
    double t0;
    is_status st = INFERSCALE_OK;

    *out = NULL;
    IS_TRY(is_handle_engine(a->is));
    st = question_tokens(a, &question);
    if (st == INFERSCALE_OK && a->o.mode != INFERSCALE_MODE_NONE) st = find(a, &hits, &n_hits);
    if (st == INFERSCALE_OK && a->o.mode != INFERSCALE_MODE_NONE && n_hits == 0 && first) st = note_empty(a);
    t0 = is_now_ms();
    if (st == INFERSCALE_OK) st = fetch_items(a, hits, n_hits, &items, &n_facts);
    if (st == INFERSCALE_OK) {
        facts = is_calloc(n_facts + 1, sizeof *facts);
        st = facts ? is_asking_facts(a, items, n_facts, facts) : is_fail(INFERSCALE_E_NOMEM, "out of memory");
    }
    if (st == INFERSCALE_OK) st = plan_facts(a, &question, facts, n_facts, out);
    else free_facts(facts, n_facts);
    if (st == INFERSCALE_OK) st = exact_first(a, *out);
    if (st == INFERSCALE_OK) st = report_facts(a, is_planned_plan(*out), hits, n_hits);
    if (st == INFERSCALE_OK) {
        is_asking_shortfalls(a, *out);
    } else {
        is_planned_free(*out);
        *out = NULL;
    }
    is_tokens_free(&question);
    is_free(facts);
    inferscale_list_free(items);
    is_free(hits);
    a->answer->plan_ms = is_now_ms() - t0;
    return st;
}

is_status is_asking_fresh(is_asking *a, const is_planned *planned, bool *fresh)
{
    is_partition now = a->p;

    *fresh = true;
    if (!a->has_partition) return INFERSCALE_OK;
    IS_TRY(is_hold_plan(&a->hold, is_planned_plan(planned)));
    IS_TRY(is_bank_partition_refresh(a->is->bank, &now));
    *fresh = now.epoch == a->p.epoch;
    return INFERSCALE_OK;
}

/* ---- Run ----------------------------------------------------------------------------------------------------------------- */

/* Once, however often it is planned anew. */
static void say_accepted(void *ctx)
{
    is_asking *a = ctx;

    if (!a->accepted && a->c.on_accepted) a->c.on_accepted(a->c.accepted_ctx);
    a->accepted = true;
}

/* Whose memory, and words: what an engine computes of them may serve nobody else. An owner of whom nothing is remembered yet, and who
 * asks without memory, is told apart by the scope and by the caller's salt. */
is_status is_asking_realm(is_asking *a, const is_realm **out)
{
    static const inferscale_scope nobody;
    const inferscale_scope *s = a->scope ? a->scope : &nobody;
    const char *const texts[] = { s->tenant, s->user, s->agent, s->run, s->app, a->c.cache_salt };
    is_partition p = a->p;
    is_hash *h = NULL;
    is_status st = a->has_partition ? INFERSCALE_OK : a->scope ? is_bank_partition(a->is->bank, s, false, &p) : INFERSCALE_E_NOTFOUND;

    a->has_realm = a->scope || a->c.cache_salt;
    *out = a->has_realm ? &a->realm : NULL;
    if (st == INFERSCALE_OK) a->realm = is_realm_of(&p);
    if (st != INFERSCALE_E_NOTFOUND || !a->has_realm) return st == INFERSCALE_E_NOTFOUND ? INFERSCALE_OK : st;
    a->realm = (is_realm){ .epoch = 0 };
    IS_TRY(is_hash_new(NULL, &h));
    is_hash_field(h, "inferscale nobody's realm 1", 27);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        is_hash_u64(h, texts[i] != NULL);
        is_hash_field(h, texts[i] ? texts[i] : "", texts[i] ? strlen(texts[i]) : 0);
    }
    is_hash_end(h, a->realm.tag);
    return INFERSCALE_OK;
}

/* Of what the plan begins with, so much is the profile's own header: it is nobody's secret. */
static uint32_t n_shared(const is_asking *a, const is_plan *plan)
{
    const is_profile *p = is_handle_profile(a->is);
    const is_tokens *const own[] = { &p->header, &p->header_plain };
    uint32_t most = 0;

    for (size_t i = 0; plan->n_parts && i < 2; i++) {
        uint32_t n = 0;

        while (n < own[i]->n && n < plan->parts[0].n_tokens && own[i]->ids[n] == plan->parts[0].tokens[n]) n++;
        if (n > most) most = n;
    }
    return most;
}

static is_status begin_run(is_asking *a, const is_plan *plan, is_run **run, is_run_stats *stats)
{
    is_run_opts o = { .sampling = { .temperature = a->o.temperature, .top_k = a->o.top_k, .top_p = a->o.top_p, .min_p = a->o.min_p,
                                    .seed = a->o.seed, .presence = a->c.presence_penalty, .frequency = a->c.frequency_penalty,
                                    .bias = a->bias, .n_bias = (uint32_t)a->c.n_bias, .grammar = a->c.grammar },
                      .cache_parts = 1, .no_prefix_cache = plan->n_parts == 1, .want_likely = a->c.logprobs != 0,
                      .n_likely = a->c.top_logprobs, .cancel = a->o.cancel,
                      .stop = &a->hold.stop, .on_begun = say_accepted, .begun_ctx = a, .n_predict = a->o.max_tokens,
                      .n_shared = n_shared(a, plan) };
    is_status st;

    IS_TRY(is_asking_realm(a, &o.realm));

    /* The plan fits: where the engine has no room, idle conversations have it. */
    do st = *run ? is_engine_extend(a->is->engine, *run, plan, &o, stats) : is_engine_start(a->is->engine, plan, &o, run, stats);
    while ((st == INFERSCALE_E_BUSY || st == INFERSCALE_E_CONTEXT) && is_talks_evict(a->is));
    return st;
}

/* The rest of the plan is computed as text. */
static void all_as_text(is_asking *a)
{
    inferscale_answer *ans = a->answer;

    is_asking_note(a, INFERSCALE_FALLBACK_REFUSED, "the engine refused the stored rows (%s): facts were computed as text", is_error());
    ans->mode = INFERSCALE_MODE_TEXT;
    for (size_t i = 0; i < ans->n_facts; i++) {
        if (ans->facts[i].source != INFERSCALE_SOURCE_STORED) continue;
        ans->facts[i].source = INFERSCALE_SOURCE_COMPUTED;
        ans->facts[i].policy[0] = 0;
    }
    ans->n_refined = ans->n_exact = 0;
}

static bool has_stored(const is_plan *plan)
{
    for (uint32_t i = 0; i < plan->n_parts; i++)
        if (plan->parts[i].source == IS_SRC_STORED) return true;
    return false;
}

void is_asking_counts(is_asking *a, const is_run_stats *stats)
{
    a->answer->tokens_computed = stats->tokens_computed;
    a->answer->tokens_injected = stats->tokens_injected;
    a->answer->tokens_resident = stats->tokens_resident;
}

is_status is_asking_run(is_asking *a, is_planned *planned, is_run **run)
{
    const is_plan *plan = a->o.mode == INFERSCALE_MODE_TEXT ? is_planned_twin(planned) : is_planned_plan(planned);
    inferscale_answer *ans = a->answer;
    is_run_stats stats = { 0 };
    is_status st = begin_run(a, plan, run, &stats);

    if ((st == INFERSCALE_E_INVALID || st == INFERSCALE_E_UNSUPPORTED) && has_stored(plan)) {
        all_as_text(a);
        plan = is_planned_twin(planned);
        st = begin_run(a, plan, run, &stats);
    }
    if (st == INFERSCALE_E_CANCELLED && is_hold_stopped(&a->hold)) return is_asking_gone();
    if (st != INFERSCALE_OK) return st;
    a->ran = plan;
    ans->tokens_prompt = plan->n_tokens;
    is_asking_counts(a, &stats);
    ans->compose_ms = stats.compose_ms;
    ans->inject_ms = stats.inject_ms;
    ans->question_ms = stats.compute_ms;
    return INFERSCALE_OK;
}
