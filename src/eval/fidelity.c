/* fidelity.c - see fidelity.h. Questions are the outer loop, arms the inner one: stopping early leaves whole pairs. */
#include "eval/fidelity.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "eval/study.h"
#include "eval/trace.h"

static bool stopped(const study *s)
{
    return s->o->cancel && *s->o->cancel;
}

is_status study_progress(study *s, const char *what)
{
    s->done++;
    if (s->o->on_progress && s->o->on_progress(s->o->progress_ctx, s->done, s->total, what) != 0)
        return is_fail(INFERSCALE_E_CANCELLED, "the evaluation was cancelled");
    return stopped(s) ? is_fail(INFERSCALE_E_CANCELLED, "the evaluation was cancelled") : INFERSCALE_OK;
}

/* ---- Questions ----------------------------------------------------------------------------------------------------------- */

static bool eligible(const locomo_qa *qa)
{
    return qa->category >= 1 && qa->category <= 4 && qa->question[0] && qa->answer[0];
}

static size_t n_eligible(const locomo_conversation *c)
{
    size_t n = 0;

    for (size_t i = 0; i < c->n_qa; i++) n += eligible(&c->qa[i]);
    return n;
}

/* The k best facts for the question; *enough = there are so many. */
static is_status retrieve(study *s, asked *q, bool *enough)
{
    inferscale_recall_options r = INFERSCALE_RECALL_OPTIONS_INIT;
    inferscale_list times = { 0 };
    is_hit *hits = NULL;
    char why[256] = "";
    size_t n = 0;

    *enough = false;
    r.k = s->o->k;
    r.kinds = INFERSCALE_FACTS;
    r.method = s->o->method;
    IS_TRY(is_handle_find(s->l->is, &s->l->partition, &s->l->scope, q->qa->question, NULL, &r,
                          &hits, &n, &times, why));
    if (why[0]) {
        is_free(hits);
        return is_fail(INFERSCALE_E_UNSUPPORTED, "the retrieval asked for cannot be done: %s", why);
    }
    if (n >= s->o->k) {
        q->ids = is_malloc(s->o->k * sizeof *q->ids);
        q->facts = is_malloc(s->o->k * sizeof *q->facts);
        *enough = q->ids && q->facts;
        for (size_t i = 0; *enough && i < s->o->k; i++) q->ids[i] = hits[i].id;
    }
    is_free(hits);
    return n < s->o->k || *enough ? INFERSCALE_OK : is_fail(INFERSCALE_E_NOMEM, "out of memory while choosing questions");
}

static void drop_questions(study *s)
{
    for (size_t i = 0; s->questions && i < s->n_questions; i++) {
        is_free(s->questions[i].ids);
        is_free(s->questions[i].facts);
    }
    is_free(s->questions);
    s->questions = NULL;
    s->n_questions = 0;
}

/* Draws `want` questions of the conversation in a seeded order. One that finds fewer than k facts is passed over. */
static is_status choose(study *s, uint32_t index, size_t want)
{
    const locomo_conversation *c = s->conversation;
    uint32_t *order = is_malloc((c->n_qa + 1) * sizeof *order);
    rng r = rng_stream(s->o->seed, 0x9e57, index);
    is_status st = INFERSCALE_OK;

    s->questions = is_calloc(want + 1, sizeof *s->questions);
    if (order == NULL || s->questions == NULL) st = is_fail(INFERSCALE_E_NOMEM, "out of memory while choosing questions");
    if (order) rng_permutation(&r, order, c->n_qa);
    for (size_t i = 0; i < c->n_qa && s->n_questions < want && st == INFERSCALE_OK; i++) {
        asked *q = &s->questions[s->n_questions];
        bool enough = false;

        if (!eligible(&c->qa[order[i]])) continue;
        *q = (asked){ .qa = &c->qa[order[i]], .conversation = index };
        st = retrieve(s, q, &enough);
        s->n_questions += enough;
        s->f->n_skipped += st == INFERSCALE_OK && !enough;
        if (!enough) {
            is_free(q->ids);
            is_free(q->facts);
            *q = (asked){ 0 };
        }
    }
    is_free(order);
    return st;
}

/* ---- Facts --------------------------------------------------------------------------------------------------------------- */

