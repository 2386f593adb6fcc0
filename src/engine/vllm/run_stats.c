/* run_stats.c - what was injected after all, and if not, why.
 *
 * A stream says only how many tokens of its prompt vLLM had ready, and says it at its end. Where that is fewer than was planned, where they
 * may have been in its cache (seen.c), or where the stream was cut before, the connector is asked (STATUS). A load that failed leaves
 * exact blocks under its salt, so that salt is not used for the same memory again: the attempt is raised. */
#include "engine/vllm/run.h"

#include <stdio.h>
#include <string.h>

#include "kv/ticket.h"

enum { STATUS_MS = 2000 };

/* ---- Attempts ---------------------------------------------------------------------------------------------------------------------------- */

/* Under the lock: the place of this key, or of the one that is to give way to it. */
static vllm_attempt *place(vllm *e, const uint8_t *key)
{
    vllm_attempt *oldest = NULL;
    uint32_t begin = (uint32_t)(is_checksum(key, IS_HASH_BYTES) % VLLM_ATTEMPTS);

    for (uint32_t i = 0; i < 8; i++) {
        vllm_attempt *a = &e->attempts[(begin + i) % VLLM_ATTEMPTS];

        if (a->attempt && memcmp(a->key, key, IS_HASH_BYTES) == 0) return a;
        if (!oldest || a->used < oldest->used) oldest = a;
    }
    return oldest;
}

uint32_t vllm_attempt_of(vllm *e, const uint8_t key[IS_HASH_BYTES])
{
    vllm_attempt *a;
    uint32_t n;

    pthread_mutex_lock(&e->lock);
    a = place(e, key);
    n = a->attempt && memcmp(a->key, key, IS_HASH_BYTES) == 0 ? a->attempt : 0;
    if (n) a->used = ++e->clock;
    pthread_mutex_unlock(&e->lock);
    return n;
}

void vllm_attempt_raise(vllm *e, const uint8_t key[IS_HASH_BYTES])
{
    vllm_attempt *a;

    pthread_mutex_lock(&e->lock);
    a = place(e, key);
    if (!a->attempt || memcmp(a->key, key, IS_HASH_BYTES) != 0) *a = (vllm_attempt){ 0 };
    memcpy(a->key, key, IS_HASH_BYTES);
    a->attempt++;
    a->used = ++e->clock;
    pthread_mutex_unlock(&e->lock);
    VLLM_COUNT(e, attempts_raised, 1);
}

/* ---- Planned ------------------------------------------------------------------------------------------------------------------------------ */

/* The same, as far as stored rows are taken: one token is computed in any case. */
static uint32_t reach(const is_run *r, uint32_t at)
{
    at = vllm_tail_reach(r, at);
    return at < r->n ? at : r->n - 1;
}

static uint32_t overlap(const vllm_part *p, uint32_t from, uint32_t to)
{
    uint32_t begin = p->pos > from ? p->pos : from, end = p->pos + p->n_tokens < to ? p->pos + p->n_tokens : to;

    return begin < end ? end - begin : 0;
}

/* Tokens of [from, to) whose stored rows are no memory: of the header, of the tail. */
static uint32_t heads_within(const is_run *r, uint32_t from, uint32_t to)
{
    return (r->n_parts && r->parts[0].head ? overlap(&r->parts[0], from, to) : 0) + overlap(&r->tail, from, to);
}

/* Splits the prompt: n_ready tokens were not computed by its request, and some of these just before it, by the tail's captures. Where something
 * fell back these count as resident: then what is not computed is the prompt's first tokens (engine.h). */
static void split(is_run *r, uint32_t n_prompt, uint32_t n_ready, uint32_t n_injected)
{
    uint32_t before = n_ready - n_injected < r->n_ahead_computed ? n_ready - n_injected : r->n_ahead_computed;

    if (r->stats.why[0]) before = 0;
    r->stats.tokens_injected = n_injected;
    r->stats.tokens_resident = n_ready - n_injected - before;
    r->stats.tokens_computed = n_prompt - n_ready + before;
}

/* The end of the last stored part of this plan; 0 = none. */
static uint32_t stored_end(const is_run *r)
{
    return r->plan_stored ? r->parts[r->n_parts - 1].pos + r->parts[r->n_parts - 1].n_tokens : 0;
}

void vllm_stats_plan(is_run *r)
{
    const uint32_t block = r->e->model->block_size;
    uint32_t local = r->n_before ? (r->n_before - 1) / block * block : 0;

    if (r->tail.n_tokens) local = (r->tail.pos + r->tail.n_tokens) / block * block; /* its capture left them there */
    r->n_planned = reach(r, local);
    if (stored_end(r) > r->n_planned && !r->stats.why[0]) {
        snprintf(r->stats.why, sizeof r->stats.why,
                 "stored rows stand behind computed ones at token %u; vLLM takes them only right behind what it has", r->n_planned);
        snprintf(r->stats.reason, sizeof r->stats.reason, "gap");
    }
    split(r, r->n, r->n_planned, r->n_planned - local - heads_within(r, local, r->n_planned));
    VLLM_COUNT(r->e, planned_tokens, r->stats.tokens_injected);
}

/* ---- Found out ------------------------------------------------------------------------------------------------------------------------------ */

static void set(is_run *r, uint32_t n_ready, uint32_t n_injected)
{
    if (n_ready >= r->fed_from) n_ready = r->fed_from - 1;
    if (n_injected > n_ready) n_injected = n_ready;
    split(r, r->fed_from, n_ready, n_injected);
    VLLM_COUNT(r->e, injected_tokens, n_injected);
    vllm_upstream_injected(r->e, r->up, n_injected, r->stats.reason);
}

