/* calibrate.c - see calibrate.h. */
#include "api/calibrate.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"

/* AT_ONCE: texts; servers limit them. QUESTION_MS: how long a question waits for some of them, and
 * until when it asks for more. */
enum { AT_ONCE = 16, RETRY_MS = 60000, QUESTION_MS = 2000 };

static void learn(is_measured *m, const is_calibration *c)
{
    pthread_mutex_lock(&m->lock);
    m->calibration = *c;
    m->known = true;
    pthread_mutex_unlock(&m->lock);
}

is_status is_handle_calibration(inferscale *is, is_bank *bank, is_calibration *out, bool *known)
{
    is_measured *m = &is->measured;
    is_status st = INFERSCALE_OK;

    pthread_mutex_lock(&m->lock);
    *known = m->known;
    *out = m->calibration;
    pthread_mutex_unlock(&m->lock);
    if (*known) return INFERSCALE_OK;
    *known = is_calibration_built_in(is->embedder, out);
    if (!*known) {
        st = is_bank_get_calibration(bank, is_embedder_fingerprint(is->embedder), &out->low,
                                     &out->high);
        *known = st == INFERSCALE_OK && is_calibration_valid(out);
    }
    if (*known) learn(m, out);
    return st == INFERSCALE_E_NOTFOUND ? INFERSCALE_OK : st;
}

/* May this thread measure now? */
static bool begin(is_measured *m, bool again)
{
    const double now = is_now_ms();
    bool mine;

    pthread_mutex_lock(&m->lock);
    mine = !m->measuring && (again || (!m->known && m->retry_ms <= now));
    if (mine) m->measuring = true;
    pthread_mutex_unlock(&m->lock);
    return mine;
}

static void end(is_measured *m, bool failed)
{
    pthread_mutex_lock(&m->lock);
    m->measuring = false;
    m->retry_ms = failed ? is_now_ms() + RETRY_MS : 0;
    pthread_mutex_unlock(&m->lock);
}

static is_status measure(inferscale *is, bool question, const volatile int *cancel,
                         is_calibration *out)
{
    const uint32_t dim = is_embedder_dim(is->embedder);
    const double t0 = is_now_ms();
    float *vecs = is_malloc((size_t)IS_CALIBRATION_TEXTS * dim * sizeof *vecs);
    is_status st = INFERSCALE_OK;

    if (!vecs) return is_fail(INFERSCALE_E_NOMEM, "out of memory for vectors; free some and try again");
    for (size_t i = 0; i < IS_CALIBRATION_TEXTS && st == INFERSCALE_OK; i += AT_ONCE) {
        const char *const *texts = is_calibration_texts + i;
        float *out_i = vecs + i * dim;

        if (!question) st = is_embedder_embed_background(is->embedder, texts, AT_ONCE, out_i, cancel);
        else if (is_now_ms() - t0 < QUESTION_MS)
            st = is_embedder_embed_within(is->embedder, texts, AT_ONCE, out_i, QUESTION_MS);
        else
            st = is_fail(INFERSCALE_E_ENGINE, "a question cannot wait for %d texts", IS_CALIBRATION_TEXTS);
    }
    if (st == INFERSCALE_OK) *out = is_calibration_of(vecs, dim);
    is_free(vecs);
    return st;
}

void is_handle_calibrate(inferscale *is, is_bank *bank, int how, const volatile int *cancel)
{
    is_measured *m = &is->measured;
    is_calibration c;
    bool known = false;
    is_status st = is_handle_calibration(is, bank, &c, &known);

    if (st == INFERSCALE_OK && known && how != IS_CALIBRATE_AGAIN) return;
    if (is_calibration_built_in(is->embedder, &c) || !begin(m, how == IS_CALIBRATE_AGAIN)) return;
    st = measure(is, how == IS_CALIBRATE_IN_QUESTION, cancel, &c);
    if (st == INFERSCALE_OK) learn(m, &c);
    if (st == INFERSCALE_OK && !is->read_only)
        st = is_bank_put_calibration(bank, is_embedder_fingerprint(is->embedder), c.low, c.high);
    end(m, st != INFERSCALE_OK);
    if (st == INFERSCALE_OK || st == INFERSCALE_E_CANCELLED) return;
    is_log(IS_LOG_WARN, "what the embedder's cosines mean was not measured or kept: %s",
           is_error());
}
