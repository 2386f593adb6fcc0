/* subject.c - see subject.h. */
#include "llama/support/subject.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"

static const char prose[] =
    "Anna moved to Porto in March and rents a flat near the river. She is allergic to peanuts and carries an injector. Her "
    "brother Miguel restores old boats and sails with her on Sundays. In May she started as a nurse at the children's "
    "hospital, on the night shift. She wants to learn the cello and pays a teacher called Rosa twice a month. Her cat, "
    "Biscoito, had an operation on the left knee and must not jump. The train to Lisbon leaves at ten past seven, and she "
    "takes it when her mother has an appointment. She prefers green tea to coffee after noon because coffee keeps her "
    "awake. In July she will walk the coast path with two friends from school, eight days from hut to hut. ";

static char *smollm2_path(void)
{
    const char *dir = getenv("INFERSCALE_MODELS"), *home = getenv("HOME");
    char *path = is_malloc(1024);

    assert_non_null(path);
    if (dir && *dir) snprintf(path, 1024, "%s/smollm2-135m-instruct-q4_0.gguf", dir);
    else snprintf(path, 1024, "%s/.cache/inferscale/models/smollm2-135m-instruct-q4_0.gguf", home ? home : "");
    if (access(path, R_OK) != 0) fail_msg("%s is missing: run scripts/setup.sh, or set INFERSCALE_MODELS", path);
    return path;
}

/* The same weights held in 16 bits, made once per process. */
static char *smollm2_f16_path(void)
{
    char *from = smollm2_path(), *to = is_malloc(512);

    assert_non_null(to);
    if (!tiny_model_wide(from, "smollm2-f16", to, 512)) fail_msg("%s cannot be rewritten in 16 bits", from);
    is_free(from);
    return to;
}

static void prompt(subject *s)
{
    uint64_t seed = SUBJECT_SEED;
    uint32_t have = 0;

    if (s->tiny) {
        s->ids = kit_random_ids(&seed, SUBJECT_CTX, 3, TINY_VOCAB);
    } else {
        s->ids = is_malloc(SUBJECT_CTX * sizeof *s->ids);
        assert_non_null(s->ids);
        while (have < SUBJECT_CTX) {
            int32_t *ids;
            uint32_t n;
            KIT_OK(is_engine_tokenize(s->e, NULL, prose, sizeof prose - 1, false, false, &ids, &n));
            if (n > SUBJECT_CTX - have) n = SUBJECT_CTX - have;
            memcpy(s->ids + have, ids, n * sizeof *ids);
            have += n;
            is_free(ids);
        }
    }
    s->all = (kit_ids){ s->ids, SUBJECT_CTX };
}

void subject_open(subject *s, const char *name, bool flash_attention, uint32_t n_ctx)
{
    is_engine_opts opts = { .n_ctx = n_ctx, .n_threads = 1, .no_selftest = true };

    memset(s, 0, sizeof *s);
    s->name = name;
    s->fa = flash_attention;
    s->tiny = tiny_model_find(name);
    s->noisy = strcmp(name, "smollm2") == 0;
    s->path = s->tiny ? is_strdup(tiny_model_path(s->tiny, SUBJECT_SEED)) : s->noisy ? smollm2_path() : smollm2_f16_path();
    assert_non_null(s->path);
    s->window = s->tiny ? s->tiny->window : 0;
    opts.model_path = s->path;
    opts.flash_attention = flash_attention ? INFERSCALE_FA_ON : INFERSCALE_FA_OFF;
    KIT_OK(is_engine_open(NULL, "llama", &opts, &s->e));
    s->n_vocab = is_engine_describe(s->e)->n_vocab;
    if (is_engine_geometry(s->e)) KIT_OK(is_rope_new(is_engine_geometry(s->e), n_ctx, &s->rope));
    s->o = oracle_open(s->path, SUBJECT_CTX, flash_attention);
    s->other = oracle_open(s->path, SUBJECT_CTX, !flash_attention);
    assert_true(s->o && s->other);
    assert_int_equal(oracle_vocab(s->o), s->n_vocab);
    prompt(s);
}

void subject_close(subject *s)
{
    oracle_close(s->o);
    oracle_close(s->other);
    is_rope_free(s->rope);
    is_engine_close(s->e);
    is_free(s->ids);
    is_free(s->path);
    memset(s, 0, sizeof *s);
}

