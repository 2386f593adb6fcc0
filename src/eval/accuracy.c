/* accuracy.c - see accuracy.h. Questions are the outer loop, arms the inner one: a question is done
 * in all arms or in none. */
#include "eval/accuracy.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "eval/accuracy_run.h"

enum { SHOWN = 16 /* bytes of a fingerprint */ };

is_status accuracy_progress(accuracy_work *w, const char *what)
{
    int stop = 0;

    if (w->o->on_progress) stop = w->o->on_progress(w->o->progress_ctx, w->a->n, w->total, what);
    if (stop != 0 || (w->o->cancel && __atomic_load_n(w->o->cancel, __ATOMIC_ACQUIRE)))
        return is_fail(INFERSCALE_E_CANCELLED, "the evaluation was cancelled");
    return INFERSCALE_OK;
}

/* ---- Arms ------------------------------------------------------------------------------------ */

static void add_arm(accuracy *a, accuracy_kind kind, const char *name, const char *policy)
{
    accuracy_arm *arm = &a->arms[a->n_arms++];

    arm->kind = kind;
    arm->policy = policy;
    snprintf(arm->name, sizeof arm->name, "%s%s%s", name, policy[0] ? " " : "", policy);
}

static void make_arms(accuracy *a, const accuracy_options *o)
{
    add_arm(a, ARM_NONE, "none", "");
    add_arm(a, ARM_GOLD, "gold", "");
    a->text = a->n_arms;
    add_arm(a, ARM_TEXT, "text", "");
    for (size_t p = 0; p < o->n_policies; p++) {
        add_arm(a, ARM_INJECTED, "injected", o->policies[p].name);
        if (!o->no_twins) add_arm(a, ARM_TWIN, "twin", o->policies[p].name);
    }
    if (o->plain) add_arm(a, ARM_PLAIN, "plain", "");
}

/* ---- One question ---------------------------------------------------------------------------- */

/* Prompts of text that were run already for this question. */
typedef struct seen {
    struct {
        uint8_t tokens[IS_HASH_BYTES];
        accuracy_mark mark;
    } of[ACCURACY_ARMS];
    size_t n;
} seen;

static is_status hash_tokens(const is_plan *plan, uint8_t out[IS_HASH_BYTES])
{
    is_hash *h = NULL;

    IS_TRY(is_hash_new(NULL, &h));
    for (uint32_t i = 0; i < plan->n_parts; i++)
        is_hash_bytes(h, plan->parts[i].tokens, plan->parts[i].n_tokens * sizeof(int32_t));
    is_hash_end(h, out);
    return INFERSCALE_OK;
}

static is_status measure_text(accuracy_work *w, const is_plan *plan, const accuracy_key *key,
                              seen *s, accuracy_mark *out)
{
    uint8_t tokens[IS_HASH_BYTES];

    IS_TRY(hash_tokens(plan, tokens));
    for (size_t i = 0; i < s->n; i++)
        if (memcmp(s->of[i].tokens, tokens, sizeof tokens) == 0) {
            *out = s->of[i].mark;
            return INFERSCALE_OK;
        }
    IS_TRY(accuracy_measure(w, plan, key, out));
    memcpy(s->of[s->n].tokens, tokens, sizeof tokens);
    s->of[s->n++].mark = *out;
    return INFERSCALE_OK;
}

static is_status run_plain(accuracy_work *w, const accuracy_key *key, const int64_t *ids, size_t n,
                           accuracy_mark *out)
{
    plain_prompt p = { .n_shared = 0 };
    is_status st = accuracy_plain(w, key->question, ids, n, &p);

    if (st == INFERSCALE_OK) st = accuracy_measure(w, &p.plan, key, out);
    plain_prompt_free(&p);
    return st;
}

static is_status run_arm(accuracy_work *w, const accuracy_arm *arm, const accuracy_key *key,
                         const int64_t *ids, size_t n, seen *s, accuracy_mark *out)
{
    is_planned *planned = NULL;
    is_status st;

    if (arm->kind == ARM_PLAIN) return run_plain(w, key, ids, n, out);
    st = accuracy_plan(w, arm, key->question, ids, n, &planned);
    if (st == INFERSCALE_OK)
        st = arm->kind == ARM_INJECTED ? accuracy_measure(w, is_planned_plan(planned), key, out)
                                       : measure_text(w, is_planned_twin(planned), key, s, out);
    is_planned_free(planned);
    return st;
}

/* The evidence's ids, each once. */
static size_t evidence(const accuracy_work *w, const quiz_question *q, int64_t *ids)
{
    size_t n = 0;

    for (size_t i = 0; i < q->n_evidence; i++) {
        bool again = false;

        for (size_t k = 0; k < n; k++) again = again || ids[k] == w->fact_ids[q->evidence[i]];
        if (!again) ids[n++] = w->fact_ids[q->evidence[i]];
    }
    return n;
}

static double recall_of(const int64_t *gold, size_t n_gold, const int64_t *found, size_t n)
{
    size_t there = 0;

    for (size_t i = 0; i < n_gold; i++)
        for (size_t k = 0; k < n; k++) there += gold[i] == found[k];
    return n_gold ? (double)there / (double)n_gold : NAN;
}

