/* mock_remote.c - the mock as an engine that computes elsewhere: calls do all there is to do on the caller's thread, news of stored
 * rows that were not used come when the answer is over, and what was revoked is refused. */
#include "engine/mock/mock.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"
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

/* ---- Rows, from the store's folder ---------------------------------------------------------------------------------------- */

static const char *code_of(is_status st)
{
    switch (st) {
    case INFERSCALE_E_NOTFOUND: return "missing";
    case INFERSCALE_E_CORRUPT: return "torn";
    case INFERSCALE_E_FOREIGN: return "model";
    default: return "failed";
    }
}

/* As a worker would: of the file, whatever its host remembers of it. */
static is_status read_rows(const mock *m, is_segment *given, is_segment **out)
{
    char hex[IS_HASH_HEX], path[4200];
    is_status st;

    *out = NULL;
    if (is_segment_has_rows(given)) {
        *out = is_segment_ref(given);
        return INFERSCALE_OK;
    }
    if (m->opt.blind || !m->vault) return is_fail(INFERSCALE_E_NOTFOUND, "the mock's server sees no folder of segments");
    is_hex(is_segment_info(given)->name, IS_HASH_BYTES, hex);
    snprintf(path, sizeof path, "%s/%.2s/%s.seg", m->vault, hex, hex);
    st = is_segment_read(is_fs_default(), path, out);
    if (st != INFERSCALE_OK || memcmp(is_segment_info(*out)->name, is_segment_info(given)->name, IS_HASH_BYTES) == 0) return st;
    is_segment_unref(*out);
    *out = NULL;
    return is_fail(INFERSCALE_E_FOREIGN, "a segment's file holds another segment");
}

static void note_bad(is_run *r, const is_segment *s, const char *code)
{
    is_run_stats *f = &r->found;

    if (f->n_bad == IS_BAD_MAX) return;
    memcpy(f->bad[f->n_bad].name, is_segment_info(s)->name, IS_HASH_BYTES);
    snprintf(f->bad[f->n_bad++].reason, sizeof f->bad[0].reason, "%s", code);
}

/* Rows are taken without a gap, as vLLM takes them: behind the first part that is computed all are. */
is_status mock_take_part(is_run *r, is_segment **rows)
{
    mock *m = r->m;
    is_segment *given = r->plan->parts[r->part].segment;
    const char *why = NULL;
    is_status st;

    if (!m->opt.remote) {
        *rows = is_segment_ref(given);
        return INFERSCALE_OK;
    }
    st = read_rows(m, given, rows);
    if (st == INFERSCALE_E_NOMEM) return st;
    if (st != INFERSCALE_OK) note_bad(r, given, why = code_of(st));
    if (m->opt.late[0] && ++r->n_stored >= m->opt.late_from) why = m->opt.late;
    if (r->has_realm && mock_is_revoked(m, &r->realm)) why = "epoch";
    if (r->n_refused && !why) why = r->reason;
    pthread_mutex_lock(&m->lock);
    if (why) {
        if (!r->n_refused) snprintf(r->reason, sizeof r->reason, "%s", why);
        m->n_late++;
        snprintf(m->late_why, sizeof m->late_why, "%s", why);
    } else {
        m->n_injected += r->plan->parts[r->part].n_tokens;
    }
    pthread_mutex_unlock(&m->lock);
    if (why) {
        is_segment_unref(*rows);
        *rows = NULL;
    }
    return INFERSCALE_OK;
}

/* The same capture with the rows of its stored context; without a stored context if some cannot be read. */
static is_status with_rows(const mock *m, const is_capture *c, is_capture *out, is_segment ***rows)
{
    is_status st = INFERSCALE_OK;
    uint32_t n = 0;

    *out = *c;
    *rows = is_calloc((size_t)c->n_stored + 1, sizeof **rows);
    if (!*rows) return is_fail(INFERSCALE_E_NOMEM, "mock: no memory for stored context; free some and try again");
    for (; n < c->n_stored && st == INFERSCALE_OK && c->stored && c->stored[n]; n++) st = read_rows(m, c->stored[n], &(*rows)[n]);
    out->stored = *rows;
    if (st != INFERSCALE_OK) out->n_stored = 0;
    return st == INFERSCALE_E_NOMEM ? st : INFERSCALE_OK;
}

is_status mock_capture_elsewhere(mock *m, is_capture *c, size_t n)
{
    is_capture *mine = is_calloc(n + 1, sizeof *mine);
    is_segment ***rows = is_calloc(n + 1, sizeof *rows);
    is_status st = mine && rows ? INFERSCALE_OK : is_fail(INFERSCALE_E_NOMEM, "mock: no memory for %zu spans; free some and try again", n);

    for (size_t i = 0; i < n && st == INFERSCALE_OK; i++) st = with_rows(m, &c[i], &mine[i], &rows[i]);
    if (st == INFERSCALE_OK) st = mock_capture_here(m, mine, n);
    for (size_t i = 0; mine && rows && i < n; i++) {
        c[i].n_computed = mine[i].n_computed;
        c[i].n_injected = mine[i].n_injected;
        for (uint32_t k = 0; rows[i] && k < c[i].n_stored; k++) is_segment_unref(rows[i][k]);
        is_free(rows[i]);
    }
    is_free(rows);
    is_free(mine);
    return st;
}

/* ---- Giving up ------------------------------------------------------------------------------------------------------------ */

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
    snprintf(out->reasons[0].code, sizeof out->reasons[0].code, "%s", m->late_why);
    out->reasons[0].n = m->n_late;
    pthread_mutex_unlock(&m->lock);
    return 1;
}
