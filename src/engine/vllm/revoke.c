/* revoke.c - a tag's lower epochs are given up: by this process at once, by every server when it confirms. */
#include "engine/vllm/internal.h"

#include <stdio.h>
#include <string.h>

#include "kv/ticket.h"

/* ---- What is of use ---------------------------------------------------------------------------------------------------------------- */

static is_status raise_floor(vllm *e, const is_realm *r)
{
    is_status st = INFERSCALE_OK;
    uint32_t i = 0;

    pthread_mutex_lock(&e->lock);
    while (i < e->n_floors && memcmp(e->floors[i].tag, r->tag, IS_HASH_BYTES) != 0) i++;
    if (i == e->cap_floors) {
        uint32_t cap = e->cap_floors ? 2 * e->cap_floors : 64;
        vllm_floor *floors = is_realloc(e->floors, cap * sizeof *floors);

        if (floors) e->floors = floors, e->cap_floors = cap;
        else st = vllm_no_memory();
    }
    if (st == INFERSCALE_OK) {
        if (i == e->n_floors) memcpy(e->floors[e->n_floors++].tag, r->tag, IS_HASH_BYTES), e->floors[i].epoch = 0;
        if (e->floors[i].epoch < r->epoch) e->floors[i].epoch = r->epoch;
    }
    pthread_mutex_unlock(&e->lock);
    return st;
}

is_status vllm_realm_check(vllm *e, const is_realm *r)
{
    bool over = false;

    if (!r) return INFERSCALE_OK;
    pthread_mutex_lock(&e->lock);
    for (uint32_t i = 0; i < e->n_floors; i++)
        over = over || (e->floors[i].epoch > r->epoch && memcmp(e->floors[i].tag, r->tag, IS_HASH_BYTES) == 0);
    pthread_mutex_unlock(&e->lock);
    return over ? is_fail(INFERSCALE_E_STALE, "the memory that this was made of was changed or forgotten meanwhile; ask again") : INFERSCALE_OK;
}

/* ---- What servers have not confirmed --------------------------------------------------------------------------------------------------- */

enum { UNSEEN_MAX = 1 << 16 }; /* of a server that was never there: it may never be */

/* Under the lock. NULL: it has confirmed it, or was not asked. */
static vllm_pending *find(const vllm_upstream *u, const uint8_t *tag)
{
    for (uint32_t k = 0; k < u->n_pending; k++)
        if (memcmp(u->pending[k].of.tag, tag, IS_HASH_BYTES) == 0) return &u->pending[k];
    return NULL;
}

/* Under the lock. late: nobody else asks it, the keeper is to. */
static is_status pend(vllm_upstream *u, const is_realm *r, bool late)
{
    vllm_pending *p = find(u, r->tag);

    if (p) {
        if (p->of.epoch < r->epoch) p->of.epoch = r->epoch;
        p->late = p->late || late;
        return INFERSCALE_OK;
    }
    if (u->n_pending == u->cap_pending) {
        uint32_t cap = u->cap_pending ? 2 * u->cap_pending : 16;
        vllm_pending *list = is_realloc(u->pending, cap * sizeof *list);

        if (!list) return vllm_no_memory();
        u->pending = list;
        u->cap_pending = cap;
    }
    u->pending[u->n_pending++] = (vllm_pending){ .of = *r, .late = late };
    return INFERSCALE_OK;
}

/* The server has let go of everything below this epoch. */
static void confirmed(vllm *e, uint32_t i, const is_realm *r)
{
    vllm_upstream *u = &e->up[i];
    vllm_pending *p;
    bool late = false;

    pthread_mutex_lock(&e->lock);
    p = find(u, r->tag);
    if (p && p->of.epoch <= r->epoch) {
        late = p->late;
        memmove(p, p + 1, (size_t)(u->pending + --u->n_pending - p) * sizeof *p); /* in order: whose turn it is */
    }
    pthread_mutex_unlock(&e->lock);
    if (late) is_log(IS_LOG_INFO, "vLLM at %s has confirmed that it gave up what was forgotten", u->url);
}

/* It has not, and whoever asked waits no longer. Said once. */
static void hand_over(vllm *e, uint32_t i, const is_realm *r)
{
    vllm_pending *p;
    bool news;

    pthread_mutex_lock(&e->lock);
    p = find(&e->up[i], r->tag);
    news = p && !p->late;
    if (p) p->late = true;
    pthread_mutex_unlock(&e->lock);
    if (news) is_log(IS_LOG_WARN, "vLLM at %s has not confirmed that it gave up what was forgotten; it gets none of that work until it does",
                     e->up[i].url);
}

is_status vllm_revoke_end(vllm *e, uint32_t i, vllm_call *c, const is_realm *r, bool *ok)
{
    json_t *answer = NULL, *said = NULL;
    bool retry;
    is_status st = vllm_call_json(c, &answer, &retry);

    *ok = false;
    if (st == INFERSCALE_OK && vllm_ticket_answer(answer, &said, NULL) == INFERSCALE_OK) *ok = json_is_true(json_object_get(said, "ok"));
    json_decref(said);
    json_decref(answer);
    if (*ok) confirmed(e, i, r);
    return retry ? st : INFERSCALE_OK; /* a request that is refused says nothing of the server */
}

