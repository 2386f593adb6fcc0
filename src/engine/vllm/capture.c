/* capture.c - rows of spans: a request each, several under way at once; the workers' files come through the spool.
 *
 * What stands before the stored part of a context is supplied as a head, since vLLM takes stored rows only from the beginning on; for
 * a context without stored parts only when it was asked for before (the header that all facts are encoded after). Rows that belong to a run
 * are captured under its salt and behind its own parts, on one server. */
#include "engine/vllm/internal.h"

#include <string.h>

#include "kv/ticket.h"

enum { COMING_MAX = 65536 };

typedef struct job {
    is_capture *c;
    vllm_rows_how *how;             /* NULL: of nobody's run */
    int32_t *prompt;                /* context + span */
    uint32_t n_prompt, n_stored;    /* n_stored: tokens of the stored part */
    vllm_part *parts;
    uint32_t n_parts;
    uint8_t id[16];
    bool sent;                      /* files of this id may come */
    uint64_t tried;
    uint32_t up;
    vllm_call *call;
    uint32_t n_coming;              /* files that are on their way from another host: the call has ended, the server still counts as busy */
    bool done;
} job;

/* ---- Checking and preparing ----------------------------------------------------------------------------------------------------- */

static is_status check_tokens(const vllm *e, const int32_t *tokens, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (tokens[i] < 0 || (uint32_t)tokens[i] >= e->model->n_vocab)
            return is_fail(INFERSCALE_E_INVALID, "token %d is not in the vocabulary of %u", tokens[i], e->model->n_vocab);
    return INFERSCALE_OK;
}

static is_status check_stored(const vllm *e, const is_capture *c, uint32_t *n_stored)
{
    uint64_t n = 0;
    uint32_t at;

    for (uint32_t i = 0; i < c->n_stored; i++) n += is_segment_info(c->stored[i])->n_tokens;
    if (n > c->n_context)
        return is_fail(INFERSCALE_E_INVALID, "the stored part has %llu tokens, the context %u", (unsigned long long)n, c->n_context);
    *n_stored = (uint32_t)n;
    at = c->n_context - *n_stored;
    for (uint32_t i = 0; i < c->n_stored; i++) {
        const is_segment_desc *d = is_segment_info(c->stored[i]);

        if (memcmp(d->fingerprint, e->model->fingerprint, IS_HASH_BYTES) != 0 ||
            memcmp(d->tokens, c->context + at, d->n_tokens * sizeof *d->tokens) != 0)
            return is_fail(INFERSCALE_E_INVALID, "segment %u of the stored part is of another model or of other tokens", i);
        at += d->n_tokens;
    }
    return INFERSCALE_OK;
}

static is_status check(const vllm *e, const is_capture *c, uint32_t *n_stored)
{
    if (!e->model->can_inject) return is_fail(INFERSCALE_E_UNSUPPORTED, "rows of this model are not captured: %s", e->model->why_not);
    if (c->n_span == 0) return is_fail(INFERSCALE_E_INVALID, "the span to capture is empty");
    if ((uint64_t)c->n_context + c->n_span + 1 > e->model->n_ctx)
        return is_fail(INFERSCALE_E_CONTEXT, "%llu tokens do not fit into the context of %u; encode with a shorter context",
                       (unsigned long long)c->n_context + c->n_span, e->model->n_ctx);
    IS_TRY(check_tokens(e, c->context, c->n_context));
    IS_TRY(check_tokens(e, c->span, c->n_span));
    return check_stored(e, c, n_stored);
}