static is_status run_arms(accuracy_work *w, const accuracy_key *key, const int64_t *found,
                          size_t n_found, const int64_t *gold, size_t n_gold,
                          accuracy_question *out)
{
    seen s = { .n = 0 };

    for (size_t i = 0; i < w->a->n_arms; i++) {
        const accuracy_arm *arm = &w->a->arms[i];
        const bool is_gold = arm->kind == ARM_GOLD;

        out->marks[i] = (accuracy_mark){ .choice = -1, .judged = -1, .nll = NAN, .f1 = NAN };
        if (is_gold && n_gold == 0) continue;
        IS_TRY(run_arm(w, arm, key, is_gold ? gold : found,
                       arm->kind == ARM_NONE ? 0
                       : is_gold             ? n_gold
                                             : n_found,
                       &s, &out->marks[i]));
    }
    return INFERSCALE_OK;
}

static is_status ask(accuracy_work *w, const quiz_question *q, accuracy_question *out)
{
    int64_t *found = NULL, *gold = is_calloc(q->n_evidence + 1, sizeof *gold);
    size_t n_found = 0, n_gold;
    accuracy_key key = { 0 };
    is_status st =
        gold ? INFERSCALE_OK : is_fail(INFERSCALE_E_NOMEM, "out of memory for a question");

    *out = (accuracy_question){ .type = q->type };
    if (st == INFERSCALE_OK) st = accuracy_find(w, q, &found, &n_found);
    if (st == INFERSCALE_OK) st = accuracy_key_new(w, q, &key);
    if (st == INFERSCALE_OK) {
        n_gold = evidence(w, q, gold);
        out->recall = recall_of(gold, n_gold, found, n_found);
        st = run_arms(w, &key, found, n_found, gold, n_gold, out);
    }
    accuracy_key_free(&key);
    is_free(found);
    is_free(gold);
    return st;
}

static is_status keep(accuracy_work *w, const accuracy_question *r)
{
    accuracy_question *more;

    if (w->log) IS_TRY(accuracy_log_add(w->log, w->o->quiz, w->a, r));
    more = is_realloc(w->a->questions, (w->a->n + 1) * sizeof *more);
    if (more == NULL) return is_fail(INFERSCALE_E_NOMEM, "out of memory for the results");
    w->a->questions = more;
    more[w->a->n++] = *r;
    return INFERSCALE_OK;
}

/* ---- The run --------------------------------------------------------------------------------- */

/* "text 61%, injected page:16/6 59%", for whoever watches. */
static void so_far(const accuracy *a, char *text, size_t cap)
{
    size_t n = 0;

    text[0] = 0;
    for (size_t i = a->text; i < a->n_arms && n < cap; i++) {
        size_t right = 0;

        if (a->arms[i].kind == ARM_TWIN) continue;
        for (size_t q = 0; q < a->n; q++) right += a->questions[q].marks[i].right;
        n += (size_t)snprintf(text + n, cap - n, "%s%s %.0f%%", n ? ", " : "", a->arms[i].name,
                              100.0 * (double)right / (double)a->n);
    }
}

/* Is nothing left to ask? */
static bool is_over(const accuracy_work *w)
{
    return w->a->n >= w->o->n_questions || accuracy_decided(w->a, w->o);
}

static is_status ask_store(accuracy_work *w, const quiz_store *s, size_t from)
{
    char what[160];

    IS_TRY(accuracy_progress(w, "encoding"));
    IS_TRY(accuracy_encode(w));
    for (size_t i = from; i < s->n_questions && !is_over(w); i++) {
        accuracy_question r;

        IS_TRY(ask(w, &s->questions[i], &r));
        IS_TRY(keep(w, &r));
        so_far(w->a, what, sizeof what);
        IS_TRY(accuracy_progress(w, what));
    }
    return accuracy_forget(w);
}

/* Stores that are done are entered too, not encoded: so the facts of the next ones have the same
 * ids, which decide what is drawn, as in a run without an interruption. */
static is_status ask_all(accuracy_work *w)
{
    size_t begins = 0; /* the number of the store's first question */
    is_status st = INFERSCALE_OK;

    for (uint32_t i = 0; st == INFERSCALE_OK && !is_over(w); i++) {
        quiz_store *s = NULL;

        st = quiz_store_at(w->o->quiz, i, &s);
        if (st == INFERSCALE_E_NOTFOUND) return INFERSCALE_OK; /* all are asked */
        if (st == INFERSCALE_OK) st = accuracy_remember(w, s);
        if (st == INFERSCALE_OK && w->a->n < begins + s->n_questions)
            st = ask_store(w, s, w->a->n - begins);
        if (s) begins += s->n_questions;
        quiz_store_free(s);
        w->store = NULL;
    }
    return st;
}

static void add_hex(json_t *o, const char *key, const uint8_t *bytes)
{
    char hex[IS_HASH_HEX];

    is_hex(bytes, SHOWN, hex);
    json_object_set_new(o, key, json_string(hex));
}

