/* selftest.c - before KV is injected into a model for the first time, show that it would be what the engine computes.
 *
 *   rope      the same tokens captured at two positions agree once un-rotated, pair by pair
 *   layout    rows composed and set read back as the same bytes
 *   identity  a text captured at one place and injected at another gives the logits of its plain prefill
 *   together  two spans captured in one decode have the rows that each has alone; if not, spans are captured one by one
 *
 * A passed test is kept in the cache folder under everything it depends on. */
#include "engine/llama/internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { BLOCK = 40, TAIL = 6, N_ALL = BLOCK + TAIL };

/* What identity may cost, in nats: three times what another batching of the same text costs, or this much where that is
 * (almost) nothing. Quantised weights round activations to 8 bits, so that any last-bit change of a row moves the logits by
 * some 0.002; batching alone may not change a bit. Keys left unrotated cost 0.08, swapped layers or another pairing 5 and more;
 * a slightly wrong angle is found by the rope test. */
static const double KL_FLOOR = 0.01, PAIR_MAX = 0.15;
/* Rows of another token or sequence are off by about 1; other batching by some hundredths where arithmetic is quantised. */
static const double MIXED_UP = 0.5;

typedef struct is_trial {
    is_llama *e;
    int32_t tokens[N_ALL];
    float **rows;            /* [planes] [BLOCK][width] */
    float **rows2;
    is_segment *segment;
} is_trial;

static void selftest_key(const is_llama *e, uint8_t key[IS_HASH_BYTES])
{
    is_hash *h;

    memset(key, 0, IS_HASH_BYTES);
    if (is_hash_new(NULL, &h) != INFERSCALE_OK) return;
    is_hash_field(h, "selftest-2", 10);
    is_hash_field(h, INFERSCALE_VERSION, sizeof INFERSCALE_VERSION);
    is_hash_field(h, e->info.fingerprint, IS_HASH_BYTES);
    is_hash_field(h, llama_version(), strlen(llama_version()));
    is_hash_u64(h, e->info.flash_attention);
    is_hash_u64(h, e->n_ctx);
    is_hash_u64(h, e->streams ? e->n_seqs : 0);
    is_hash_u64(h, e->info.n_threads);
    is_hash_u64(h, (uint64_t)is_cpu_simd());
    is_hash_end(h, key);
}

/* Ordinary text where the vocabulary has it; else any tokens. */
static void make_tokens(is_llama *e, int32_t tokens[N_ALL])
{
    static const char text[] = "- 8 May 2023: Anna moved to Lisbon with her two cats and started a small bakery near the "
        "river.\n"
                               "- 3 June 2023: Her brother Tom visited; they walked along the coast and argued about music.\n"
                               "- 1 July: the oven broke.\nWhere does Anna live now, and what does she do there?";
    int32_t *got = NULL;
    uint32_t n = 0, have = 0;

    if (llama_vocab_type(e->vocab) != LLAMA_VOCAB_TYPE_NONE && is_llama_tokenize(e, NULL, text, sizeof text - 1, false, true, &got,
        &n) == INFERSCALE_OK)
        for (; have < n && have < N_ALL; have++) tokens[have] = got[have];
    is_free(got);
    for (; have < N_ALL; have++) tokens[have] = (int32_t)((7919u * (have + 3)) % e->n_vocab);
}

static float **rows_new(const is_geometry *g)
{
    float **rows = is_calloc(g->n_planes, sizeof *rows);

    for (uint32_t i = 0; rows && i < g->n_planes; i++) {
        rows[i] = is_malloc((size_t)BLOCK * is_plane_width(&g->planes[i]) * sizeof(float));
        if (!rows[i]) {
            while (i-- > 0) is_free(rows[i]);
            is_free(rows);
            return NULL;
        }
    }
    return rows;
}

static void rows_free(const is_geometry *g, float **rows)
{
    for (uint32_t i = 0; rows && i < g->n_planes; i++) is_free(rows[i]);
    is_free(rows);
}

