/* bench_serve.c - see bench_serve.h. */
#include "eval/bench_serve.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "eval/bench_serve_owners.h"
#include "eval/stats.h"
#include "eval/synth.h"

enum { MIN_KV = 32, MIN_TEXT = 16, MIN_CUT = 20, OPEN_MAX = 1000 };
const char *const bench_serve_arms[BENCH_SERVE_ARMS] = { "kv", "text", "plain" };
enum { TRIAL = 8 }; /* answers, at least, of a trial of text */
static const double slo[BENCH_SERVE_SLO] = { 2, 4 };

typedef struct study {
    const bench_serve_options *o;
    bench_serve_result *r;
    owners w;
    uint32_t window;           /* number of the window under way: its questions are its own */
    bench_serve_arm arm;       /* of the window under way */
    bool second;               /* text and plain run on text_url */
    bool asks_marker;
    uint32_t n_foreign;        /* of the window under way: searches that found a fact of somebody else */
    uint64_t done, total;      /* requests */
} study;

/* ---- Requests ------------------------------------------------------------------------------------------------------------ */

/* The messages about the user's memory, and what says whose it is; NULL = none can be made. */
static json_t *messages_of(study *s, uint32_t user, const char *question, json_t **memory)
{
    char name[OWNER_NAME];
    json_t *messages = NULL;
    bool foreign = false;

    *memory = NULL;
    if (s->arm == BENCH_SERVE_PLAIN) {
        if (plain_messages(s->o, &s->w, user, question, &messages, &foreign) != INFERSCALE_OK)
            return NULL;
        s->n_foreign += foreign;
        return messages;
    }
    owner_name(s->o, user, name);
    *memory = json_pack("{s:s,s:i,s:s}", "user_id", name, "k", (int)s->o->k, "mode",
                        bench_serve_arms[s->arm]);
    return json_pack("[{s:s,s:s}]", "role", "user", "content", question);
}

/* A question that nobody asked before, so that nothing of its prompt but the header is in the engine already. */
static char *make_body(void *ctx, uint32_t number, uint32_t user)
{
    study *s = ctx;
    char question[SYNTH_QUESTION], *copy;
    json_t *o, *messages, *memory;
    char *text;

    synth_question(s->o->seed * 7919 + (uint64_t)s->window * 100003 + number, question);
    messages = messages_of(s, user, s->asks_marker ? owner_marker_question : question, &memory);
    if (!messages) return NULL;
    o = json_pack("{s:s,s:o,s:b,s:{s:b},s:i,s:i}", "model", s->r->model, "messages", messages,
                  "stream", 1, "stream_options", "include_usage", 1, "max_tokens",
                  (int)s->o->max_tokens, "temperature", 0);
    if (memory) json_object_set_new(o, "memory", memory);
    if (s->r->ignores_eos) json_object_set_new(o, "ignore_eos", json_true());
    text = o ? json_dumps(o, JSON_COMPACT) : NULL;
    json_decref(o);
    copy = text ? is_strdup(text) : NULL;
    free(text);
    return copy;
}

static bool on_done(void *ctx, const load_sample *sample)
{
    study *s = ctx;
    char what[48];

    s->done++;
    snprintf(what, sizeof what, "%s", s->asks_marker ? "checking" : bench_serve_arms[s->arm]);
    (void)sample;
    return !s->o->on_progress || s->o->on_progress(s->o->progress_ctx, s->done, s->total > s->done ? s->total : s->done, what) == 0;
}

/* Windows of text and plain would take minutes, so they are cut. Injected memory of a closed loop is
 * measured whole: cut, a window that has as many users as answers would leave out the users who
 * waited longest. */
static bool may_cut(const study *s, double rate, bench_serve_arm arm)
{
    return !s->asks_marker && (arm != BENCH_SERVE_KV || rate > 0);
}