/* Everything that the results depend on. */
static is_status configuration(accuracy_work *w, json_t **out)
{
    static const char *const methods[] = { "fused", "lexical", "dense" };
    const is_engine_info *info = is_engine_describe(w->engine);
    json_t *o = json_object(), *policies = json_array();

    for (size_t p = 0; p < w->o->n_policies; p++)
        json_array_append_new(policies, json_string(w->o->policies[p].name));
    json_object_set_new(o, "questions", json_string(w->o->quiz->name));
    json_object_set_new(o, "seed", json_integer((json_int_t)w->o->quiz->seed));
    add_hex(o, "questions_digest", w->o->quiz->digest);
    json_object_set_new(o, "k", json_integer(w->o->k));
    json_object_set_new(o, "method", json_string(methods[w->o->method]));
    json_object_set_new(o, "answer_tokens", json_integer(w->o->n_tokens));
    json_object_set_new(o, "policies", policies);
    if (w->o->judge.url) json_object_set_new(o, "judge", json_string(w->o->judge.model));
    json_object_set_new(o, "twins", json_boolean(!w->o->no_twins));
    if (w->o->plain) json_object_set_new(o, "plain", json_true()); /* older files lack it */
    if (w->o->best_first) json_object_set_new(o, "best_first", json_true());
    json_object_set_new(o, "model", json_string(info->name));
    json_object_set_new(o, "weights", json_string(info->weights));
    json_object_set_new(o, "codec", json_string(is_codec_name(w->l->is->profile->codec)));
    json_object_set_new(o, "flash_attention", json_boolean(info->flash_attention));
    add_hex(o, "model_digest", info->fingerprint);
    add_hex(o, "prompt_digest", w->l->is->profile->fingerprint);
    if (w->l->is->embedder)
        add_hex(o, "embedder_digest", is_embedder_fingerprint(w->l->is->embedder));
    *out = o;
    return json_object_size(o) >= 14 ? INFERSCALE_OK : is_fail(INFERSCALE_E_NOMEM, "out of memory");
}

static is_status open_log(accuracy_work *w)
{
    json_t *o = NULL;
    is_status st = configuration(w, &o);

    if (st == INFERSCALE_OK && w->o->results)
        st = accuracy_log_open(w->o->results, o, w->o->quiz, w->a, &w->log);
    json_decref(o);
    w->a->n_before = w->a->n;
    return st;
}

static is_status check(const accuracy_options *o)
{
    if (o->n_policies < 1 || o->n_policies > ACCURACY_POLICIES)
        return is_fail(INFERSCALE_E_INVALID, "give 1 to %d policies", (int)ACCURACY_POLICIES);
    for (size_t i = 0; i < o->n_policies; i++)
        for (size_t k = 0; k < i; k++)
            if (strcmp(o->policies[i].name, o->policies[k].name) == 0)
                return is_fail(INFERSCALE_E_INVALID, "policy %s is given twice; give each once",
                               o->policies[i].name);
    if (o->k < 1 || o->k > 1000 || o->n_questions < 1 || o->n_tokens < 1)
        return is_fail(INFERSCALE_E_INVALID,
                       "k is from 1 to 1000; questions and answer tokens are at least 1");
    return INFERSCALE_OK;
}

static is_status load_models(accuracy_work *w)
{
    bool vectors = w->o->method != INFERSCALE_LEXICAL;

    IS_TRY(is_handle_engine(w->l->is));
    w->engine = w->l->is->engine;
    if (is_engine_geometry(w->engine) == NULL)
        return is_fail(INFERSCALE_E_UNSUPPORTED,
                       "this model's KV cannot be injected: %s; take another --model",
                       is_engine_describe(w->engine)->why_not);
    return vectors ? is_handle_embedder(w->l->is) : INFERSCALE_OK;
}

is_status accuracy_run(lab *l, const accuracy_options *options, accuracy **out)
{
    accuracy_work w = { .l = l, .o = options, .total = options->n_questions };
    is_status st;

    *out = NULL;
    IS_TRY(check(options));
    w.a = is_calloc(1, sizeof *w.a);
    if (w.a == NULL) return is_fail(INFERSCALE_E_NOMEM, "out of memory");
    make_arms(w.a, options);
    memcpy(w.shuffle, &options->quiz->seed, sizeof options->quiz->seed);
    st = load_models(&w);
    if (st == INFERSCALE_OK) st = accuracy_kinds(&w);
    if (st == INFERSCALE_OK) st = grader_new(&w.grader);
    if (st == INFERSCALE_OK) st = open_log(&w);
    if (st == INFERSCALE_OK) st = ask_all(&w);
    w.a->complete = st == INFERSCALE_OK;
    accuracy_log_close(w.log);
    grader_free(w.grader);
    is_free(w.fact_ids);
    *out = w.a;
    return st;
}

void accuracy_free(accuracy *a)
{
    if (a == NULL) return;
    is_free(a->questions);
    is_free(a);
}