static is_status body_of(vllm *e, const is_realm *r, char **body)
{
    const int32_t prompt[] = { 0 };
    vllm_ask_for a = { .op = INFERSCALE_TICKET_REVOKE, .realm = *r, .prompt = prompt, .n_prompt = 1 };

    return vllm_ticket_body(e, &a, body);
}

/* Asks these servers at once and waits for them, wait_ms at most. Those that confirm are taken out of which. */
static is_status ask_servers(vllm *e, const is_realm *r, bool *which, uint32_t wait_ms)
{
    vllm_call *calls[VLLM_UPSTREAMS] = { NULL };
    double until = is_now_ms() + wait_ms;
    vllm_line *l = NULL;
    char *body = NULL;
    bool left = true;
    is_status st = body_of(e, r, &body);

    if (st == INFERSCALE_OK) st = vllm_line_take(e->http, &l);
    for (uint32_t i = 0; st == INFERSCALE_OK && i < e->n_up; i++)
        if (which[i])
            st = vllm_call_open(l, e->up[i].url, "/v1/completions", body, VLLM_ANSWER_MAX,
                                (vllm_patience){ vllm_limit.connect_ms, vllm_limit.small_ms }, &calls[i]);
    while (st == INFERSCALE_OK && left) {
        double now = is_now_ms();

        left = false;
        for (uint32_t i = 0; i < e->n_up; i++) {
            bool ok;

            if (!calls[i]) continue;
            if (vllm_call_end(calls[i]) == VLLM_PENDING) {
                left = true;
                continue;
            }
            vllm_revoke_end(e, i, calls[i], r, &ok);
            which[i] = !ok;
            vllm_call_close(calls[i]);
            calls[i] = NULL;
        }
        if (!left || now >= until || __atomic_load_n(&e->closing, __ATOMIC_ACQUIRE)) break;
        vllm_line_wait(l, until - now < 50 ? (uint32_t)(until - now) + 1 : 50);
    }
    vllm_line_give(l);
    is_free(body);
    return st;
}

/* Under the lock. Servers that were never there since this process began have had no work of it, but perhaps of one before. They are told as
 * soon as they are there, before they get work of that tag, and are not counted: nobody knows whether they ever come. */
static is_status pend_all(vllm *e, const is_realm *r, bool *which)
{
    is_status st = INFERSCALE_OK;

    for (uint32_t i = 0; st == INFERSCALE_OK && i < e->n_up; i++) {
        vllm_upstream *u = &e->up[i];

        which[i] = u->state != VLLM_NEW;
        if (which[i] || find(u, r->tag) || u->n_pending < UNSEEN_MAX) {
            st = pend(u, r, !which[i]);
        } else if (!u->overflowed) {
            u->overflowed = true;
            is_log(IS_LOG_WARN, "vLLM at %s was never there, and more was forgotten meanwhile than is remembered for it; if it is running, start it "
                   "anew before it is used", u->url);
        }
    }
    return st;
}

is_status vllm_revoke(void *impl, const is_realm *realm, uint32_t wait_ms, size_t *n_pending)
{
    vllm *e = impl;
    bool which[VLLM_UPSTREAMS] = { false };
    is_status st = raise_floor(e, realm);

    *n_pending = 0;
    VLLM_COUNT(e, revocations, 1);
    vllm_heads_forget(e->heads, realm->tag, realm->epoch);
    vllm_tokens_forget(e->tokens, realm->tag);
    pthread_mutex_lock(&e->lock);
    if (st == INFERSCALE_OK) st = pend_all(e, realm, which);
    pthread_mutex_unlock(&e->lock);
    if (st == INFERSCALE_OK) st = ask_servers(e, realm, which, wait_ms);
    for (uint32_t i = 0; i < e->n_up; i++) {
        *n_pending += which[i];
        if (which[i]) hand_over(e, i, realm);
    }
    if (st != INFERSCALE_OK || !*n_pending) return st;
    return is_fail(INFERSCALE_E_BUSY, "%zu vLLM servers have not confirmed yet that they gave up what was forgotten; they get no work of it and are "
                   "asked again", *n_pending);
}

/* ---- Again ------------------------------------------------------------------------------------------------------------------------------ */

/* Those that are taken go to the end, so that what is never confirmed is in nobody's way. */
uint32_t vllm_revoke_due(vllm *e, uint32_t i, is_realm *out, uint32_t most)
{
    vllm_upstream *u = &e->up[i];
    uint32_t n = 0;

    pthread_mutex_lock(&e->lock);
    if (u->state != VLLM_NEW && u->down_until_ms <= is_now_ms()) {
        for (uint32_t k = 0, left = u->n_pending; left && n < most; left--) {
            const vllm_pending p = u->pending[k];

            if (!p.late) {
                k++;
                continue;
            }
            out[n++] = p.of;
            memmove(&u->pending[k], &u->pending[k + 1], (u->n_pending - k - 1) * sizeof p);
            u->pending[u->n_pending - 1] = p;
        }
    }
    pthread_mutex_unlock(&e->lock);
    return n;
}

is_status vllm_revoke_begin(vllm *e, uint32_t i, vllm_line *l, const is_realm *r, uint32_t ms, vllm_call **out)
{
    char *body = NULL;
    is_status st = body_of(e, r, &body);

    *out = NULL;
    if (st == INFERSCALE_OK)
        st = vllm_call_open(l, e->up[i].url, "/v1/completions", body, VLLM_ANSWER_MAX, (vllm_patience){ vllm_limit.connect_ms, ms }, out);
    is_free(body);
    return st;
}