static void drop_facts(study *s)
{
    for (size_t i = 0; i < s->n_facts; i++) {
        lab_facts_free(&s->facts[i].fact, 1);
        for (int w = OWN; w < SYSTEMS; w++)
            for (size_t p = 0; p < KINDS; p++) is_segment_unref(s->facts[i].segments[w][p]);
    }
    is_free(s->facts);
    s->facts = NULL;
    s->n_facts = 0;
}

/* The place of a fact among those needed, added if new. The array has room for every observation. */
static is_status need(study *s, int64_t id, size_t *at)
{
    for (*at = 0; *at < s->n_facts; ++*at)
        if (s->facts[*at].fact.id == id) return INFERSCALE_OK;
    IS_TRY(lab_facts(s->l, &id, 1, &s->facts[s->n_facts].fact));
    s->n_facts++;
    return INFERSCALE_OK;
}

/* The question's own evidence: observations that cite a turn it cites. ids[n_observations]; returns how many. */
static size_t evidence(const study *s, const locomo_qa *qa, int64_t *ids)
{
    const locomo_conversation *c = s->conversation;
    size_t n = 0;

    for (size_t i = 0; i < c->n_observations; i++) {
        bool cites = false, again = false;

        for (size_t a = 0; a < c->observations[i].n_dia_ids; a++)
            for (size_t b = 0; b < qa->n_evidence; b++)
                cites = cites || strcmp(c->observations[i].dia_ids[a], qa->evidence[b]) == 0;
        for (size_t j = 0; j < n; j++) again = again || ids[j] == s->fact_ids[i];
        if (cites && !again) ids[n++] = s->fact_ids[i];
    }
    return n;
}

static is_status gather(study *s)
{
    s->facts = is_calloc(s->conversation->n_observations + 1, sizeof *s->facts);
    if (s->facts == NULL) return is_fail(INFERSCALE_E_NOMEM, "out of memory while gathering facts");
    for (size_t i = 0; i < s->n_questions; i++)
        for (size_t j = 0; j < s->o->k; j++) IS_TRY(need(s, s->questions[i].ids[j], &s->questions[i].facts[j]));
    return INFERSCALE_OK;
}

/* ---- Arms ---------------------------------------------------------------------------------------------------------------- */

static fidelity_arm *arm_of(fidelity *f, const char *name, whose system)
{
    for (size_t i = 0; i < f->n_arms; i++)
        if (f->arms[i].client == (system == CLIENT) && strcmp(f->arms[i].name, name) == 0) return &f->arms[i];
    return NULL;
}

static const char *injected_name(whose system, whose rows)
{
    if (system == OWN) return "B";
    return rows == CLIENT ? "matching" : "generic";
}

/* Adds the plan's tokens to what was asked in this question. */
static is_status know_prompt(study *s, const is_plan *plan)
{
    is_hash *h;

    IS_TRY(is_hash_new(NULL, &h));
    is_hash_field(h, s->prompts, sizeof s->prompts);
    for (uint32_t i = 0; i < plan->n_parts; i++)
        is_hash_bytes(h, plan->parts[i].tokens, plan->parts[i].n_tokens * sizeof(int32_t));
    is_hash_end(h, s->prompts);
    return INFERSCALE_OK;
}

/* One arm, one plan: the distance along A's answer, and the gold answer's likelihood if wanted. */
static is_status measure(study *s, fidelity_arm *arm, size_t at, const is_plan *plan, const is_run_opts *opts,
                         const is_tokens *gold)
{
    trace_distance d;

    IS_TRY(trace_compare(s->trace, plan, opts, &d));
    arm->kl[at] = d.kl;
    arm->kl_first[at] = d.kl_first;
    arm->top1[at] = d.top1;
    return gold && !s->o->no_nll ? trace_nll(s->trace, plan, opts, gold, &arm->nll[at]) : INFERSCALE_OK;
}