/* Parts: the head, and the stored segments behind it. Without the head they cannot be injected: vLLM computes all of it, exactly. */
static is_status add_parts(vllm *e, job *j)
{
    const is_capture *c = j->c;
    uint32_t n_pre = c->n_context - j->n_stored, pos = n_pre;
    vllm_flags flags = { c->cancel, NULL };

    j->parts = is_calloc((size_t)c->n_stored + 1, sizeof *j->parts);
    if (!j->parts) return vllm_no_memory();
    if (n_pre) {
        is_status st = vllm_heads_get(e, c->n_common >= n_pre ? NULL : c->realm, c->context, n_pre, c->n_stored > 0, flags, j->parts);

        if (st == INFERSCALE_E_CANCELLED || st == INFERSCALE_E_NOMEM) return st;
        if (st != INFERSCALE_OK) return INFERSCALE_OK;
        j->n_parts = 1;
    }
    for (uint32_t i = 0; i < c->n_stored; i++) {
        vllm_part *p = &j->parts[j->n_parts++];

        memcpy(p->name, is_segment_info(c->stored[i])->name, IS_HASH_BYTES);
        p->pos = pos;
        p->n_tokens = is_segment_info(c->stored[i])->n_tokens;
        pos += p->n_tokens;
    }
    return INFERSCALE_OK;
}

static is_status take_parts(job *j)
{
    j->parts = is_calloc((size_t)j->how->n_parts + 1, sizeof *j->parts);
    if (!j->parts) return vllm_no_memory();
    j->n_parts = j->how->n_parts;
    if (j->n_parts) memcpy(j->parts, j->how->parts, j->n_parts * sizeof *j->parts);
    return INFERSCALE_OK;
}

static is_status prepare(vllm *e, is_capture *c, vllm_rows_how *how, job *j)
{
    *j = (job){ .c = c, .how = how };
    c->n_computed = c->n_injected = 0;
    IS_TRY(check(e, c, &j->n_stored));
    IS_TRY(vllm_realm_check(e, c->realm));
    j->n_prompt = c->n_context + c->n_span;
    j->prompt = is_malloc(j->n_prompt * sizeof *j->prompt);
    if (!j->prompt) return vllm_no_memory();
    if (c->n_context) memcpy(j->prompt, c->context, c->n_context * sizeof *j->prompt);
    memcpy(j->prompt + c->n_context, c->span, c->n_span * sizeof *j->prompt);
    return how ? take_parts(j) : add_parts(e, j);
}

/* ---- A request ------------------------------------------------------------------------------------------------------------------- */

static is_status send_job(vllm *e, vllm_line *l, job *j)
{
    const uint8_t *tag = j->c->realm ? j->c->realm->tag : NULL;
    vllm_ask_for a = { .op = INFERSCALE_TICKET_CAPTURE, .prompt = j->prompt, .n_prompt = j->n_prompt, .parts = j->parts, .n_parts = j->n_parts,
                       .capture_begin = j->c->n_context, .capture_n = j->c->n_span };
    char *body = NULL;
    is_status st;

    if (j->how && j->how->has_up) {
        if (!vllm_upstream_take_this(e, tag, &j->tried, j->how->up))
            return is_fail(INFERSCALE_E_ENGINE, "the server that has the earlier turns takes no requests now");
        j->up = j->how->up;
    } else {
        IS_TRY(vllm_upstream_take(e, tag, &j->tried, (vllm_flags){ j->c->cancel, NULL }, &j->up));
    }
    if (j->how) {
        memcpy(a.salt, j->how->salt, sizeof a.salt);
        a.salted = true;
    }
    if (j->c->realm) a.realm = *j->c->realm;
    vllm_spool_id(e, j->id);
    memcpy(a.id, j->id, sizeof a.id);
    j->sent = true;
    st = vllm_arrivals_expect(e, j->id, j->c->n_span);
    if (st == INFERSCALE_OK) st = vllm_ticket_body(e, &a, &body);
    if (st == INFERSCALE_OK)
        st = vllm_call_open(l, e->up[j->up].url, "/v1/completions", body, VLLM_ANSWER_MAX,
                            (vllm_patience){ vllm_limit.connect_ms, vllm_limit.silent_ms }, &j->call);
    is_free(body);
    if (st != INFERSCALE_OK) vllm_upstream_give(e, j->up, VLLM_NEITHER);
    return st;
}

