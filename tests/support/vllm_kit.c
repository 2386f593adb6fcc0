/* vllm_kit.c - fake servers, the engine on them, plans and captures. */
#include "support/vllm_kit.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "support/scratch.h"

void vt_nap(uint32_t ms)
{
    struct timespec t = { ms / 1000, (long)(ms % 1000) * 1000000 };

    nanosleep(&t, NULL);
}

is_status vt_open_urls(const char *home, const char *urls, void **e)
{
    return V->open(&(is_engine_opts){ .model_path = urls, .home = home, .key = "sesame" }, e);
}

void vt_start_fakes(vt_set *s, int n)
{
    *s = (vt_set){ .home = scratch_make() };
    vllm_limit = (vllm_limits){ .connect_ms = 2000, .silent_ms = 20000, .small_ms = 20000, .open_ms = 20000, .backoff_ms = 20, .keeper_ms = 20,
                                .arrive_ms = 20000 };
    for (int i = 0; i < n; i++) s->f[i] = fake_start(s->home);
}

is_status vt_open_set(vt_set *s)
{
    is_buf urls = IS_BUF_INIT;
    is_status st;

    for (int i = 0; i < SERVERS && s->f[i]; i++) is_buf_fmt(&urls, "%s%s/", i ? ", " : "", s->f[i]->url);
    st = vt_open_urls(s->home, (const char *)urls.data, &s->e);
    is_buf_free(&urls);
    return st;
}

void vt_start(vt_set *s, int n)
{
    vt_start_fakes(s, n);
    OK(vt_open_set(s));
}

void vt_start_unkept(vt_set *s, int n)
{
    vt_start_fakes(s, n);
    vllm_limit.keeper_ms = 60000; /* before its first look */
    OK(vt_open_set(s));
}

is_upstream vt_up_of(const vt_set *s, int i)
{
    is_upstream up[SERVERS];

    V->upstreams(s->e, up, SERVERS);
    return up[i];
}

/* Whatever went wrong, no server is believed to be busy for ever (the keeper's own look at one counts for a moment). */
static void expect_idle(void *e)
{
    is_upstream up[SERVERS];
    uint32_t busy = 1;

    for (int k = 0; k < 1000 && busy; k++) {
        size_t n = V->upstreams(e, up, SERVERS);

        busy = 0;
        for (size_t i = 0; i < n && i < SERVERS; i++) busy += up[i].in_flight;
        if (busy) vt_nap(10);
    }
    assert_int_equal(busy, 0);
}

void vt_stop(vt_set *s)
{
    if (s->e) expect_idle(s->e);
    V->close(s->e);
    for (int i = 0; i < SERVERS; i++) fake_stop(s->f[i]);
    scratch_remove(s->home);
}

is_segment *vt_segment_of(const int32_t *tokens, uint32_t n, uint8_t name)
{
    is_geometry *g = fake_geometry();
    is_segment_desc d = { .codec = IS_CODEC_BF16, .n_tokens = n, .tokens = tokens, .geometry = g };
    float *rows[2 * FAKE_LAYERS];
    is_segment *s;

    memset(d.name, name, 32);
    fake_fingerprint(d.fingerprint, false);
    for (int p = 0; p < 2 * FAKE_LAYERS; p++) rows[p] = calloc(n * FAKE_HEADS * FAKE_DIM, sizeof **rows);
    OK(is_segment_new(&d, (const float *const *)rows, &s));
    for (int p = 0; p < 2 * FAKE_LAYERS; p++) free(rows[p]);
    is_geometry_free(g);
    return s;
}

void vt_add(vt_plan *p, is_role role, const char *text, uint8_t name)
{
    is_part *part = &p->parts[p->plan.n_parts++];
    int32_t *ids = p->ids + p->n;
    uint32_t n = (uint32_t)strlen(text);

    for (uint32_t i = 0; i < n; i++) ids[i] = (unsigned char)text[i];
    *part = (is_part){ .role = role, .source = name ? IS_SRC_STORED : IS_SRC_COMPUTED, .tokens = ids, .n_tokens = n,
                       .pos = p->plan.n_tokens, .segment = name ? vt_segment_of(ids, n, name) : NULL, .common = role == IS_ROLE_HEADER };
    p->n += n;
    p->plan.n_tokens += n;
    p->plan.parts = p->parts;
}