static is_status run(study *s, uint32_t users, uint32_t n, double rate, bench_serve_arm arm, load_result *out)
{
    const bool second = s->second && arm != BENCH_SERVE_KV;
    load_options l = { .url = second ? s->o->text_url : s->o->url, .key = s->o->key, .users = users, .n = n,
                       .rate = rate, .seed = s->o->seed + s->window,
                       .seconds_max = may_cut(s, rate, arm) ? s->o->window_s : 0, .n_min = MIN_CUT, .body = make_body, .ctx = s,
                       .cancel = s->o->cancel, .on_done = on_done };

    s->arm = arm;
    s->n_foreign = 0;
    s->window++;
    return load_run(&l, out);
}

/* ---- What a window gave -------------------------------------------------------------------------------------------------- */

static bool grow(bench_serve_row *r, size_t more, size_t more_itl)
{
    size_t cap = r->completed + more, cap_itl = r->n_itl + more_itl;
    void *p;

    if (cap > r->cap) {
        if (!(p = is_realloc(r->ttft_ms, cap * sizeof(double)))) return false;
        r->ttft_ms = p;
        if (!(p = is_realloc(r->tpot_ms, cap * sizeof(double)))) return false;
        r->tpot_ms = p;
        if (!(p = is_realloc(r->e2el_ms, cap * sizeof(double)))) return false;
        r->e2el_ms = p;
        if (!(p = is_realloc(r->n_itls, cap * sizeof(uint32_t)))) return false;
        r->n_itls = p;
        r->cap = cap;
    }
    if (cap_itl > r->cap_itl) {
        if (!(p = is_realloc(r->itl_ms, cap_itl * sizeof(double)))) return false;
        r->itl_ms = p;
        r->cap_itl = cap_itl;
    }
    return true;
}

static void take_sample(const study *s, bench_serve_row *r, bench_serve_window *w, const load_sample *x)
{
    answer_memory m = owners_check(&s->w, x);
    size_t i = r->completed;

    r->mixed_up += m.foreign || (s->o->echoes && m.last && !owners_echoes(x, m.last));
    if (r->arm == BENCH_SERVE_PLAIN) {
        m.resident = x->n_cached;
        m.computed = x->n_prompt - x->n_cached;
        m.unlike = m.n_facts > 0;
        m.there = true;
    }
    r->unlike += !m.there || m.unlike || (m.not_kept && !r->second);
    r->full_length += x->n_tokens >= s->o->max_tokens;
    r->prompt += x->n_prompt;
    r->computed += m.computed;
    r->injected += m.injected;
    r->resident += m.resident;
    r->output += x->n_tokens;
    w->output_throughput += x->n_tokens;
    for (int g = 0; g < BENCH_SERVE_SLO; g++) r->good[g] += x->ttft_ms <= slo[g] * s->r->idle_text_ms;
    r->ttft_ms[i] = x->ttft_ms;
    r->e2el_ms[i] = x->e2el_ms;
    r->tpot_ms[i] = x->n_tokens > 1 ? (x->e2el_ms - x->ttft_ms) / (x->n_tokens - 1) : 0;
    r->n_itls[i] = (uint32_t)x->n_itl;
    if (x->n_itl) memcpy(r->itl_ms + r->n_itl, x->itl_ms, x->n_itl * sizeof *x->itl_ms);
    r->n_itl += x->n_itl;
    r->completed++;
}

static is_status take_window(const study *s, bench_serve_row *r, const load_result *l)
{
    bench_serve_window *w = &r->windows[r->n_windows++];

    *w = (bench_serve_window){ .seconds = l->seconds, .offered = l->offered, .completed = (uint32_t)l->n_completed,
                               .failed = (uint32_t)l->n_failed, .cut = (uint32_t)l->n_cut };
    for (size_t i = 0; i < l->n; i++) {
        const load_sample *x = &l->samples[i];

        if (x->completed) {
            if (!grow(r, 1, x->n_itl)) return is_fail(INFERSCALE_E_NOMEM, "out of memory for the times of %u answers", r->completed);
            take_sample(s, r, w, x);
        } else if (!x->cut && !r->error[0]) {
            snprintf(r->error, sizeof r->error, "%s", x->error);
        }
    }
    r->mixed_up += s->n_foreign;
    r->lost += (uint32_t)(l->n - l->n_completed - l->n_failed - l->n_cut);
    w->request_throughput = w->seconds > 0 ? w->completed / w->seconds : 0;
    w->output_throughput = w->seconds > 0 ? w->output_throughput / w->seconds : 0;
    r->failed += w->failed;
    r->cut += w->cut;
    return INFERSCALE_OK;
}