/* A yardstick: the mean over seeded permutations of all facts, or of all but the best. */
static is_status reorder(study *s, const asked *q, size_t at, whose system, bool keep_best)
{
    fidelity_arm *arm = arm_of(s->f, keep_best ? "S" : "S_free", system);
    const is_run_opts opts = { 0 };
    uint32_t *order;
    trace_distance sum = { 0 };
    is_status st;

    if (!arm) return INFERSCALE_OK; /* left out */
    order = is_malloc(s->o->k * sizeof *order);
    st = order ? INFERSCALE_OK : is_fail(INFERSCALE_E_NOMEM, "out of memory while reordering facts");

    for (uint32_t draw = 0; draw < s->o->n_orders && st == INFERSCALE_OK; draw++) {
        rng r = rng_stream(s->o->seed, 2 * (uint64_t)at + keep_best, draw);
        is_planned *planned = NULL;
        trace_distance d = { 0 };

        order[0] = 0;
        rng_permutation(&r, order + keep_best, s->o->k - keep_best);
        for (uint32_t i = 1; keep_best && i < s->o->k; i++) order[i]++;
        st = study_plan(s, q, &(study_prompt){ .system = system, .policy = NO_POLICY, .memory = true, .order = order }, &planned);
        if (st == INFERSCALE_OK) st = know_prompt(s, is_planned_plan(planned));
        if (st == INFERSCALE_OK) st = trace_compare(s->trace, is_planned_plan(planned), &opts, &d);
        is_planned_free(planned);
        sum.kl += d.kl / s->o->n_orders;
        sum.kl_first += d.kl_first / s->o->n_orders;
        sum.top1 += d.top1 / s->o->n_orders;
    }
    if (st == INFERSCALE_OK) arm->kl[at] = sum.kl, arm->kl_first[at] = sum.kl_first, arm->top1[at] = sum.top1;
    is_free(order);
    return st;
}

static is_status know_answer(study *s, size_t at)
{
    fidelity_question *q = &s->f->questions[at];
    const int32_t *ids = trace_answer(s->trace, &q->n_answer);
    is_hash *h;

    IS_TRY(is_hash_new(NULL, &h));
    is_hash_field(h, ids, q->n_answer * sizeof *ids);
    is_hash_end(h, q->answer);
    return INFERSCALE_OK;
}

/* The reference, the floor beside it, and no memory. */
static is_status run_text(study *s, const asked *q, size_t at, const is_tokens *gold, whose system, is_planned **reference)
{
    const is_run_opts opts = { 0 }, other = { .batch = s->o->floor_batch, .no_prefix_cache = true };
    fidelity_arm *a = arm_of(s->f, "A", system);
    study_prompt prompt = { .system = system, .policy = NO_POLICY, .memory = true };
    is_planned *none = NULL;
    const is_plan *plan;
    is_status st;

    IS_TRY(study_plan(s, q, &prompt, reference));
    plan = is_planned_plan(*reference);
    for (uint32_t i = 0; system == OWN && i < plan->n_parts; i++)
        if (plan->parts[i].role == IS_ROLE_FACT) s->f->fact_tokens += plan->parts[i].n_tokens;
    if (system == OWN) s->f->prompt_tokens += plan->n_tokens;
    IS_TRY(trace_record(s->trace, plan, &opts));
    a->kl[at] = a->kl_first[at] = 0;
    a->top1[at] = 1;
    if (!s->o->no_nll) IS_TRY(trace_nll(s->trace, plan, &opts, gold, &a->nll[at]));
    IS_TRY(know_prompt(s, plan));
    if (system == OWN) IS_TRY(know_answer(s, at));
    if (at % (s->o->floor_every ? s->o->floor_every : 1) == 0) IS_TRY(measure(s, arm_of(s->f, "N", system), at, plan, &other, NULL));
    if (s->o->skip & FIDELITY_SKIP_C) return INFERSCALE_OK;
    prompt.memory = false;
    IS_TRY(study_plan(s, q, &prompt, &none));
    st = measure(s, arm_of(s->f, "C", system), at, is_planned_plan(none), &opts, gold);
    is_planned_free(none);
    return st;
}

/* B, generic or matching: every policy with every number of repaired facts, over the tokens of the reference. */
static is_status run_injected(study *s, const asked *q, size_t at, const is_tokens *gold, whose system, whose rows, const is_plan *reference)
{
    const is_run_opts opts = { 0 };
    fidelity_arm *arm = arm_of(s->f, injected_name(system, rows), system);

    for (size_t p = 0; p < s->o->n_policies; p++) {
        for (size_t r = 0; r < s->o->n_repairs; r++, arm++) {
            const study_prompt prompt = { .system = system, .rows = rows, .policy = (int)p, .repair = s->o->repairs[r], .memory = true };
            is_planned *planned = NULL;
            is_status st = study_plan(s, q, &prompt, &planned);

            if (st == INFERSCALE_OK) st = study_same_tokens(is_planned_plan(planned), reference);
            if (st == INFERSCALE_OK) st = measure(s, arm, at, is_planned_plan(planned), &opts, gold);
            is_planned_free(planned);
            if (st != INFERSCALE_OK) return st;
        }
    }
    return INFERSCALE_OK;
}

