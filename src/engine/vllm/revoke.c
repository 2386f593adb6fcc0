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

/* Under the lock. */
static is_status pend(vllm_upstream *u, const is_realm *r)
{
    for (uint32_t k = 0; k < u->n_pending; k++)
        if (memcmp(u->pending[k].tag, r->tag, IS_HASH_BYTES) == 0) {
            if (u->pending[k].epoch < r->epoch) u->pending[k].epoch = r->epoch;
            return INFERSCALE_OK;
        }
    if (u->n_pending == u->cap_pending) {
        uint32_t cap = u->cap_pending ? 2 * u->cap_pending : 16;
        is_realm *list = is_realloc(u->pending, cap * sizeof *list);

        if (!list) return vllm_no_memory();
        u->pending = list;
        u->cap_pending = cap;
    }
    u->pending[u->n_pending++] = *r;
    return INFERSCALE_OK;
}

/* The server has let go of everything below this epoch. */
static void confirmed(vllm *e, uint32_t i, const is_realm *r)
{
    vllm_upstream *u = &e->up[i];

    pthread_mutex_lock(&e->lock);
    for (uint32_t k = 0; k < u->n_pending; k++)
        if (memcmp(u->pending[k].tag, r->tag, IS_HASH_BYTES) == 0 && u->pending[k].epoch <= r->epoch) {
            u->pending[k] = u->pending[--u->n_pending];
            break;
        }
    pthread_mutex_unlock(&e->lock);
}

static bool says_ok(vllm_call *c)
{
    json_t *answer = NULL, *said = NULL;
    bool ok = false;

    if (vllm_call_end(c) != VLLM_ANSWERED || vllm_call_code(c) != 200) return false;
    answer = json_loadb(vllm_call_body(c)->len ? (const char *)vllm_call_body(c)->data : "", vllm_call_body(c)->len, 0, NULL);
    if (vllm_ticket_answer(answer, &said, NULL) == INFERSCALE_OK) ok = json_is_true(json_object_get(said, "ok"));
    json_decref(said);
    json_decref(answer);
    return ok;
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
            if (!calls[i]) continue;
            if (vllm_call_end(calls[i]) == VLLM_PENDING) {
                left = true;
                continue;
            }
            which[i] = !says_ok(calls[i]);
            if (!which[i]) confirmed(e, i, r);
            else is_log(IS_LOG_WARN, "vLLM at %s has not confirmed that it gave up what was forgotten; it gets none of that work until it does",
                        e->up[i].url);
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

/* Servers that were never described have had no work of anybody. */
is_status vllm_revoke(void *impl, const is_realm *realm, uint32_t wait_ms, size_t *n_pending)
{
    vllm *e = impl;
    bool which[VLLM_UPSTREAMS] = { false };
    is_status st = raise_floor(e, realm);

    *n_pending = 0;
    VLLM_COUNT(e, revocations, 1);
    vllm_heads_forget(e->heads, realm->tag);
    pthread_mutex_lock(&e->lock);
    for (uint32_t i = 0; st == INFERSCALE_OK && i < e->n_up; i++) {
        if (e->up[i].state != VLLM_READY) continue;
        which[i] = true;
        st = pend(&e->up[i], realm);
    }
    pthread_mutex_unlock(&e->lock);
    if (st == INFERSCALE_OK) st = ask_servers(e, realm, which, wait_ms);
    for (uint32_t i = 0; i < e->n_up; i++) *n_pending += which[i];
    if (st != INFERSCALE_OK || !*n_pending) return st;
    return is_fail(INFERSCALE_E_BUSY, "%zu vLLM servers have not confirmed yet that they gave up what was forgotten; they get no work of it and are "
                   "asked again", *n_pending);
}

void vllm_revoke_again(vllm *e)
{
    for (uint32_t i = 0; i < e->n_up; i++) {
        bool which[VLLM_UPSTREAMS] = { false }, any;
        is_realm r;

        pthread_mutex_lock(&e->lock);
        any = e->up[i].n_pending > 0 && e->up[i].down_until_ms <= is_now_ms();
        if (any) r = e->up[i].pending[0];
        pthread_mutex_unlock(&e->lock);
        which[i] = any;
        if (any && ask_servers(e, &r, which, vllm_limit.small_ms) != INFERSCALE_OK)
            is_log(IS_LOG_WARN, "a revocation could not be sent again: %s", is_error());
    }
}