static bench_serve_times times_of(const double *x, size_t n)
{
    return (bench_serve_times){ stats_mean(x, n), stats_median(x, n), n > 1 ? stats_sd(x, n) : 0, stats_percentile(x, n, 0.99) };
}

static void finish_row(bench_serve_row *r)
{
    double requests[BENCH_SERVE_PAIRS], output[BENCH_SERVE_PAIRS], seconds = 0, n = r->completed ? r->completed : 1;

    for (uint32_t i = 0; i < r->n_windows; i++) {
        requests[i] = r->windows[i].request_throughput;
        output[i] = r->windows[i].output_throughput;
        seconds += r->windows[i].seconds;
    }
    r->request_throughput = stats_median(requests, r->n_windows);
    r->output_throughput = stats_median(output, r->n_windows);
    r->ttft = times_of(r->ttft_ms, r->completed);
    r->tpot = times_of(r->tpot_ms, r->completed);
    r->e2el = times_of(r->e2el_ms, r->completed);
    r->itl = times_of(r->itl_ms, r->n_itl);
    for (int g = 0; g < BENCH_SERVE_SLO; g++) r->good[g] = seconds > 0 ? r->good[g] / seconds : 0;
    r->prompt /= n;
    r->computed /= n;
    r->injected /= n;
    r->resident /= n;
    r->output /= n;
}

static void finish_load(const bench_serve_row *kv, const bench_serve_row *under, bench_serve_ratio *q)
{
    *q = (bench_serve_ratio){ .users = kv->users, .rate = kv->rate, .under = under->arm };
    for (uint32_t i = 0; i < kv->n_windows; i++)
        if (under->windows[i].request_throughput > 0)
            q->quotients[q->n++] =
                kv->windows[i].request_throughput / under->windows[i].request_throughput;
    q->median = stats_median(q->quotients, q->n);
    q->lo = stats_percentile(q->quotients, q->n, 0);
    q->hi = stats_percentile(q->quotients, q->n, 1);
}

/* ---- Loads --------------------------------------------------------------------------------------------------------------- */

static uint32_t completions(const bench_serve_options *o, uint32_t users, double rate, bench_serve_arm arm)
{
    uint32_t least = arm == BENCH_SERVE_KV ? MIN_KV : MIN_TEXT;
    double n = rate * o->window_s;

    if (rate > 0) return n < least ? least : n > OPEN_MAX ? OPEN_MAX : (uint32_t)n;
    if (o->completions) return o->completions > users ? o->completions : users;
    return users > least ? users : least;
}

static is_status measure(study *s, uint32_t users, double rate, bench_serve_row rows[BENCH_SERVE_ARMS])
{
    for (int a = 0; a < BENCH_SERVE_ARMS; a++)
        rows[a] = (bench_serve_row){ .users = users, .rate = rate, .arm = (bench_serve_arm)a,
                                     .second = s->second && a != BENCH_SERVE_KV };
    for (uint32_t p = 0; p < s->o->pairs; p++)
        for (int i = 0; i < BENCH_SERVE_ARMS; i++) {
            bench_serve_arm arm = (bench_serve_arm)((p + (uint32_t)i) % BENCH_SERVE_ARMS);
            load_result l;
            is_status st;

            IS_TRY(run(s, users, completions(s->o, users, rate, arm), rate, arm, &l));
            st = take_window(s, &rows[arm], &l);
            load_result_free(&l);
            IS_TRY(st);
            if (s->o->cancel && *s->o->cancel) return is_fail(INFERSCALE_E_CANCELLED, "cancelled");
        }
    for (int a = 0; a < BENCH_SERVE_ARMS; a++) finish_row(&rows[a]);
    return INFERSCALE_OK;
}