/* D: only the evidence, newest last as it came. Without any the question has no such arm. */
static is_status run_gold(study *s, const asked *q, size_t at, const is_tokens *gold)
{
    const is_run_opts opts = { 0 };
    const is_plan_opts plan_opts = { .with_memory = true, .n_ctx_left = is_engine_describe(s->engine)->n_ctx };
    int64_t *ids = is_malloc((s->conversation->n_observations + 1) * sizeof *ids);
    size_t n = ids ? evidence(s, q->qa, ids) : 0;
    is_plan_fact *facts = is_calloc(n + 1, sizeof *facts);
    lab_fact *found = is_calloc(n + 1, sizeof *found);
    is_tokens question = { 0 };
    is_planned *planned = NULL;
    is_status st = ids && facts && found ? INFERSCALE_OK : is_fail(INFERSCALE_E_NOMEM, "out of memory while planning");

    if (st == INFERSCALE_OK && n > 0) st = lab_facts(s->l, ids, n, found);
    for (size_t i = 0; i < n && st == INFERSCALE_OK; i++)
        facts[n - 1 - i] = (is_plan_fact){ .id = found[i].id, .version = found[i].version, .tokens = found[i].tokens };
    if (st == INFERSCALE_OK && n > 0) st = is_profile_question(s->engine, NULL, q->qa->question, &question);
    if (st == INFERSCALE_OK && n > 0) st = is_plan_new(s->l->is->profile, facts, n, &question, &plan_opts, &planned);
    else if (st != INFERSCALE_OK && found) lab_facts_free(found, n);
    if (planned) st = measure(s, arm_of(s->f, "D", OWN), at, is_planned_plan(planned), &opts, gold);
    is_planned_free(planned);
    is_tokens_free(&question);
    is_free(found);
    is_free(facts);
    is_free(ids);
    return st;
}

/* All arms behind one system text. What is recorded of A there holds until the next. */
static is_status run_behind(study *s, const asked *q, size_t at, const is_tokens *gold, whose system)
{
    is_planned *reference = NULL;
    is_status st = run_text(s, q, at, gold, system, &reference);

    for (int rows = OWN; rows <= (int)system && st == INFERSCALE_OK; rows++)
        st = run_injected(s, q, at, gold, system, rows, is_planned_plan(reference));
    if (st == INFERSCALE_OK && !stopped(s)) st = reorder(s, q, at, system, true);
    if (st == INFERSCALE_OK && !stopped(s)) st = reorder(s, q, at, system, false);
    is_planned_free(reference);
    return st;
}

static is_status run_question(study *s, const asked *q)
{
    const size_t at = s->f->n_questions;
    is_tokens gold = { 0 };
    const char *answer = q->qa->answer;
    is_status st = is_engine_tokenize(s->engine, NULL, answer, strlen(answer), false, false, &gold.ids, &gold.n);

    if (gold.n > STUDY_ANSWER) gold.n = STUDY_ANSWER;
    memset(s->prompts, 0, sizeof s->prompts);
    for (size_t a = 0; a < s->f->n_arms; a++) {
        fidelity_arm *arm = &s->f->arms[a];

        arm->kl[at] = arm->kl_first[at] = arm->top1[at] = arm->nll[at] = NAN;
    }
    if (st == INFERSCALE_OK) st = run_behind(s, q, at, &gold, OWN);
    if (st == INFERSCALE_OK && s->o->gold) st = run_gold(s, q, at, &gold);
    if (st == INFERSCALE_OK && !stopped(s) && s->profiles[CLIENT]) st = run_behind(s, q, at, &gold, CLIENT);
    is_tokens_free(&gold);
    if (st == INFERSCALE_OK && stopped(s)) st = is_fail(INFERSCALE_E_CANCELLED, "the evaluation was cancelled");
    if (st == INFERSCALE_OK) {
        s->f->group[at] = q->conversation;
        s->f->questions[at].index = (uint32_t)(q->qa - s->conversation->qa);
        memcpy(s->f->questions[at].prompts, s->prompts, sizeof s->prompts);
        s->f->n_questions++;
    }
    return st;
}