/* What the answer says of a capture that was made. */
static is_status read_answer(vllm *e, job *j, const json_t *answer)
{
    const json_t *usage = json_object_get(answer, "usage"),
        *cached = json_object_get(json_object_get(usage, "prompt_tokens_details"), "cached_tokens");
    json_int_t n = json_is_integer(cached) ? json_integer_value(cached) : 0;
    uint32_t n_pre = j->c->n_context - j->n_stored;
    const char *text;
    json_t *said;
    json_int_t coming;
    bool good;
    char why[160];

    IS_TRY(vllm_ticket_answer(answer, &said, NULL));
    vllm_bad_take(e, said, NULL); /* of the vault's the next question hears */
    good = json_is_true(json_object_get(said, "ok"));
    text = json_string_value(json_object_get(said, "why"));
    snprintf(why, sizeof why, "%s", text && *text ? text : "it does not say why");
    coming = json_integer_value(json_object_get(said, "coming"));
    json_decref(said);
    if (!good) return is_fail(INFERSCALE_E_ENGINE, "the connector did not capture rows (%s); see vLLM's log", why);
    if (coming < 0 || coming > COMING_MAX) return is_fail(INFERSCALE_E_ENGINE, "the connector says that %lld files are coming", (long long)coming);
    j->n_coming = (uint32_t)coming;
    if (n < 0 || n > (json_int_t)j->c->n_context) n = n < 0 ? 0 : j->c->n_context;
    j->c->n_computed = j->n_prompt - (uint32_t)n;
    j->c->n_injected = (uint32_t)n > n_pre ? (uint32_t)n - n_pre : 0;
    return INFERSCALE_OK;
}

/* The rows are here, or will not be. OK with done, or to be sent anew, or a failure that counts. blamed: it says something of the server. One
 * whose connector knows another secret, or reaches no gateway, computes answers all the same. */
static is_status settle_job(vllm *e, job *j, is_status st, bool retry, bool blamed)
{
    if (st == INFERSCALE_OK) {
        st = vllm_spool_take(e, j->id, j->c->span, j->c->n_span, j->c->rows);
        j->sent = false;
    }
    j->n_coming = 0;
    vllm_upstream_give(e, j->up, blamed ? vllm_outcome_of(st, retry) : VLLM_NEITHER);
    j->done = st == INFERSCALE_OK;
    if (st == INFERSCALE_OK) {
        VLLM_COUNT(e, captures, 1);
        VLLM_COUNT(e, captured_tokens, j->c->n_span);
        return st;
    }
    if (j->sent) vllm_spool_drop(e, j->id);
    j->sent = false;
    if (!retry || j->how || st == INFERSCALE_E_NOMEM) return st; /* what one server has of a run the next one has not */
    for (uint32_t i = 0; i < e->n_up; i++)
        if (!(j->tried >> i & 1)) return VLLM_COUNT(e, retries, 1), INFERSCALE_OK; /* once on each */
    return st;
}

/* A call has ended. Where the rows come from another host, they may not be here yet. */
static is_status end_job(vllm *e, job *j)
{
    bool retry = true, blamed = true;
    json_t *answer = NULL;
    is_status st = vllm_call_end(j->call) == VLLM_ANSWERED ? INFERSCALE_OK : vllm_call_fail(j->call);

    if (st == INFERSCALE_OK && vllm_call_code(j->call) != 200) st = vllm_call_refused(j->call, &retry);
    if (st == INFERSCALE_OK) {
        const is_buf *b = vllm_call_body(j->call);

        answer = json_loadb(b->len ? (const char *)b->data : "", b->len, 0, NULL);
        st = answer ? read_answer(e, j, answer) : is_fail(INFERSCALE_E_ENGINE, "%s does not answer in JSON", vllm_call_url(j->call));
        blamed = st != INFERSCALE_E_DENIED;
    }
    json_decref(answer);
    vllm_call_close(j->call);
    j->call = NULL;
    return st == INFERSCALE_OK && j->n_coming ? st : settle_job(e, j, st, retry, blamed);
}