floor_n subject_floor(subject *s, const is_plan *twin, const float *text)
{
    static const struct { uint32_t batch; bool other; } ways[] = { /* the first four where they take their time */
        { 7, false }, { 48, false }, { 0, true }, { 24, true }, { 2, false }, { 16, false }, { 24, false }, { 65, false },
        { 97, false }, { 150, false }, { 5, true }, { 60, true },
    };
    float *other = is_malloc(s->n_vocab * sizeof *other);
    floor_n n = { SUBJECT_KL_FLOOR, SUBJECT_DIFF_FLOOR };

    assert_non_null(other);
    for (size_t i = 0; i < (s->tiny || s->noisy ? sizeof ways / sizeof *ways : 4); i++) {
        is_run_opts opts = { .batch = ways[i].batch, .no_prefix_cache = true };
        if (ways[i].other) assert_true(oracle_prefill(s->other, s->ids, twin->n_tokens, opts.batch, other));
        else kit_logits(s->e, twin, &opts, other, NULL);
        n.kl = fmax(n.kl, logits_kl(text, other, s->n_vocab));
        n.diff = fmax(n.diff, logits_max_diff(text, other, s->n_vocab));
    }
    is_free(other);
    return n;
}

floor_n subject_floor_quick(subject *s, const is_plan *twin, const float *text)
{
    floor_n n = { SUBJECT_KL_FLOOR, SUBJECT_DIFF_FLOOR };
    float *other;

    if (!s->noisy) return subject_floor(s, twin, text);
    other = is_malloc(s->n_vocab * sizeof *other);
    assert_non_null(other);
    for (uint32_t batch = 0; batch <= 24; batch += 24) {
        assert_true(oracle_prefill(s->other, s->ids, twin->n_tokens, batch, other));
        n.kl = fmax(n.kl, logits_kl(text, other, s->n_vocab));
        n.diff = fmax(n.diff, logits_max_diff(text, other, s->n_vocab));
    }
    is_free(other);
    return n;
}

static unsigned n_failed; /* since subject_verdict: one broken model does not hide the others */

static void line(const subject *s, const char *what, double kl, floor_n n, bool good)
{
    print_message("  %-16s fa %-3s %-38s KL %-9.3g = %.3g N%s\n", s->name, s->fa ? "on" : "off", what, kl, kl / n.kl,
                  good ? "" : "   <- WRONG");
    n_failed += !good;
}

void subject_verdict(void)
{
    unsigned n = n_failed;

    n_failed = 0;
    if (n) fail_msg("%u comparisons went wrong; they are marked above", n);
}

void subject_same(const subject *s, const char *what, const float *want, const float *got, floor_n n)
{
    double kl = logits_kl(want, got, s->n_vocab);
    bool same_top = logits_top(want, s->n_vocab) == logits_top(got, s->n_vocab) || logits_margin(want, s->n_vocab) < n.diff;

    line(s, what, kl, n, kl <= 3 * n.kl && same_top);
}

void subject_close_to(const subject *s, const char *what, const float *want, const float *got, floor_n n)
{
    double kl = logits_kl(want, got, s->n_vocab);

    line(s, what, kl, n, kl <= 0.003 || kl <= 1.5 * n.kl);
}

void subject_differs(const subject *s, const char *what, const float *want, const float *got, floor_n n)
{
    double kl = logits_kl(want, got, s->n_vocab);

    line(s, what, kl, n, s->noisy || kl > 20 * n.kl);
}

/* Sanitized builds leave the large models to the plain build, and take each other with flash attention off or on, in turn: what a
 * sanitizer finds does not depend on the weights. */
#ifdef __SANITIZE_ADDRESS__
enum { N_LARGE = 0, KERNELS = 1 };
#else
enum { N_LARGE = 2, KERNELS = 2 };
#endif

void subject_each(void (*test)(subject *s))
{
    const char *only = getenv("SUBJECT"); /* one model, while looking for a fault */
    unsigned turn = 0;

    for (unsigned i = 0; i < tiny_model_count + N_LARGE; i++) {
        const tiny_model *m = i < tiny_model_count ? &tiny_models[i] : NULL;
        const char *name = m ? m->name : i == tiny_model_count ? "smollm2" : "smollm2-f16";
        if ((m && !m->can_inject) || (only && strcmp(only, name) != 0)) continue;
        for (int n = 0; n < KERNELS; n++) {
            subject s;
            subject_open(&s, name, turn++ % 2, SUBJECT_CTX);
            assert_true(is_engine_describe(s.e)->can_inject);
            test(&s);
            subject_close(&s);
        }
    }
    subject_verdict();
}