void vt_drop(vt_plan *p)
{
    for (uint32_t i = 0; i < p->plan.n_parts; i++) is_segment_unref(p->parts[i].segment);
}

void vt_question(vt_plan *p)
{
    *p = (vt_plan){ 0 };
    vt_add(p, IS_ROLE_HEADER, "You are somebody who remembers: ", 0);
    vt_add(p, IS_ROLE_FACT, "- Anna likes tea a lot.\n", 1);
    vt_add(p, IS_ROLE_FACT, "- Bert has a boat.\n", 2);
    vt_add(p, IS_ROLE_FOOTER, "That is all. ", 0);
    vt_add(p, IS_ROLE_QUESTION, "What does Anna like?", 0);
}

is_realm vt_realm(uint8_t tag, uint64_t epoch)
{
    is_realm r = { .epoch = epoch };

    memset(r.tag, tag, 32);
    return r;
}

/* The whole answer, fed and compared with what the fake's model says to these tokens. */
void vt_expect_answer(void *e, is_run *run, const int32_t *prompt, uint32_t n, uint32_t length)
{
    int32_t all[FAKE_CTX], token;
    uint32_t i = n;

    memcpy(all, prompt, n * sizeof *all);
    for (;;) {
        OK(V->sample(e, run, &token));
        assert_int_equal(token, fake_next(all, i, n, length));
        if (V->is_eog(e, token)) break;
        OK(V->token(e, run, token));
        all[i++] = token;
        assert_int_equal(V->run_tokens(e, run), i);
    }
    assert_int_equal(i - n, length);
}

size_t vt_files_in(const char *home, const char *dir)
{
    char path[512];
    size_t n = 0;
    DIR *d;

    snprintf(path, sizeof path, "%s/vllm/%s", home, dir);
    d = opendir(path);
    for (struct dirent *x; d && (x = readdir(d));) n += x->d_name[0] != '.' && strncmp(x->d_name, "owner-", 6) != 0;
    if (d) closedir(d);
    return n;
}

void vt_expect_ids(void *e, const char *text, bool special, const int32_t *want, uint32_t n)
{
    int32_t *ids;
    uint32_t got;

    OK(V->tokenize(e, NULL, text, strlen(text), special, false, &ids, &got));
    assert_int_equal(got, n);
    for (uint32_t i = 0; i < n; i++) assert_int_equal(ids[i], want[i]);
    V->tokens_free(e, ids);
}

/* Not one of these becomes a control token, and the text is what it was. */
void vt_expect_plain(void *e, const char *text)
{
    int32_t want[512];

    for (size_t i = 0; text[i]; i++) want[i] = (unsigned char)text[i];
    vt_expect_ids(e, text, false, want, (uint32_t)strlen(text));
}

void vt_make_capture(vt_capture *a, uint32_t n_context, uint32_t n_span, uint8_t salt)
{
    *a = (vt_capture){ 0 };
    for (uint32_t i = 0; i < n_context + n_span; i++) a->ids[i] = i < n_context ? 'A' + (int32_t)(i % 50) : 'a' + (int32_t)((i * salt) % 25);
    for (int p = 0; p < 2 * FAKE_LAYERS; p++) a->rows[p] = calloc(n_span * FAKE_HEADS * FAKE_DIM, sizeof(float));
    a->c = (is_capture){ .context = a->ids, .n_context = n_context, .span = a->ids + n_context, .n_span = n_span, .rows = a->rows };
}

void vt_free_capture(vt_capture *a)
{
    for (int p = 0; p < 2 * FAKE_LAYERS; p++) free(a->rows[p]);
    is_segment_unref(a->stored);
}

void vt_expect_rows(const vt_capture *a)
{
    for (uint32_t p = 0; p < 2 * FAKE_LAYERS; p++)
        for (uint32_t t = 0; t < a->c.n_span; t++)
            for (uint32_t k = 0; k < FAKE_HEADS * FAKE_DIM; k++)
                if (a->rows[p][t * FAKE_HEADS * FAKE_DIM + k] != fake_row(p, k / FAKE_DIM, k % FAKE_DIM, a->ids, a->c.n_context + t))
                    fail_msg("plane %u, token %u, element %u is wrong", p, t, k);
}
