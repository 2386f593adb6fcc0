/* upstream.c - which server gets a request, and what is known of each.
 *
 * Work of one tag goes to one server as long as that has no more than its share (rendezvous hashing with a load bound: the blocks
 * of a conversation are there), all else to the least loaded. A server that fails is left alone for a while that doubles, and says what it
 * is before it gets work again: another model may be behind its address. When none is left, the one whose time comes first is tried all
 * the same. What a server says against a request is no failure of the server. */
#include "engine/vllm/internal.h"

#include <stdio.h>
#include <string.h>

enum { BACKOFF_MAX_MS = 30000, DESCRIBE_MS = 10000 };

bool vllm_flagged(vllm_flags f)
{
    return (f.cancel && __atomic_load_n(f.cancel, __ATOMIC_ACQUIRE)) || (f.stop && __atomic_load_n(f.stop, __ATOMIC_ACQUIRE));
}

is_status vllm_no_memory(void)
{
    return is_fail(INFERSCALE_E_NOMEM, "out of memory in the vLLM engine; free some and try again");
}

/* ---- Choosing ------------------------------------------------------------------------------------------------------------ */

bool vllm_upstream_pends(const vllm_upstream *u, const uint8_t *tag)
{
    for (uint32_t k = 0; tag && k < u->n_pending; k++)
        if (memcmp(u->pending[k].of.tag, tag, IS_HASH_BYTES) == 0) return true;
    return false;
}

/* How much this server is this tag's own. */
static uint64_t weight(const vllm_upstream *u, const uint8_t *tag)
{
    uint8_t mixed[IS_HASH_BYTES + 8];
    uint64_t server = is_checksum(u->url, strlen(u->url));

    memcpy(mixed, tag, IS_HASH_BYTES);
    memcpy(mixed + IS_HASH_BYTES, &server, 8);
    return is_checksum(mixed, sizeof mixed);
}

typedef struct choice { int own, least, soonest; uint32_t n_healthy, total; } choice;

/* The best by each rule among those that may be used. */
static choice look(const vllm *e, const uint8_t *tag, uint64_t tried, double now)
{
    choice c = { -1, -1, -1, 0, 0 };
    uint64_t best = 0;
    uint32_t bound;

    for (uint32_t i = 0; i < e->n_up; i++)
        if (e->up[i].state == VLLM_READY && e->up[i].down_until_ms <= now) c.n_healthy++, c.total += e->up[i].in_flight;
    bound = c.n_healthy ? (5 * (c.total + 1) + 4 * c.n_healthy - 1) / (4 * c.n_healthy) : 0;
    for (uint32_t i = 0; i < e->n_up; i++) {
        const vllm_upstream *u = &e->up[i];

        if (u->state != VLLM_READY || (tried >> i & 1) || vllm_upstream_pends(u, tag)) continue;
        if (u->down_until_ms > now) {
            if (c.soonest < 0 || u->down_until_ms < e->up[c.soonest].down_until_ms) c.soonest = (int)i;
            continue;
        }
        if (c.least < 0 || u->in_flight < e->up[c.least].in_flight) c.least = (int)i;
        if (tag && u->in_flight + 1 <= bound && (c.own < 0 || weight(u, tag) > best)) {
            best = weight(u, tag);
            c.own = (int)i;
        }
    }
    return c;
}

static is_status none_left(const vllm *e, const uint8_t *tag)
{
    uint32_t pending = 0, ready = 0, last = 0;

    for (uint32_t i = 0; i < e->n_up; i++) {
        ready += e->up[i].state == VLLM_READY;
        pending += e->up[i].state == VLLM_READY && vllm_upstream_pends(&e->up[i], tag);
        if (e->up[i].why[0]) last = i;
    }
    if (ready && pending == ready)
        return is_fail(INFERSCALE_E_BUSY, "no vLLM server has confirmed yet that it gave up what was forgotten; it is asked again, try later");
    return is_fail(INFERSCALE_E_ENGINE, "no vLLM server can take the request (%s: %s); see their logs, then try again", e->up[last].url,
                   e->up[last].why[0] ? e->up[last].why : "it has failed");
}