/* ---- The whole ----------------------------------------------------------------------------------------------------------- */

static is_status add_arm(study *s, const char *name, whose system, const char *policy, uint32_t repair)
{
    fidelity_arm *arm = &s->f->arms[s->f->n_arms];
    const size_t n = s->capacity + 1;

    snprintf(arm->name, sizeof arm->name, "%s", name);
    arm->client = system == CLIENT;
    arm->policy = policy;
    arm->repair = repair;
    arm->kl = is_calloc(4 * n, sizeof *arm->kl);
    if (arm->kl == NULL) return is_fail(INFERSCALE_E_NOMEM, "out of memory for %zu questions; take fewer", s->capacity);
    arm->kl_first = arm->kl + n;
    arm->top1 = arm->kl_first + n;
    arm->nll = arm->top1 + n;
    s->f->n_arms++;
    return INFERSCALE_OK;
}

static is_status add_injected(study *s, whose system, whose rows)
{
    for (size_t p = 0; p < s->o->n_policies; p++)
        for (size_t r = 0; r < s->o->n_repairs; r++)
            IS_TRY(add_arm(s, injected_name(system, rows), system, s->o->policies[p].name, s->o->repairs[r]));
    return INFERSCALE_OK;
}

static is_status make_arms(study *s)
{
    for (int w = OWN; w < SYSTEMS; w++) {
        if (s->profiles[w] == NULL) continue;
        IS_TRY(add_arm(s, "A", w, NULL, 0));
        for (int rows = OWN; rows <= w; rows++) IS_TRY(add_injected(s, w, rows));
        if (!(s->o->skip & FIDELITY_SKIP_C)) IS_TRY(add_arm(s, "C", w, NULL, 0));
        if (s->o->gold && w == OWN) IS_TRY(add_arm(s, "D", w, NULL, 0));
        IS_TRY(add_arm(s, "N", w, NULL, 0));
        if (!(s->o->skip & FIDELITY_SKIP_S)) IS_TRY(add_arm(s, "S", w, NULL, 0));
        if (!(s->o->skip & FIDELITY_SKIP_S_FREE)) IS_TRY(add_arm(s, "S_free", w, NULL, 0));
    }
    s->f->group = is_calloc(s->capacity + 1, sizeof *s->f->group);
    s->f->questions = is_calloc(s->capacity + 1, sizeof *s->f->questions);
    if (s->f->group && s->f->questions) return INFERSCALE_OK;
    return is_fail(INFERSCALE_E_NOMEM, "out of memory for %zu questions; take fewer", s->capacity);
}

/* The running ratios, for whoever watches. */
static void so_far(const study *s, char *text, size_t cap)
{
    size_t n = 0;

    text[0] = 0;
    for (size_t a = 1; a < s->f->n_arms && n < cap; a++) {
        const fidelity_arm *arm = &s->f->arms[a];
        const fidelity_arm *order = arm_of(s->f, s->o->skip & FIDELITY_SKIP_S_FREE ? "S" : "S_free", arm->client ? CLIENT : OWN);
        double yard = order ? stats_mean(order->kl, s->f->n_questions) : NAN;

        if (arm->policy && arm->repair == 0)
            n += (size_t)snprintf(text + n, cap - n, "%s%s%s%s %.2f", n ? ", " : "", arm->client ? arm->name : "",
                                  arm->client ? " " : "", arm->policy, stats_mean(arm->kl, s->f->n_questions) / yard);
    }
}

static is_status run_conversation(study *s, uint32_t index, size_t want)
{
    char what[128];
    is_status st;

    s->conversation = s->o->conversations[index];
    s->fact_ids = is_calloc(s->conversation->n_observations + 1, sizeof *s->fact_ids);
    st = s->fact_ids ? lab_use(s->l, s->conversation->id) : is_fail(INFERSCALE_E_NOMEM, "out of memory");
    if (st == INFERSCALE_OK) st = lab_remember_locomo(s->l, s->conversation, s->fact_ids);
    if (st == INFERSCALE_OK) st = choose(s, index, want);
    if (st == INFERSCALE_OK) st = gather(s);
    s->total = s->done + s->conversation->n_observations * s->n_kinds * (s->profiles[CLIENT] ? 2 : 1) + s->n_questions;
    if (st == INFERSCALE_OK) st = study_encode(s);
    for (size_t i = 0; i < s->n_questions && st == INFERSCALE_OK; i++) {
        st = run_question(s, &s->questions[i]);
        if (st == INFERSCALE_OK) so_far(s, what, sizeof what);
        if (st == INFERSCALE_OK) st = study_progress(s, what);
    }
    drop_facts(s);
    drop_questions(s);
    is_free(s->fact_ids);
    s->fact_ids = NULL;
    return st;
}