/* Where text is faster with so many users. */
static is_status choose_place(study *s, uint32_t users, double trials[BENCH_SERVE_PLACES])
{
    if (!s->o->text_url) return INFERSCALE_OK;
    for (int place = 0; place < BENCH_SERVE_PLACES; place++) {
        load_result l;

        s->second = place == 1;
        IS_TRY(run(s, users, users > TRIAL ? users : TRIAL, 0, BENCH_SERVE_TEXT, &l));
        trials[place] = l.seconds > 0 ? (double)l.n_completed / l.seconds : 0;
        load_result_free(&l);
    }
    s->second = trials[1] > trials[0];
    return INFERSCALE_OK;
}

/* ---- Before the loads ---------------------------------------------------------------------------------------------------- */

static is_status meet_server(study *s)
{
    json_t *reply = NULL;
    const char *id;
    long status;

    IS_TRY(load_call(s->o->url, s->o->key, "GET", "/v1/models", NULL, &status, &reply));
    id = json_string_value(json_object_get(json_array_get(json_object_get(reply, "data"), 0), "id"));
    if (status == 200 && id) snprintf(s->r->model, sizeof s->r->model, "%s", id);
    json_decref(reply);
    if (status != 200 || !s->r->model[0])
        return is_fail(INFERSCALE_E_UNSUPPORTED, "GET /v1/models says HTTP %ld and names no model; is %.100s an OpenAI server?", status, s->o->url);
    return INFERSCALE_OK;
}

/* Whether answers can be kept from ending early: a server that does not know the field refuses it. */
static is_status try_ignore_eos(study *s)
{
    load_result l;

    s->r->ignores_eos = true;
    s->asks_marker = true;
    IS_TRY(run(s, 1, 1, 0, BENCH_SERVE_KV, &l));
    s->r->ignores_eos = l.n_completed == 1;
    s->asks_marker = false;
    load_result_free(&l);
    return INFERSCALE_OK;
}

static is_status idle(study *s, bench_serve_arm arm, double *out)
{
    double ms[BENCH_SERVE_IDLE];
    load_result l;
    is_status st = INFERSCALE_OK;
    size_t n = 0;

    IS_TRY(run(s, 1, BENCH_SERVE_IDLE, 0, arm, &l));
    for (size_t i = 0; i < l.n; i++)
        if (l.samples[i].completed) ms[n++] = l.samples[i].ttft_ms;
    if (n == 0) st = is_fail(INFERSCALE_E_UNSUPPORTED, "the server answers no request with memory: %s", l.n ? l.samples[0].error : "nothing came");
    *out = stats_median(ms, n);
    load_result_free(&l);
    return st;
}

static is_status idle_text(study *s, double *out)
{
    double ms = 0;

    IS_TRY(idle(s, BENCH_SERVE_TEXT, out));
    if (!s->o->text_url) return INFERSCALE_OK;
    s->second = true;
    IS_TRY(idle(s, BENCH_SERVE_TEXT, &ms));
    s->second = false;
    if (ms < *out) *out = ms;
    return INFERSCALE_OK;
}

/* Everybody asks for his marker once: it must be found, and it warms the server up. */
static is_status check_markers(study *s)
{
    load_result l;
    is_status st = INFERSCALE_OK;
    char marker[MARKER];

    s->asks_marker = true;
    IS_TRY(run(s, s->w.n, s->w.n, 0, BENCH_SERVE_KV, &l));
    s->asks_marker = false;
    for (size_t i = 0; i < l.n && st == INFERSCALE_OK; i++) {
        const load_sample *x = &l.samples[i];
        const json_t *one;
        size_t j;

        owner_marker(s->o, x->user, marker);
        if (!x->completed) st = is_fail(INFERSCALE_E_UNSUPPORTED, "the server does not answer everybody: %s", x->error);
        else if (owners_check(&s->w, x).foreign) st = is_fail(INFERSCALE_E_INTERNAL, "an answer to %u uses a fact of somebody else", x->user);
        s->r->markers_told += x->text.len && strstr((const char *)x->text.data, marker);
        json_array_foreach(json_object_get(x->memory, "facts"), j, one) {
            const char *id = json_string_value(json_object_get(one, "id"));
            const owner_fact *f = id ? owners_find(&s->w, strtoll(id, NULL, 10)) : NULL;

            if (f && strstr(f->text, marker)) {
                s->r->markers_found++;
                break;
            }
        }
    }
    load_result_free(&l);
    return st;
}