static is_status take(vllm *e, const uint8_t *tag, uint64_t *tried, uint32_t *i, bool *unsure)
{
    is_status st = INFERSCALE_OK;
    choice c;
    int found;

    pthread_mutex_lock(&e->lock);
    c = look(e, tag, *tried, is_now_ms());
    found = c.own >= 0 ? c.own : c.least >= 0 ? c.least : c.soonest;
    if (found >= 0) {
        *i = (uint32_t)found;
        *tried |= (uint64_t)1 << found;
        e->up[found].in_flight++;
        e->up[found].n_requests++;
        *unsure = e->up[found].unsure;
    } else {
        st = none_left(e, tag);
    }
    pthread_mutex_unlock(&e->lock);
    return st;
}

static bool is_ready(vllm *e, uint32_t i)
{
    bool ready;

    pthread_mutex_lock(&e->lock);
    ready = e->up[i].state == VLLM_READY;
    pthread_mutex_unlock(&e->lock);
    return ready;
}

is_status vllm_upstream_take(vllm *e, const uint8_t *tag, uint64_t *tried, vllm_flags flags, uint32_t *i)
{
    for (;;) {
        bool unsure = false;
        is_status st;

        IS_TRY(take(e, tag, tried, i, &unsure));
        if (!unsure) return INFERSCALE_OK;
        st = vllm_describe(e, *i, flags, DESCRIBE_MS);
        if (st == INFERSCALE_OK && is_ready(e, *i)) return st;
        vllm_upstream_give(e, *i, st == INFERSCALE_OK ? VLLM_NEITHER : vllm_outcome_of(st, true));
        if (st == INFERSCALE_E_CANCELLED) return st;
    }
}

bool vllm_upstream_take_this(vllm *e, const uint8_t *tag, uint64_t *tried, uint32_t i)
{
    vllm_upstream *u = &e->up[i];
    bool usable;

    pthread_mutex_lock(&e->lock);
    usable = u->state == VLLM_READY && !(*tried >> i & 1) && u->down_until_ms <= is_now_ms() && !u->unsure &&
             !vllm_upstream_pends(u, tag);
    if (usable) {
        *tried |= (uint64_t)1 << i;
        u->in_flight++;
        u->n_requests++;
    }
    pthread_mutex_unlock(&e->lock);
    return usable;
}

static void note_failure(vllm_upstream *u)
{
    uint32_t shift = u->n_row < 16 ? u->n_row : 16;
    double wait = (double)vllm_limit.backoff_ms * (1u << shift);

    u->n_failures++;
    u->n_row++;
    u->unsure = true;
    u->down_until_ms = is_now_ms() + (wait < BACKOFF_MAX_MS ? wait : BACKOFF_MAX_MS);
    snprintf(u->why, sizeof u->why, "%s", is_error());
}

/* Whom a server refuses is us, never who asks us. */
is_status vllm_server_fault(is_status st)
{
    char why[512];

    if (st != INFERSCALE_E_DENIED && st != INFERSCALE_E_NOTFOUND) return st;
    snprintf(why, sizeof why, "%s", is_error());
    return is_fail(INFERSCALE_E_ENGINE, "%s", why);
}

vllm_outcome vllm_outcome_of(is_status st, bool retry)
{
    if (st == INFERSCALE_OK) return VLLM_WORKED;
    return retry && st != INFERSCALE_E_BUSY && st != INFERSCALE_E_NOMEM && st != INFERSCALE_E_CANCELLED ? VLLM_FAILED : VLLM_NEITHER;
}

void vllm_upstream_give(vllm *e, uint32_t i, vllm_outcome outcome)
{
    pthread_mutex_lock(&e->lock);
    e->up[i].in_flight--;
    pthread_mutex_unlock(&e->lock);
    vllm_upstream_note(e, i, outcome);
}

void vllm_upstream_note(vllm *e, uint32_t i, vllm_outcome outcome)
{
    vllm_upstream *u = &e->up[i];
    bool fell = false, rose = false;

    pthread_mutex_lock(&e->lock);
    if (outcome == VLLM_FAILED) {
        fell = u->n_row == 0;
        note_failure(u);
    } else if (outcome == VLLM_WORKED) {
        rose = u->n_row > 0;
        u->n_row = 0;
        u->down_until_ms = 0;
        if (u->state == VLLM_READY) u->why[0] = 0;
    }
    pthread_mutex_unlock(&e->lock);
    if (fell) is_log(IS_LOG_WARN, "vLLM at %s fails and gets no work for a while: %s", u->url, is_error());
    if (rose) is_log(IS_LOG_INFO, "vLLM at %s works again", u->url);
}

void vllm_upstream_doubt(vllm *e, uint32_t i)
{
    pthread_mutex_lock(&e->lock);
    e->up[i].unsure = true;
    pthread_mutex_unlock(&e->lock);
}