static is_status await_rows(vllm *e, job *j)
{
    double since;

    if (vllm_arrivals_count(e, j->id, &since) >= j->n_coming) return settle_job(e, j, INFERSCALE_OK, true, true);
    if (is_now_ms() - since < vllm_limit.arrive_ms) return INFERSCALE_OK;
    return settle_job(e, j, is_fail(INFERSCALE_E_ENGINE, "captured rows do not come from %s (%u of %u files did); its log says why it cannot reach "
                                    "this gateway", e->up[j->up].url, vllm_arrivals_count(e, j->id, &since), j->n_coming), true, false);
}

/* ---- All of them ------------------------------------------------------------------------------------------------------------------ */

/* While questions are open: one, which vLLM schedules beside them piece by piece, as it does every prompt. */
static size_t most_at_once(const is_capture *c)
{
    return c->crowded && __atomic_load_n(c->crowded, __ATOMIC_ACQUIRE) ? 1 : VLLM_CAPTURES;
}

static is_status run_jobs(vllm *e, vllm_line *l, job *jobs, size_t n, vllm_flags flags)
{
    for (;;) {
        size_t under_way = 0, left = 0;

        if (vllm_flagged(flags)) return is_fail(INFERSCALE_E_CANCELLED, "cancelled while vLLM encoded");
        for (size_t i = 0; i < n; i++) {
            if (jobs[i].call && vllm_call_end(jobs[i].call) != VLLM_PENDING) IS_TRY(end_job(e, &jobs[i]));
            if (jobs[i].n_coming && !jobs[i].call) IS_TRY(await_rows(e, &jobs[i]));
            under_way += jobs[i].call || jobs[i].n_coming;
            left += !jobs[i].done;
        }
        if (!left) return INFERSCALE_OK;
        for (size_t i = 0; i < n && under_way < most_at_once(jobs[0].c); i++) {
            if (jobs[i].call || jobs[i].n_coming || jobs[i].done) continue;
            IS_TRY(send_job(e, l, &jobs[i]));
            under_way++;
        }
        vllm_line_wait(l, VLLM_POLL_MS);
    }
}

static void free_job(vllm *e, job *j)
{
    if (j->call) vllm_call_close(j->call); /* cut: vLLM gives it up */
    if (j->call || j->n_coming) vllm_upstream_give(e, j->up, VLLM_NEITHER);
    if (j->sent) vllm_spool_drop(e, j->id);
    is_free(j->prompt);
    is_free(j->parts);
}

static is_status capture(vllm *e, is_capture *c, size_t n, vllm_rows_how *how)
{
    job *jobs = is_calloc(n + 1, sizeof *jobs);
    vllm_line *l = NULL;
    is_status st = jobs ? INFERSCALE_OK : vllm_no_memory();

    for (size_t i = 0; i < n && st == INFERSCALE_OK; i++) {
        if (c[i].pos0 != c[0].pos0) st = is_fail(INFERSCALE_E_INVALID, "spans that are captured together begin at one position");
        else st = prepare(e, &c[i], how, &jobs[i]);
    }
    if (st == INFERSCALE_OK) st = vllm_line_take(e->http, &l);
    if (st == INFERSCALE_OK) st = run_jobs(e, l, jobs, n, (vllm_flags){ c[0].cancel, NULL });
    if (st == INFERSCALE_OK && how) how->up = jobs[0].up;
    st = vllm_server_fault(st);
    for (size_t i = 0; jobs && i < n; i++) free_job(e, &jobs[i]);
    vllm_line_give(l);
    is_free(jobs);
    for (size_t i = 0; i < n && st != INFERSCALE_OK; i++) c[i].n_computed = c[i].n_injected = 0;
    return st;
}

is_status vllm_capture(void *impl, is_capture *c, size_t n)
{
    return capture(impl, c, n, NULL);
}

is_status vllm_capture_of_run(vllm *e, is_capture *c, vllm_rows_how *how)
{
    return capture(e, c, 1, how);
}