/* ---- All of it ----------------------------------------------------------------------------------------------------------- */

static is_status run_loads(study *s)
{
    const bench_serve_options *o = s->o;
    size_t n = o->n_users * (1 + o->n_rates);

    s->r->rows = is_calloc(n * BENCH_SERVE_ARMS, sizeof *s->r->rows);
    s->r->ratios = is_calloc(n * (BENCH_SERVE_ARMS - 1), sizeof *s->r->ratios);
    s->r->trials = is_calloc(o->n_users, sizeof *s->r->trials);
    if (!s->r->rows || !s->r->ratios || !s->r->trials)
        return is_fail(INFERSCALE_E_NOMEM, "out of memory for %zu loads", n);
    for (size_t u = 0; u < o->n_users; u++)
        for (size_t i = 0; i <= o->n_rates; i++)
            for (int a = 0; a < BENCH_SERVE_ARMS; a++)
                s->total += o->pairs * completions(o, (uint32_t)o->users[u], i ? o->rates[i - 1] : 0, (bench_serve_arm)a);
    s->done = 0;
    for (size_t u = 0; u < o->n_users; u++) {
        IS_TRY(choose_place(s, (uint32_t)o->users[u], s->r->trials[u]));
        for (size_t i = 0; i <= o->n_rates; i++) {
            size_t at = s->r->n_loads++;
            bench_serve_row *rows = &s->r->rows[at * BENCH_SERVE_ARMS];

            IS_TRY(measure(s, (uint32_t)o->users[u], i ? o->rates[i - 1] : 0, rows));
            for (int a = BENCH_SERVE_TEXT; a < BENCH_SERVE_ARMS; a++)
                finish_load(&rows[BENCH_SERVE_KV], &rows[a],
                            &s->r->ratios[at * (BENCH_SERVE_ARMS - 1) + (size_t)a - 1]);
        }
    }
    return INFERSCALE_OK;
}

is_status bench_serve_run(const bench_serve_options *o, bench_serve_result *out)
{
    study s = { .o = o, .r = out };
    uint32_t most = 0;
    is_status st;

    memset(out, 0, sizeof *out);
    for (size_t i = 0; i < o->n_users; i++) most = (uint32_t)o->users[i] > most ? (uint32_t)o->users[i] : most;
    if (most == 0 || o->pairs == 0 || o->pairs > BENCH_SERVE_PAIRS)
        return is_fail(INFERSCALE_E_INVALID, "the benchmark needs a user and 1 to %d pairs of windows", (int)BENCH_SERVE_PAIRS);
    out->n_owners = most;
    out->facts = o->facts;
    IS_TRY_GOTO(st, done, meet_server(&s));
    IS_TRY_GOTO(st, done, owners_make(o, most, &s.w, &out->remember_s, &out->encode_s));
    s.total = most;
    IS_TRY_GOTO(st, done, try_ignore_eos(&s));
    IS_TRY_GOTO(st, done, check_markers(&s));
    IS_TRY_GOTO(st, done, idle_text(&s, &out->idle_text_ms));
    IS_TRY_GOTO(st, done, idle(&s, BENCH_SERVE_KV, &out->idle_kv_ms));
    st = run_loads(&s);
done:
    owners_free(&s.w);
    if (st != INFERSCALE_OK) bench_serve_result_free(out);
    return st;
}

void bench_serve_result_free(bench_serve_result *r)
{
    for (size_t i = 0; r->rows && i < r->n_loads * BENCH_SERVE_ARMS; i++) {
        is_free(r->rows[i].ttft_ms);
        is_free(r->rows[i].tpot_ms);
        is_free(r->rows[i].e2el_ms);
        is_free(r->rows[i].itl_ms);
        is_free(r->rows[i].n_itls);
    }
    is_free(r->rows);
    is_free(r->ratios);
    is_free(r->trials);
    memset(r, 0, sizeof *r);
}
