/* mock_embed.c - texts that share words have near vectors: hashed bag of words, signs from the hash, unit length. */
#include "engine/mock/mock.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/mem.h"
#include "base/utf8.h"

typedef struct embedder {
    mock_opts opt;
    uint64_t n_begun;        /* texts */
} embedder;

static is_status embedder_open(const is_embedder_opts *o, void **impl)
{
    embedder *e = is_calloc(1, sizeof *e);

    *impl = NULL;
    if (!e) return is_fail(INFERSCALE_E_NOMEM, "mock: no memory for an embedder; free some and try again");
    is_status st = mock_opts_parse(o->spec, &e->opt);
    if (st != INFERSCALE_OK) is_free(e);
    else *impl = e;
    return st;
}

static void embedder_close(void *impl)
{
    is_free(impl);
}

static uint32_t embedder_dim(void *impl)
{
    return ((embedder *)impl)->opt.dim;
}

static void embedder_fingerprint(void *impl, uint8_t out[IS_HASH_BYTES])
{
    const embedder *e = impl;
    uint32_t what[3] = { 0x6d6f636b, e->opt.id, e->opt.dim };
    is_hash_once(NULL, what, sizeof what, out);
}

static void add_word(const embedder *e, const unsigned char *p, size_t n, float *out)
{
    uint64_t h = mock_mix(e->opt.id, n);

    for (size_t i = 0; i < n; i++) h = mock_mix(h, (uint64_t)tolower(p[i]));
    out[h % e->opt.dim] += h >> 63 ? 1 : -1;
    out[(h >> 20) % e->opt.dim] += h >> 62 & 1 ? 0.5f : -0.5f; /* two places, so that few words cancel to nothing */
}

static bool is_word(unsigned char c)
{
    return c >= 0x80 || isalnum(c);
}

/* Returns how many words there are; those beyond `most` (0 = no limit) are not looked at. */
static uint32_t embed_one(const embedder *e, const char *text, float *out)
{
    const unsigned char *p = (const unsigned char *)text;
    size_t len = strlen(text);
    uint32_t words = 0;
    double norm = 0;

    memset(out, 0, e->opt.dim * sizeof *out);
    for (size_t i = 0, j; i < len; i = j) {
        for (j = i; j < len && is_word(p[j]); j++) {}
        if (j > i && (!e->opt.most || words < e->opt.most)) add_word(e, p + i, j - i, out);
        if (j > i) words++;
        else j++;
    }
    for (uint32_t i = 0; i < e->opt.dim; i++) norm += (double)out[i] * out[i];
    if (norm == 0) { /* no words, or they cancel: the text as a whole stands for itself */
        add_word(e, p, len, out);
        for (uint32_t i = 0; i < e->opt.dim; i++) norm += (double)out[i] * out[i];
    }
    if (norm == 0) {
        out[0] = 1;
        norm = 1;
    }
    for (uint32_t i = 0; i < e->opt.dim; i++) out[i] = (float)(out[i] / sqrt(norm));
    return words;
}

static bool is_set(const volatile int *flag)
{
    return flag && __atomic_load_n(flag, __ATOMIC_ACQUIRE);
}

static bool is_off(const is_embed_call *call)
{
    return is_set(call->cancel) || is_set(call->stop);
}

static is_status cancelled(void)
{
    return is_fail(INFERSCALE_E_CANCELLED, "mock: cancelled while texts were embedded; embed them again");
}

static void note(const embedder *e, const char *text)
{
    FILE *f = e->opt.embed_log[0] ? fopen(e->opt.embed_log, "ae") : NULL;

    if (!f) return;
    fprintf(f, "%.40s\n", text);
    fclose(f);
}

/* One text at a time, and as many in all as the gate's file has bytes. */
static is_status pass_gate(embedder *e, const char *text, const is_embed_call *call)
{
    const struct timespec ms = { 0, 1000000 };
    struct stat size;

    if (is_off(call)) return cancelled();
    note(e, text);
    e->n_begun++;
    while (e->opt.embed_gate[0] && (stat(e->opt.embed_gate, &size) || (uint64_t)size.st_size < e->n_begun)) {
        if (is_off(call)) {
            e->n_begun--;
            return cancelled();
        }
        nanosleep(&ms, NULL);
    }
    return INFERSCALE_OK;
}

static is_status embedder_embed(void *impl, const char *const *texts, size_t n, float *out, is_embed_call *call)
{
    embedder *e = impl;

    IS_TRY(mock_call(&e->opt, MOCK_EMBED));
    for (size_t i = 0; i < n; i++)
        if (!texts[i] || is_utf8_blank(texts[i], strlen(texts[i])))
            return is_fail(INFERSCALE_E_INVALID, "text %zu of %zu is blank; only texts with words can be embedded", i + 1, n);
    IS_TRY(mock_embed_time(&e->opt, call->cancel, call->stop));
    for (size_t i = 0; i < n; i++) {
        uint32_t words;

        IS_TRY(pass_gate(e, texts[i], call));
        words = embed_one(e, texts[i], out + i * e->opt.dim);
        call->n_tokens += e->opt.most && words > e->opt.most ? e->opt.most : words;
        call->n_done = i + 1;
    }
    return INFERSCALE_OK;
}

/* Its tokens are words. */
static is_status embedder_measure(void *impl, const char *text, is_embed_size *out)
{
    const embedder *e = impl;
    const unsigned char *p = (const unsigned char *)text;

    *out = (is_embed_size){ .most = e->opt.most, .unit = "tokens" };
    for (; *p; p++) out->n += is_word(*p) && !is_word(p[1]);
    return INFERSCALE_OK;
}

const is_embedder_vtable mock_embedder = {
    .name = "mock", .cosine_low = 0.35f, .cosine_high = 0.7f, .open = embedder_open, .close = embedder_close,
    .dim = embedder_dim, .fingerprint = embedder_fingerprint,
    .embed = embedder_embed, .measure = embedder_measure,
};