static is_status check(const fidelity_options *o)
{
    if (o->n_policies < 1 || o->n_policies > FIDELITY_POLICIES || o->n_repairs < 1 || o->n_repairs > FIDELITY_REPAIRS)
        return is_fail(INFERSCALE_E_INVALID, "give 1 to %d policies and 1 to %d repair counts", (int)FIDELITY_POLICIES,
                       (int)FIDELITY_REPAIRS);
    if (o->k < 1 || o->k > 1000 || o->n_questions < 1 || o->n_tokens < 1 || o->n_orders < 1)
        return is_fail(INFERSCALE_E_INVALID, "k is from 1 to 1000; questions, tokens and orders are at least 1");
    return o->client_system ? is_text_check(o->client_system, "client's system text") : INFERSCALE_OK;
}

static is_status run_all(study *s)
{
    size_t open = 0, left = s->o->n_questions;
    is_status st = INFERSCALE_OK;

    for (size_t i = 0; i < s->o->n_conversations; i++) open += n_eligible(s->o->conversations[i]);
    if (open == 0)
        return is_fail(INFERSCALE_E_INVALID, "there are no questions of categories 1-4; choose another conversation");
    s->capacity = left < open ? left : open;
    left = s->capacity;
    IS_TRY(make_arms(s));
    for (size_t i = 0; i < s->o->n_conversations && st == INFERSCALE_OK; i++) {
        size_t here = n_eligible(s->o->conversations[i]), want = open ? (left * here + open - 1) / open : 0;

        if (want > left) want = left;
        st = run_conversation(s, (uint32_t)i, want);
        left -= want;
        open -= here;
    }
    return st;
}

is_status fidelity_run(lab *l, const fidelity_options *options, fidelity **out)
{
    study s = { .l = l, .o = options };
    is_profile *client = NULL;
    is_status st;

    *out = NULL;
    IS_TRY(check(options));
    IS_TRY(is_handle_engine(l->is));
    s.engine = l->is->engine;
    if (is_engine_geometry(s.engine) == NULL)
        return is_fail(INFERSCALE_E_UNSUPPORTED, "this model's KV cannot be injected: %s; take another --model",
                       is_engine_describe(s.engine)->why_not);
    s.f = is_calloc(1, sizeof *s.f);
    if (s.f == NULL) return is_fail(INFERSCALE_E_NOMEM, "out of memory");
    s.f->n_conversations = options->n_conversations;
    s.profiles[OWN] = l->is->profile;
    memcpy(s.shuffle, &options->seed, sizeof options->seed);
    st = study_kinds(&s);
    if (st == INFERSCALE_OK && options->client_system)
        st = is_profile_new(s.engine, options->client_system, l->is->profile->codec, &client);
    s.profiles[CLIENT] = client;
    if (st == INFERSCALE_OK) st = trace_new(s.engine, options->n_tokens, &s.trace);
    if (st == INFERSCALE_OK) st = run_all(&s);
    trace_free(s.trace);
    is_profile_free(client);
    if (st == INFERSCALE_E_CANCELLED && s.f->n_questions > 0) s.f->cancelled = true, st = INFERSCALE_OK;
    if (st == INFERSCALE_OK && s.f->n_questions == 0)
        st = is_fail(INFERSCALE_E_INVALID, "no question found %u facts; use a smaller --k", options->k);
    if (st != INFERSCALE_OK) {
        fidelity_free(s.f);
        return st;
    }
    s.f->prompt_tokens /= (double)s.f->n_questions;
    s.f->fact_tokens /= (double)s.f->n_questions;
    *out = s.f;
    return INFERSCALE_OK;
}

void fidelity_free(fidelity *f)
{
    if (f == NULL) return;
    for (size_t i = 0; i < f->n_arms; i++) is_free(f->arms[i].kl);
    is_free(f->group);
    is_free(f->questions);
    is_free(f);
}