/* Captures the block at a position and un-rotates its keys. */
static is_status capture_at(is_trial *t, uint32_t pos, float **rows)
{
    is_llama *e = t->e;
    is_capture c = { .span = t->tokens, .n_span = BLOCK, .pos0 = pos, .rows = rows };

    IS_TRY(is_llama_capture(e, &c, 1));
    for (uint32_t i = 0; i < e->geometry->n_planes; i++)
        if (!e->geometry->planes[i].is_v) IS_TRY(is_rope_rows(e->rope, &e->geometry->planes[i], rows[i], BLOCK, pos, -1));
    return INFERSCALE_OK;
}

static void capture_one_by_one(is_llama *e)
{
    e->info.n_capture_spans = 1;
    snprintf(e->info.why_one, sizeof e->info.why_one, "rows of spans captured together are not those of each alone");
    is_log(IS_LOG_WARN, "%s: spans are encoded one by one, which is slower: %s", e->info.name, e->info.why_one);
}

/* Largest relative difference over the rotated pairs of a plane (each pair over all tokens and heads), or over all of it. */
static double plane_error(const is_plane *p, const float *a, const float *b)
{
    uint32_t pairs = p->rot_dim ? p->rot_dim / 2 : 1, width = is_plane_width(p);
    double worst = 0, total = 0;

    for (uint32_t t = 0; t < BLOCK * width; t++) total += (double)a[t] * a[t];
    for (uint32_t i = 0; i < pairs; i++) {
        uint32_t d0 = p->rot_begin + (p->pairing == IS_PAIR_HALVES ? i : 2 * i);
        uint32_t d1 = p->pairing == IS_PAIR_HALVES ? d0 + pairs : d0 + 1;
        double diff = 0, sum = 0;

        for (uint32_t r = 0; r < BLOCK * p->n_heads; r++)
            for (uint32_t d = 0; d < p->head_dim; d++) {
                size_t at = (size_t)r * p->head_dim + d;

                if (p->rot_dim && d != d0 && d != d1) continue;
                diff += ((double)a[at] - b[at]) * ((double)a[at] - b[at]);
                sum += (double)a[at] * a[at];
            }
        sum += 1e-3 * total / pairs; /* a pair that is all but zero says nothing */
        if (sum > 0 && diff / sum > worst) worst = diff / sum;
    }
    return sqrt(worst);
}

static is_status test_rope(is_trial *t)
{
    const is_geometry *g = t->e->geometry;
    uint32_t far = t->e->n_ctx > 1024 + BLOCK ? 1024 : t->e->n_ctx - BLOCK;

    IS_TRY(capture_at(t, far, t->rows2));
    IS_TRY(capture_at(t, 0, t->rows));
    for (uint32_t i = 0; i < g->n_planes; i++) {
        double err = plane_error(&g->planes[i], t->rows[i], t->rows2[i]);

        if (!(err <= PAIR_MAX))
            return is_fail(INFERSCALE_E_UNSUPPORTED,
                           "the %s of layer %u differ by %.2g between two positions once position is taken out",
                           g->planes[i].is_v ? "values" : "keys", g->planes[i].layer, err);
        if (err > 0.02) is_log(IS_LOG_DEBUG, "rope self-test: plane %u of layer %u differs by %.3g", i, g->planes[i].layer,
                               err);
    }
    return INFERSCALE_OK;
}

static is_status make_segment(is_trial *t)
{
    is_segment_desc d = { .codec = IS_CODEC_F16, .n_tokens = BLOCK, .tokens = t->tokens, .geometry = t->e->geometry };

    memcpy(d.fingerprint, t->e->info.fingerprint, IS_HASH_BYTES);
    return is_segment_new(&d, (const float *const *)t->rows, &t->segment);
}