/* ---- Asking -------------------------------------------------------------------------------------------------------------- */

is_status vllm_wait_all(vllm_line *l, vllm_call *const *calls, size_t n, vllm_flags flags)
{
    for (;;) {
        size_t pending = 0;

        if (vllm_flagged(flags)) return is_fail(INFERSCALE_E_CANCELLED, "cancelled while vLLM was asked");
        for (size_t i = 0; i < n; i++) pending += calls[i] && vllm_call_end(calls[i]) == VLLM_PENDING;
        if (!pending) return INFERSCALE_OK;
        vllm_line_wait(l, VLLM_POLL_MS);
    }
}

is_status vllm_call_json(vllm_call *c, json_t **out, bool *retry)
{
    *out = NULL;
    *retry = true;
    if (vllm_call_end(c) != VLLM_ANSWERED) return vllm_call_fail(c);
    if (vllm_call_code(c) != 200) return vllm_call_refused(c, retry);
    *out = json_loadb(vllm_call_body(c)->len ? (const char *)vllm_call_body(c)->data : "", vllm_call_body(c)->len, 0, NULL);
    if (*out) return INFERSCALE_OK;
    return is_fail(INFERSCALE_E_ENGINE, "%s does not answer in JSON; check that the address is a vLLM server's", vllm_call_url(c));
}

is_status vllm_ask(vllm *e, uint32_t up, const char *path, const char *body, vllm_flags flags, uint32_t ms, json_t **out, bool *retry)
{
    vllm_line *l;
    vllm_call *c = NULL;
    is_status st;

    *out = NULL;
    *retry = false;
    IS_TRY(vllm_line_take(e->http, &l));
    st = vllm_call_open(l, e->up[up].url, path, body, VLLM_ANSWER_MAX, (vllm_patience){ vllm_limit.connect_ms, ms }, &c);
    if (st == INFERSCALE_OK) st = vllm_wait_all(l, &c, 1, flags);
    if (st == INFERSCALE_OK) st = vllm_call_json(c, out, retry);
    vllm_line_give(l);
    return st;
}

static int add_bytes(const char *p, size_t n, void *buf)
{
    is_buf_add(buf, p, n);
    return is_buf_ok(buf) ? 0 : -1;
}

is_status vllm_body_for(vllm *e, uint32_t i, const char *body, char **out)
{
    is_buf b = IS_BUF_INIT;
    json_t *name;

    pthread_mutex_lock(&e->lock);
    name = json_string(e->up[i].served);
    pthread_mutex_unlock(&e->lock);
    is_buf_str(&b, "{\"model\":");
    if (!name || json_dump_callback(name, add_bytes, &b, JSON_ENCODE_ANY) != 0) b.failed = true;
    json_decref(name);
    is_buf_u8(&b, ',');
    is_buf_str(&b, body + 1);
    *out = is_buf_take(&b);
    return *out ? INFERSCALE_OK : vllm_no_memory();
}

static is_status ask_named(vllm *e, uint32_t i, const char *path, const char *body, vllm_flags flags, uint32_t ms, json_t **out, bool *retry)
{
    char *named = NULL;
    is_status st = vllm_body_for(e, i, body, &named);

    *retry = false;
    if (st == INFERSCALE_OK) st = vllm_server_fault(vllm_ask(e, i, path, named, flags, ms, out, retry));
    is_free(named);
    return st;
}

is_status vllm_ask_any(vllm *e, const uint8_t *tag, const char *path, const char *body, vllm_flags flags, uint32_t ms, json_t **out)
{
    char why[1024] = "";
    uint64_t tried = 0;
    bool retry = true;
    is_status st = INFERSCALE_OK;

    for (uint32_t n = 0;; n++) {
        uint32_t i;
        is_status taken = n == 0 || retry ? vllm_upstream_take(e, tag, &tried, flags, &i) : INFERSCALE_E_ENGINE;

        if (n == 0 || taken == INFERSCALE_E_CANCELLED) IS_TRY(taken);
        if (taken != INFERSCALE_OK) return is_fail(st, "%s", why); /* the sentence belongs to the status */
        if (n) VLLM_COUNT(e, retries, 1);
        st = ask_named(e, i, path, body, flags, ms, out, &retry);
        if (st != INFERSCALE_OK) snprintf(why, sizeof why, "%s", is_error());
        vllm_upstream_give(e, i, vllm_outcome_of(st, retry));
        if (st == INFERSCALE_OK || !retry) return st;
    }
}