static void get_text(const json_t *said, const char *field, char *out, size_t cap)
{
    const char *s = json_string_value(json_object_get(said, field));
    size_t n = 0;

    for (; s && *s && n + 1 < cap; s++) out[n++] = (unsigned char)*s < 0x20 || *s == 0x7f ? ' ' : *s;
    out[n] = 0;
}

static uint32_t get_count(const json_t *said, const char *field)
{
    json_int_t n = json_integer_value(json_object_get(said, field));

    return n > 0 && n <= INT32_MAX ? (uint32_t)n : 0;
}

/* What became of the request, from the connector's own books. */
static is_status ask_status(is_run *r, json_t **said, const char **code)
{
    const int32_t prompt[] = { 0 };
    vllm_ask_for a = { .op = INFERSCALE_TICKET_STATUS, .prompt = prompt, .n_prompt = 1 };

    memcpy(a.id, r->id, sizeof a.id);
    VLLM_COUNT(r->e, status_asked, 1);
    return vllm_ticket_ask(r->e, r->up, &a, (vllm_flags){ 0 }, STATUS_MS, said, code);
}

static void fell_short(is_run *r, uint32_t n_ready)
{
    VLLM_COUNT(r->e, fell_short, 1);
    if (!r->stats.why[0])
        snprintf(r->stats.why, sizeof r->stats.why, "of %u tokens that were stored or cached, vLLM had %u ready", r->n_planned, n_ready);
    if (!r->stats.reason[0]) snprintf(r->stats.reason, sizeof r->stats.reason, "failed");
    is_log(IS_LOG_INFO, "stored rows were computed by vLLM at %s: %s (%s)", r->e->up[r->up].url, r->stats.why, r->stats.reason);
    if (r->n_before == 0 && strcmp(r->stats.reason, "gap") != 0) vllm_attempt_raise(r->e, r->key);
}

/* The connector's own sentence was for the log: it may name files. Clients are told ours. */
static void speak(is_run *r, const json_t *said)
{
    char theirs[sizeof r->stats.why];

    get_text(said, "why", theirs, sizeof theirs);
    if (theirs[0] && strcmp(theirs, r->stats.why) == 0) snprintf(r->stats.why, sizeof r->stats.why, "%s", vllm_reason_says(r->stats.reason));
}

/* The connector's word on a request whose rows did not come in. One whose signature it did not know it cannot remember: that is so where the
 * secret has changed since. */
static void take_reason(is_run *r, const json_t *said)
{
    uint8_t secret[IS_KEY_BYTES];
    const bool another = vllm_secret_get(r->e, secret) != r->n_secret;

    memset(secret, 0, sizeof secret);
    get_text(said, "why", r->stats.why, sizeof r->stats.why);
    get_text(said, "reason", r->stats.reason, sizeof r->stats.reason);
    if (strcmp(r->stats.reason, "model") == 0) vllm_upstream_doubt(r->e, r->up);
    if (!another || json_is_true(json_object_get(said, "ok")) || strcmp(r->stats.reason, "missing") != 0) return;
    snprintf(r->stats.why, sizeof r->stats.why, "the secret was replaced while the request was on its way");
    snprintf(r->stats.reason, sizeof r->stats.reason, "unsigned");
}

/* The connector's word: rows that it put in, those that vLLM had. */
static void by_status(is_run *r, uint32_t n_ready, bool known)
{
    const bool enough = known && n_ready >= r->n_planned;
    json_t *said;
    const char *code;
    uint32_t injected, local, head;
    is_status st;

    st = ask_status(r, &said, &code);
    if (st != INFERSCALE_OK) is_log(IS_LOG_WARN, "what was injected is not known: %s", is_error());
    if (enough && !json_is_integer(json_object_get(said, "injected"))) { /* as many were ready as planned, and more is not known */
        set(r, n_ready, r->stats.tokens_injected);
        json_decref(said);
        return;
    }
    if (st != INFERSCALE_OK) {
        if (*code) snprintf(r->stats.why, sizeof r->stats.why, "%s", is_error());
        if (*code) snprintf(r->stats.reason, sizeof r->stats.reason, "%s", code);
        if (known) fell_short(r, n_ready);
        if (known) set(r, n_ready, n_ready - heads_within(r, 0, n_ready));
        return;
    }
    injected = get_count(said, "injected");
    local = get_count(said, "local");
    if (!known) n_ready = injected + local;
    if (n_ready < r->n_planned) {
        take_reason(r, said);
        fell_short(r, n_ready);
        speak(r, said);
    }
    vllm_bad_take(r->e, said, &r->stats);
    head = heads_within(r, local, local + injected);
    set(r, n_ready, injected > head ? injected - head : 0);
    json_decref(said);
}

void vllm_stats_settle(is_run *r)
{
    bool known = r->has_cached, enough = known && r->n_cached >= r->n_planned;

    if (r->settled || !r->began) return;
    r->settled = true;
    if (!r->n_parts && !known) return; /* nothing was to be injected */
    /* Rows that were in its cache already were not injected: as many are ready. */
    if (enough && (!r->stats.tokens_injected || (!r->again && r->n_cached == r->n_planned) || r->at != r->fed_from))
        set(r, r->n_cached, r->stats.tokens_injected);
    else if (r->at == r->fed_from || !known) by_status(r, r->n_cached, known);
}

void vllm_stats(void *impl, is_run *r, is_run_stats *out)
{
    (void)impl;
    *out = r->stats;
}