/* Sets composed rows and reads them back. */
static is_status test_layout(is_trial *t)
{
    is_llama *e = t->e;
    is_part p = { .role = IS_ROLE_FACT, .source = IS_SRC_STORED, .tokens = t->tokens, .n_tokens = BLOCK,
                 .segment = t->segment };
    is_run_stats s = { 0 };
    int seq = e->streams ? (int)e->n_seqs - 1 : is_seq_take(e); /* the stream whose framing ours is */
    is_status st = seq < 0 ? is_fail(INFERSCALE_E_BUSY, "no free sequence for the self-test") : is_inject(e, e->serve, seq, &p, 1, 3, NULL, &s);
    size_t len = st == INFERSCALE_OK ? is_shim_state_size(e->serve, seq) : 0;
    uint8_t *back = len ? is_malloc(len) : NULL;

    if (st == INFERSCALE_OK) {
        if (!back) st = is_fail(INFERSCALE_E_NOMEM, "out of memory for the layout self-test");
        else if (is_shim_state_get(e->serve, back, len, seq) != len || len > e->blob.cap)
            st = is_fail(INFERSCALE_E_UNSUPPORTED, "its sequence state cannot be read back");
    }
    if (st == INFERSCALE_OK) {
        size_t differ = 0;

        /* The cells' sequence ids are the only bytes that may differ: 4 a cell. */
        for (size_t i = 4; i < len; i++) differ += back[i] != e->blob.bytes[i];
        if (differ > (size_t)e->layout.n_blocks * BLOCK + 4)
            st = is_fail(INFERSCALE_E_UNSUPPORTED, "rows that were set read back differently (%zu bytes)", differ);
    }
    is_free(back);
    is_seq_drop(e, seq);
    return st;
}

/* Logits of a plan of block and tail; the block computed or injected. */
static is_status run_once(is_trial *t, bool stored, uint32_t batch, float *logits)
{
    is_part parts[2] = { { .role = IS_ROLE_FACT, .source = stored ? IS_SRC_STORED : IS_SRC_COMPUTED, .tokens = t->tokens,
                           .n_tokens = BLOCK, .segment = stored ? t->segment : NULL },
                         { .role = IS_ROLE_QUESTION, .source = IS_SRC_COMPUTED, .tokens = t->tokens + BLOCK, .n_tokens = TAIL,
                          .pos = BLOCK } };
    is_plan plan = { 2, parts, N_ALL };
    is_run_opts o = { .batch = batch, .no_prefix_cache = true, .want_logits = true };
    is_run *run;

    IS_TRY(is_llama_run_alone(t->e, &plan, &o, &run));
    memcpy(logits, run->logits, t->e->n_vocab * sizeof *logits);
    is_llama_finish(t->e, run);
    return INFERSCALE_OK;
}

/* KL(p || q) of two rows of logits, in nats. */
static double kl(const float *p, const float *q, uint32_t n)
{
    double mp = p[0], mq = q[0], zp = 0, zq = 0, sum = 0;

    for (uint32_t i = 1; i < n; i++) {
        if (p[i] > mp) mp = p[i];
        if (q[i] > mq) mq = q[i];
    }
    for (uint32_t i = 0; i < n; i++) {
        zp += exp(p[i] - mp);
        zq += exp(q[i] - mq);
    }
    for (uint32_t i = 0; i < n; i++) {
        double lp = p[i] - mp - log(zp);

        sum += exp(lp) * (lp - (q[i] - mq - log(zq)));
    }
    return sum;
}

static is_status test_identity(is_trial *t)
{
    is_llama *e = t->e;
    float *plain = is_malloc(3 * (size_t)e->n_vocab * sizeof *plain), *other = plain ? plain + e->n_vocab : NULL;
    float *injected = plain ? other + e->n_vocab : NULL;
    is_status st = plain ? INFERSCALE_OK : is_fail(INFERSCALE_E_NOMEM, "out of memory for the identity self-test");

    /* The block was last captured at position 0; injecting what was captured far away shows that position is really out. */
    if (st == INFERSCALE_OK) st = run_once(t, false, 0, plain);
    if (st == INFERSCALE_OK) st = run_once(t, false, 7, other);
    if (st == INFERSCALE_OK) st = run_once(t, true, 0, injected);
    if (st == INFERSCALE_OK) {
        double noise = kl(plain, other, e->n_vocab), got = kl(plain, injected, e->n_vocab), most = 3 * noise;

        e->info.selftest_noise = noise;
        e->info.selftest_kl = got;
        if (most < KL_FLOOR) most = KL_FLOOR;
        if (!(got <= most))
            st = is_fail(INFERSCALE_E_UNSUPPORTED,
                         "injected KV changed the answer's distribution by %.2g nats (allowed: %.2g)", got, most);
    }
    is_free(plain);
    return st;
}

