/* mock_remote.c - the mock as an engine that computes elsewhere: calls do all there is to do on the caller's thread, news of stored
 * rows that were not used come when the answer is over, and what was revoked is refused. */
#include "engine/mock/mock.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

/* ---- Whole calls --------------------------------------------------------------------------------------------------------- */

/* Steps the run alone until what it was given is done. */
static is_status do_all(mock *m, is_run *run)
{
    for (;;) {
        is_lane lane = { .run = run, .most = MOCK_BATCH };

        mock_seen_step(m, &lane, 1);
        if (lane.status != INFERSCALE_OK) return is_fail(lane.status, "%s", lane.why);
        if (lane.done) return INFERSCALE_OK;
    }
}

static is_status check_up(const mock *m)
{
    if (!m->opt.remote || !m->opt.down) return INFERSCALE_OK;
    return is_fail(INFERSCALE_E_ENGINE, "mock: its server is not up; drop `down` to go on");
}

is_status mock_whole_begin(void *impl, const is_plan *plan, const is_run_opts *opts, is_run **run)
{
    mock *m = impl;
    is_status st;

    *run = NULL;
    IS_TRY(check_up(m));
    st = mock_seen_begin(impl, plan, opts, run);
    if (st != INFERSCALE_OK || !m->opt.remote) return st;
    if (opts && opts->on_begun) opts->on_begun(opts->begun_ctx);
    st = do_all(m, *run);
    if (st == INFERSCALE_OK) return st;
    mock_finish(m, *run);
    *run = NULL;
    return st;
}

static is_status go_on(mock *m, is_run *run)
{
    is_status st = do_all(m, run);

    if (st != INFERSCALE_OK) mock_seen_undo(m, run);
    return st;
}

is_status mock_whole_more(void *impl, is_run *run, const is_plan *more, const is_run_opts *opts)
{
    mock *m = impl;

    IS_TRY(check_up(m));
    IS_TRY(mock_seen_more(impl, run, more, opts));
    if (m->opt.remote && opts && opts->on_begun) opts->on_begun(opts->begun_ctx);
    return m->opt.remote ? go_on(m, run) : INFERSCALE_OK;
}

is_status mock_whole_token(void *impl, is_run *run, int32_t token)
{
    mock *m = impl;

    IS_TRY(mock_seen_token(impl, run, token));
    return m->opt.remote ? go_on(m, run) : INFERSCALE_OK;
}

void mock_rest(void *impl, is_run *run)
{
    (void)impl;
    run->over = true;
}

/* ---- What may be used ---------------------------------------------------------------------------------------------------- */

bool mock_is_revoked(mock *m, const is_realm *realm)
{
    bool gone = false;

    if (!realm) return false;
    pthread_mutex_lock(&m->lock);
    for (size_t i = 0; i < m->n_revoked && !gone; i++)
        gone = memcmp(m->revoked[i].tag, realm->tag, IS_HASH_BYTES) == 0 && realm->epoch < m->revoked[i].epoch;
    pthread_mutex_unlock(&m->lock);
    return gone;
}

bool mock_refuses_part(is_run *r)
{
    mock *m = r->m;
    const bool late = m->opt.late[0] && ++r->n_stored >= m->opt.late_from, stale = r->has_realm && mock_is_revoked(m, &r->realm);

    if (late || stale) snprintf(r->reason, sizeof r->reason, "%s", stale ? "epoch" : m->opt.late);
    pthread_mutex_lock(&m->lock);
    if (late || stale) m->n_late++;
    else m->n_injected += r->plan->parts[r->part].n_tokens;
    pthread_mutex_unlock(&m->lock);
    return late || stale;
}

static is_status note_revoked(mock *m, const is_realm *realm)
{
    is_realm *more;

    for (size_t i = 0; i < m->n_revoked; i++) {
        if (memcmp(m->revoked[i].tag, realm->tag, IS_HASH_BYTES) != 0) continue;
        if (realm->epoch > m->revoked[i].epoch) m->revoked[i].epoch = realm->epoch;
        return INFERSCALE_OK;
    }
    more = is_realloc(m->revoked, (m->n_revoked + 1) * sizeof *more);
    if (!more) return is_fail(INFERSCALE_E_NOMEM, "mock: no memory for a revocation; free some and try again");
    m->revoked = more;
    more[m->n_revoked++] = *realm;
    return INFERSCALE_OK;
}

is_status mock_revoke(void *impl, const is_realm *realm, uint32_t wait_ms, size_t *n_pending)
{
    mock *m = impl;
    bool silent;
    is_status st;

    (void)wait_ms;
    *n_pending = 0;
    if (!m->opt.remote) return INFERSCALE_OK;
    pthread_mutex_lock(&m->lock);
    silent = m->n_refused < m->opt.n_pending;
    m->n_refused += silent;
    st = note_revoked(m, realm);
    pthread_mutex_unlock(&m->lock);
    if (st != INFERSCALE_OK || !silent) return st;
    *n_pending = 1;
    return is_fail(INFERSCALE_E_BUSY, "the mock's server has not confirmed that it let go of what was changed or forgotten; try again");
}

size_t mock_upstreams(void *impl, is_upstream *out, size_t most)
{
    mock *m = impl;

    if (!m->opt.remote) return 0;
    if (most == 0) return 1;
    memset(out, 0, sizeof *out);
    snprintf(out->url, sizeof out->url, "mock://server");
    snprintf(out->version, sizeof out->version, "mock 1");
    snprintf(out->model, sizeof out->model, "mock");
    memcpy(out->fingerprint, m->fingerprint, sizeof out->fingerprint);
    out->up = !m->opt.down;
    out->can_inject = out->up && !m->opt.noinject;
    if (m->opt.down) snprintf(out->why, sizeof out->why, "the mock was told to be down");
    else if (m->opt.noinject) snprintf(out->why, sizeof out->why, "the mock was told not to inject (noinject)");
    pthread_mutex_lock(&m->lock);
    out->n_requests = m->n_begun;
    out->tokens_injected = m->n_injected;
    out->n_pending = m->n_refused < m->opt.n_pending && m->n_revoked;
    out->n_reasons = m->n_late > 0;
    snprintf(out->reasons[0].code, sizeof out->reasons[0].code, "%s", m->opt.late[0] ? m->opt.late : "epoch");
    out->reasons[0].n = m->n_late;
    pthread_mutex_unlock(&m->lock);
    return 1;
}