/* The block as two spans of unlike length after the tail, whose rows go to `rows` one after the other. */
static is_status capture_two(is_trial *t, bool together, float **rows, float **rows_b)
{
    const uint32_t first = BLOCK * 3 / 5;
    const is_geometry *g = t->e->geometry;
    is_capture c[2] = { { .context = t->tokens + BLOCK, .n_context = TAIL, .span = t->tokens, .n_span = first, .rows = rows },
                        { .context = t->tokens + BLOCK, .n_context = TAIL, .span = t->tokens + first, .n_span = BLOCK - first,
                          .rows = rows_b } };

    for (uint32_t i = 0; i < g->n_planes; i++) rows_b[i] = rows[i] + (size_t)first * is_plane_width(&g->planes[i]);
    if (together) return is_llama_capture(t->e, c, 2);
    IS_TRY(is_llama_capture(t->e, &c[0], 1));
    return is_llama_capture(t->e, &c[1], 1);
}

static is_status test_together(is_trial *t)
{
    is_llama *e = t->e;
    float **rows_b = is_calloc(e->geometry->n_planes, sizeof *rows_b);
    double worst = 0;
    bool mixed_up = false;
    is_status st = rows_b ? capture_two(t, false, t->rows, rows_b) : is_fail(INFERSCALE_E_NOMEM, "out of memory for the self-test's rows");

    if (st == INFERSCALE_OK) st = capture_two(t, true, t->rows2, rows_b);
    for (uint32_t i = 0; i < e->geometry->n_planes && st == INFERSCALE_OK; i++) {
        double err = plane_error(&e->geometry->planes[i], t->rows[i], t->rows2[i]);

        if (err > worst) worst = err;
        if (!(err <= MIXED_UP)) mixed_up = true; /* also what is no number */
    }
    is_free(rows_b);
    if (st != INFERSCALE_OK) return st;
    is_log(IS_LOG_DEBUG, "self-test: rows of spans captured together differ by %.3g from those captured alone", worst);
    if (mixed_up) capture_one_by_one(e);
    return INFERSCALE_OK;
}

static is_status run_tests(is_trial *t)
{
    float **swap;

    t->rows = rows_new(t->e->geometry);
    t->rows2 = rows_new(t->e->geometry);
    if (!t->rows || !t->rows2) return is_fail(INFERSCALE_E_NOMEM, "out of memory for the self-test's rows");
    make_tokens(t->e, t->tokens);
    IS_TRY(test_rope(t));
    swap = t->rows; /* inject what was captured at the far position */
    t->rows = t->rows2;
    t->rows2 = swap;
    IS_TRY(make_segment(t));
    IS_TRY(test_layout(t));
    IS_TRY(test_identity(t));
    return test_together(t);
}

is_status is_selftest(is_llama *e)
{
    is_trial t = { .e = e };
    uint8_t key[IS_HASH_BYTES];
    unsigned one = 0;
    char text[80];
    is_status st;

    if (e->n_ctx < N_ALL + 8) return INFERSCALE_OK;
    selftest_key(e, key);
    if (is_cache_read(e->cache_dir, "selftest", key, text, sizeof text) &&
        sscanf(text, "passed %lf %lf %u", &e->info.selftest_kl, &e->info.selftest_noise, &one) == 3) {
        if (one) capture_one_by_one(e);
        return INFERSCALE_OK;
    }
    st = run_tests(&t);
    rows_free(e->geometry, t.rows);
    rows_free(e->geometry, t.rows2);
    is_segment_unref(t.segment);
    if (st != INFERSCALE_OK) return st;
    one = e->info.n_capture_spans == 1;
    snprintf(text, sizeof text, "passed %.9g %.9g %u\n", e->info.selftest_kl, e->info.selftest_noise, one);
    is_cache_write(e->cache_dir, "selftest", key, text);
    is_log(IS_LOG_INFO, "self-test passed: KL %.2g with injected KV, %.2g with another batching", e->info.selftest_kl,
           e->info.selftest_noise);
    return INFERSCALE_OK;
}
