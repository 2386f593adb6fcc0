/* The live KV of a connector: what is written is loaded, cut and rotated as an oracle says; what is foreign, other, torn or gone is refused;
 * memory is a budget, not a truth; many threads may share a handle. */
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "kv/kernels.h"
#include "kv/segment_part.h"
#include "support/kv_make.h"
#include "support/scratch.h"

enum { N_POS = 400, MOST = 8 };

/* A random model and a handle on it. */
typedef struct live {
    is_geometry *g;
    float *tables[4];
    inferscale_kv *kv;
    char dir[600];
    int type, rotation;
} live;

static char *folder;

static void describe(live *l, inferscale_plane *planes, inferscale_kv_freqs *freqs, inferscale_kv_desc *d, const char **dir, uint64_t ram)
{
    for (uint32_t i = 0; i < l->g->n_planes; i++) {
        const is_plane *p = &l->g->planes[i];

        planes[i] = (inferscale_plane){ .layer = p->layer, .is_v = p->is_v, .n_heads = p->n_heads, .head_dim = p->head_dim,
                                        .rot_begin = p->rot_begin, .rot_dim = p->rot_dim, .pairing = p->pairing, .freq = p->freq };
    }
    for (uint32_t i = 0; i < l->g->n_freqs; i++)
        freqs[i] = (inferscale_kv_freqs){ .n_pairs = l->g->freqs[i].n_pairs, .n_pos = N_POS, .mscale = l->g->freqs[i].mscale,
                                          .w = l->g->freqs[i].w, .table = l->tables[i] };
    *d = (inferscale_kv_desc)INFERSCALE_KV_DESC_INIT;
    d->n_planes = l->g->n_planes;
    d->n_freqs = l->g->n_freqs;
    d->planes = planes;
    d->freqs = freqs;
    d->rotation = l->rotation;
    *dir = l->dir;
    d->dirs = dir;
    d->n_dirs = 1;
    d->ram_bytes = ram;
    memset(d->fingerprint, 0x77, sizeof d->fingerprint);
}

static void open_live(live *l, is_geometry *g, int rotation, uint64_t ram, uint64_t *seed)
{
    static unsigned number;
    inferscale_plane planes[16];
    inferscale_kv_freqs freqs[4];
    inferscale_kv_desc d;
    const char *dir;

    *l = (live){ .g = g, .type = (int)kv_below(seed, 3), .rotation = rotation };
    snprintf(l->dir, sizeof l->dir, "%s/%u", folder, number++);
    assert_int_equal(mkdir(l->dir, 0700), 0);
    for (uint32_t i = 0; i < g->n_freqs; i++) { /* the engine's own: anything, rounded as it likes */
        size_t n = (size_t)N_POS * 2 * g->freqs[i].n_pairs;

        l->tables[i] = malloc(n * sizeof(float));
        for (size_t k = 0; k < n; k++) l->tables[i][k] = is_f32_from_bf16(is_bf16_from_f32(cosf((float)kv_below(seed, 1000))));
    }
    describe(l, planes, freqs, &d, &dir, ram);
    OK(inferscale_kv_open(&d, &l->kv));
}

static void close_live(live *l)
{
    inferscale_kv_close(l->kv);
    for (int i = 0; i < 4; i++) free(l->tables[i]);
    is_geometry_free(l->g);
}

/* ---- A segment of random rows, written as a worker that holds the whole model would -------------------------------------------------------- */

typedef struct stored {
    uint32_t n;
    int32_t tokens[64];
    uint8_t *rows[16];  /* of the type */
    uint8_t name[32];
    char path[800];
} stored;

static void put(stored *s, const live *l, uint64_t *seed)
{
    char hex[65], sub[700];
    const void *rows[16];

    s->n = 1 + kv_below(seed, 64);
    for (uint32_t i = 0; i < s->n; i++) s->tokens[i] = (int32_t)kv_below(seed, 50000);
    for (int i = 0; i < 32; i++) s->name[i] = (uint8_t)kv_next(seed);
    for (uint32_t i = 0; i < l->g->n_planes; i++) {
        size_t n = (size_t)s->n * is_plane_width(&l->g->planes[i]), b = is_codec_bytes((is_codec)l->type);

        s->rows[i] = malloc(n * b);
        for (size_t k = 0; k < n; k++) {
            float x = kv_float(seed);

            is_codec_encode((is_codec)l->type, &x, s->rows[i] + k * b, 1);
        }
        rows[i] = s->rows[i];
    }
    is_hex(s->name, 32, hex);
    snprintf(sub, sizeof sub, "%s/%.2s", l->dir, hex);
    mkdir(sub, 0700);
    snprintf(s->path, sizeof s->path, "%s/%s.seg", sub, hex);
    OK(inferscale_kv_write(l->kv, s->path, s->tokens, s->n, 3, 0, l->g->n_planes, 0, l->g->planes[0].n_heads, l->type, rows));
}

static void drop(stored *s, const live *l)
{
    for (uint32_t i = 0; i < l->g->n_planes; i++) free(s->rows[i]);
}

static inferscale_kv_part part_of(const stored *s, uint32_t begin, uint32_t n, uint32_t pos)
{
    inferscale_kv_part p = { .begin = begin, .n_tokens = n, .pos = pos };

    memcpy(p.name, s->name, 32);
    return p;
}

/* ---- The oracle: from the definition, value by value, with no vector and no block ------------------------------------------------------------ */

static float value(const live *l, const void *row, size_t i)
{
    float x;

    is_codec_decode((is_codec)l->type, (const uint8_t *)row + i * is_codec_bytes((is_codec)l->type), &x, 1);
    return x;
}

static float rounded(int type, float x)
{
    return type == INFERSCALE_F16 ? is_f32_from_f16(is_f16_from_f32(x)) : type == INFERSCALE_BF16 ? is_f32_from_bf16(is_bf16_from_f32(x)) : x;
}

static float cut(int type, float x)
{
    uint32_t u;

    if (type != INFERSCALE_BF16) return rounded(type, x);
    memcpy(&u, &x, 4);
    return is_f32_from_bf16((uint16_t)(u >> 16));
}

/* One head of one token in dst_type's values. */
static void oracle(const live *l, const is_plane *p, const void *row, uint32_t pos, int to, float *out)
{
    uint32_t half = p->rot_dim / 2, block = (uint32_t)l->rotation >> 8 & 255, whole = block ? half / block * block : half;

    for (uint32_t d = 0; d < p->head_dim; d++) out[d] = rounded(to, value(l, row, d));
    for (uint32_t i = 0; p->pairing && i < half; i++) {
        uint32_t a = p->rot_begin + (p->pairing == IS_PAIR_HALVES ? i : 2 * i), b = p->pairing == IS_PAIR_HALVES ? a + half : a + 1;
        float x = value(l, row, a), y = value(l, row, b);
        const float *t = l->tables[p->freq] + (size_t)pos * 2 * half;
        float c = t[i], s = t[half + i], y0, y1, xc = x * c, ys = y * s, xs = x * s, yc = y * c;
        int how = i < whole ? l->rotation & 3 : l->rotation >> 16;

        if (how == INFERSCALE_ROT_PRODUCTS) y0 = rounded(to, xc) - rounded(to, ys), y1 = rounded(to, yc) + rounded(to, xs);
        else if (how == INFERSCALE_ROT_FUSED_SIN) y0 = fmaf(-y, s, xc), y1 = fmaf(x, s, yc);
        else if (how == INFERSCALE_ROT_FUSED_COS) y0 = fmaf(x, c, -ys), y1 = fmaf(y, c, xs);
        else y0 = xc - ys, y1 = xs + yc;
        if (i < whole && l->rotation & INFERSCALE_ROT_CUT) y0 = cut(to, y0), y1 = cut(to, y1);
        out[a] = rounded(to, y0);
        out[b] = rounded(to, y1);
    }
}

/* All of a load against the oracle, with gaps between the rows that must stay as they were. */
static void check_load(const live *l, const inferscale_kv_load *load, const inferscale_kv_part *parts, stored *const *of, size_t n,
                       const is_segment_cut *c, int to)
{
    size_t b = is_codec_bytes((is_codec)to), gap = 3;

    for (uint32_t i = c->plane_begin; i < c->plane_end; i++) {
        const is_plane *p = &l->g->planes[i];
        uint32_t heads = is_cut_heads(c, p), first = is_cut_head(c, p), total = 0;
        size_t step = (size_t)heads * (p->head_dim + gap);
        uint8_t *dst, *at;

        for (size_t k = 0; k < n; k++) total += parts[k].n_tokens;
        dst = at = malloc(total * step * b);
        memset(dst, 0x5a, total * step * b);
        OK(inferscale_kv_load_read(load, i, to, dst, step, p->head_dim + gap));
        for (size_t k = 0; k < n; k++)
            for (uint32_t t = 0; t < parts[k].n_tokens; t++)
                for (uint32_t h = 0; h < heads; h++, at += (p->head_dim + gap) * b) {
                    size_t row = ((size_t)(parts[k].begin + t) * p->n_heads + first + h) * p->head_dim * is_codec_bytes((is_codec)l->type);
                    float want[600], got[600];

                    oracle(l, p, of[k]->rows[i] + row, parts[k].pos + t, to, want);
                    is_codec_decode((is_codec)to, at, got, p->head_dim);
                    if (memcmp(want, got, p->head_dim * sizeof *want))
                        fail_msg("plane %u head %u token %u: rotation %#x, %d to %d", i, h, t, (unsigned)l->rotation, l->type, to);
                    for (size_t z = p->head_dim * b; z < (p->head_dim + gap) * b; z++) assert_int_equal(at[z], 0x5a);
                }
        free(dst);
    }
}

static int random_rotation(uint64_t *seed)
{
    int r = (int)kv_below(seed, 4);

    if (kv_below(seed, 2)) r |= INFERSCALE_ROT_CUT;
    if (kv_below(seed, 2)) r |= INFERSCALE_ROT_BLOCK(4 << kv_below(seed, 3), (int)kv_below(seed, 4));
    return r;
}

/* Random models, parts, cuts, types and arithmetics; the tier too small for all of it, or large. */
static void test_loads_as_the_oracle_says(void **state)
{
    uint64_t seed = kv_seed();

    for (int round = 0; round < 120; round++) {
        is_geometry *g = kv_random_geometry(&seed);
        inferscale_kv_part parts[MOST];
        stored of[3], *from[MOST];
        uint32_t heads = g->planes[0].n_heads;
        live l;

        open_live(&l, g, random_rotation(&seed), kv_below(&seed, 2) ? 20000 : 0, &seed);
        for (int i = 0; i < 3; i++) put(&of[i], &l, &seed);
        for (int again = 0; again < 3; again++) {
            uint32_t p = kv_below(&seed, g->n_planes), h = kv_below(&seed, heads);
            is_segment_cut c = { p, p + 1 + kv_below(&seed, g->n_planes - p), h, h + 1 + kv_below(&seed, heads - h) };
            size_t n = 1 + kv_below(&seed, MOST);
            inferscale_kv_load *load;

            for (size_t i = 0; i < n; i++) {
                from[i] = &of[kv_below(&seed, 3)];
                parts[i] = part_of(from[i], kv_below(&seed, from[i]->n), 1, kv_below(&seed, N_POS - 64));
                parts[i].n_tokens = 1 + kv_below(&seed, from[i]->n - parts[i].begin);
            }
            OK(inferscale_kv_load_open(l.kv, parts, n, c.plane_begin, c.plane_end, c.head_begin, c.head_end, &load, NULL));
            check_load(&l, load, parts, from, n, &c, (int)kv_below(&seed, 3));
            inferscale_kv_load_close(load);
        }
        for (int i = 0; i < 3; i++) drop(&of[i], &l);
        close_live(&l);
    }
}

/* Every arithmetic is found again from what it gives, and used from then on. */
static void test_match_finds_the_arithmetic(void **state)
{
    uint64_t seed = kv_seed();

    for (int round = 0; round < 60; round++) {
        is_geometry *g = kv_geometry(1, 2, 60, 1 + (int)kv_below(&seed, 2), 4, 44, 10000, 1); /* 22 pairs: blocks leave some */
        size_t row, n = 40;
        uint8_t *keys, *rotated;
        int found = -1, wrong;
        live l;

        open_live(&l, g, random_rotation(&seed), 0, &seed);
        row = 60 * is_codec_bytes((is_codec)l.type);
        keys = malloc(n * 2 * row);
        rotated = malloc(n * 2 * row);
        for (size_t i = 0; i < n * 2; i++) {
            float x[60], y[60];

            for (int d = 0; d < 60; d++) x[d] = kv_float(&seed);
            is_codec_encode((is_codec)l.type, x, keys + i * row, 60);
            oracle(&l, &g->planes[0], keys + i * row, 7 + (uint32_t)(i / 2), l.type, y);
            is_codec_encode((is_codec)l.type, y, rotated + i * row, 60);
        }
        OK(inferscale_kv_match(l.kv, 0, l.type, keys, rotated, (uint32_t)n, 2, 7, &found));
        wrong = l.rotation;
        l.rotation = found; /* another name for the same bits is as good */
        for (size_t i = 0; i < n * 2; i++) {
            float y[60];
            uint8_t bits[240];

            oracle(&l, &g->planes[0], keys + i * row, 7 + (uint32_t)(i / 2), l.type, y);
            is_codec_encode((is_codec)l.type, y, bits, 60);
            if (memcmp(bits, rotated + i * row, row)) fail_msg("%#x was taken for %#x", (unsigned)wrong, (unsigned)found);
        }
        rotated[row / 2] ^= 0x40;
        FAILS(E_UNSUPPORTED, inferscale_kv_match(l.kv, 0, l.type, keys, rotated, (uint32_t)n, 2, 7, NULL));
        FAILS(E_INVALID, inferscale_kv_match(l.kv, 0, l.type, keys, rotated, 1, 2, 7, NULL)); /* too few */
        FAILS(E_INVALID, inferscale_kv_match(l.kv, 0, l.type, keys, rotated, (uint32_t)n, 2, N_POS - 5, NULL));
        FAILS(E_INVALID, inferscale_kv_match(l.kv, 2, l.type, keys, rotated, (uint32_t)n, 2, 7, NULL));
        free(keys);
        free(rotated);
        close_live(&l);
    }
}

static void flip(const char *path, long at)
{
    FILE *f = fopen(path, "r+b");
    int c;

    assert_non_null(f);
    if (at < 0) fseek(f, at, SEEK_END);
    else fseek(f, at, SEEK_SET);
    at = ftell(f);
    c = fgetc(f);
    fseek(f, at, SEEK_SET);
    fputc(c ^ 0x20, f);
    fclose(f);
}

static void test_check_and_refusals(void **state)
{
    uint64_t seed = kv_seed();
    is_geometry *g = kv_geometry(2, 2, 16, IS_PAIR_HALVES, 0, 16, 10000, 1);
    int32_t prompt[100] = { 0 };
    inferscale_kv_load *load, *held;
    inferscale_plane planes[16];
    inferscale_kv_freqs freqs[4];
    inferscale_kv_part p, two[2];
    inferscale_kv *other;
    inferscale_kv_desc d;
    const char *dir;
    size_t bad = 9;
    stored s, *of = &s;
    live l;

    open_live(&l, g, 0, 0, &seed);
    for (put(&s, &l, &seed); s.n < 10; put(&s, &l, &seed)) drop(&s, &l);
    memcpy(prompt + 20, s.tokens + 2, 8 * sizeof *prompt);
    p = part_of(&s, 2, 8, 20);
    OK(inferscale_kv_check(l.kv, &p, prompt, 100));
    OK(inferscale_kv_check(l.kv, &p, prompt, 28));
    FAILS(E_INVALID, inferscale_kv_check(l.kv, &p, prompt, 27));
    prompt[27]++;
    FAILS(E_INVALID, inferscale_kv_check(l.kv, &p, prompt, 100)); /* other tokens */
    prompt[27]--;
    p.begin = s.n - 7;
    FAILS(E_INVALID, inferscale_kv_check(l.kv, &p, prompt, 100));
    FAILS(E_INVALID, inferscale_kv_load_open(l.kv, &p, 1, 0, 4, 0, 2, &load, &bad));
    p.begin = 2;
    p.dir = 1;
    FAILS(E_INVALID, inferscale_kv_check(l.kv, &p, prompt, 100));
    p.dir = 0;
    p.pos = N_POS - 7;
    FAILS(E_INVALID, inferscale_kv_load_open(l.kv, &p, 1, 0, 4, 0, 2, &load, NULL)); /* beyond the table */
    p.pos = 20;
    FAILS(E_INVALID, inferscale_kv_load_open(l.kv, &p, 1, 0, 5, 0, 2, &load, NULL));
    FAILS(E_INVALID, inferscale_kv_load_open(l.kv, &p, 1, 0, 4, 1, 3, &load, NULL));

    describe(&l, planes, freqs, &d, &dir, 0); /* another model, by fingerprint and by shape */
    d.fingerprint[5] ^= 1;
    OK(inferscale_kv_open(&d, &other));
    FAILS(E_FOREIGN, inferscale_kv_check(other, &p, prompt, 100));
    FAILS(E_FOREIGN, inferscale_kv_load_open(other, &p, 1, 0, 4, 0, 2, &load, NULL));
    inferscale_kv_close(other);
    d.fingerprint[5] ^= 1;
    planes[0].window = 64;
    OK(inferscale_kv_open(&d, &other));
    FAILS(E_FOREIGN, inferscale_kv_check(other, &p, prompt, 100));
    inferscale_kv_close(other);

    OK(inferscale_kv_load_open(l.kv, &p, 1, 0, 4, 0, 2, &held, NULL));
    FAILS(E_INVALID, inferscale_kv_load_read(held, 4, INFERSCALE_F32, prompt, 32, 16));
    FAILS(E_INVALID, inferscale_kv_load_read(held, 0, 3, prompt, 32, 16));
    two[0] = p;
    two[1] = part_of(&s, 0, 1, 5);
    two[1].name[0] ^= 1;
    FAILS(E_NOTFOUND, inferscale_kv_load_open(l.kv, two, 2, 0, 4, 0, 2, &load, &bad));
    assert_int_equal(bad, 1);
    assert_null(load);
    flip(s.path, -1); /* rot in the last rows: the head is whole, other planes are too */
    OK(inferscale_kv_check(l.kv, &p, prompt, 100));
    FAILS(E_CORRUPT, inferscale_kv_load_open(l.kv, &p, 1, 0, 4, 0, 2, &load, NULL));
    OK(inferscale_kv_load_open(l.kv, &p, 1, 0, 3, 0, 2, &load, NULL));
    inferscale_kv_load_close(load);
    flip(s.path, 130);
    FAILS(E_CORRUPT, inferscale_kv_check(l.kv, &p, prompt, 100));
    assert_int_equal(truncate(s.path, 100), 0);
    FAILS(E_CORRUPT, inferscale_kv_load_open(l.kv, &p, 1, 0, 3, 0, 2, &load, NULL));
    unlink(s.path);
    FAILS(E_NOTFOUND, inferscale_kv_load_open(l.kv, &p, 1, 0, 4, 0, 2, &load, NULL)); /* though memory has it */
    check_load(&l, held, &p, &of, 1, &(is_segment_cut){ 0, 4, 0, 2 }, INFERSCALE_F32); /* what was open is as it was */
    inferscale_kv_load_close(held);
    drop(&s, &l);
    close_live(&l);
}

static void test_open_refuses(void **state)
{
    uint64_t seed = kv_seed();
    inferscale_plane planes[16];
    inferscale_kv_freqs freqs[4];
    inferscale_kv_desc good, d;
    const uint8_t *bytes;
    const char *dir, *none = NULL;
    inferscale_kv *kv;
    is_geometry *back;
    size_t n;
    live l;

    open_live(&l, kv_geometry(2, 2, 16, IS_PAIR_HALVES, 0, 16, 10000, 1), 0, 0, &seed);
    OK(inferscale_kv_geometry(l.kv, &bytes, &n));
    OK(is_geometry_read(bytes, n, &back));
    assert_true(is_geometry_equal(back, l.g));
    is_geometry_free(back);
    describe(&l, planes, freqs, &good, &dir, 0);
#define BAD(change)                                                                                                            \
    do {                                                                                                                       \
        d = good;                                                                                                              \
        change;                                                                                                                \
        if (inferscale_kv_open(&d, &kv) != INFERSCALE_E_INVALID || kv) fail_msg("%s", #change);                                \
    } while (0)
    BAD(d.struct_size = 8);
    BAD(d.n_planes = 0);
    BAD(d.n_planes = 5000);
    BAD(d.planes = NULL);
    BAD(d.freqs = NULL);
    BAD(d.n_freqs = 0);
    BAD(d.rotation = -1);
    BAD(d.rotation = 4);
    BAD(d.rotation = 1 << 16);
    BAD(d.dirs = NULL);
    BAD(d.dirs = &none);
#define BAD_IN(what, change) do { __typeof__(what) was = what; change; BAD((void)0); what = was; } while (0)
    BAD_IN(planes[0], planes[0].freq = 1);
    BAD_IN(planes[0], planes[0].pairing = 0);
    BAD_IN(planes[0], planes[0].pairing = 3);
    BAD_IN(planes[0], planes[0].rot_dim = 18);
    BAD_IN(planes[0], planes[0].is_v = 2);
    BAD_IN(planes[1], planes[1].layer = 0; planes[1].is_v = 0);
    BAD_IN(freqs[0], freqs[0].w = NULL);
    BAD_IN(freqs[0], freqs[0].n_pairs = 7);
    BAD_IN(freqs[0], freqs[0].n_pos = 0);
    BAD_IN(freqs[0], freqs[0].mscale = NAN);
    FAILS(E_INVALID, inferscale_kv_open(NULL, &kv));
    FAILS(E_INVALID, inferscale_kv_open(&good, NULL));
    OK(inferscale_kv_open(&good, &kv));
    inferscale_kv_close(kv);
    inferscale_kv_close(NULL);
    inferscale_kv_load_close(NULL);
    close_live(&l);
}

/* What is not a number is not kept; a file that a dead writer left is replaced; nothing but the file is left. */
static void test_write(void **state)
{
    uint64_t seed = kv_seed();
    static float rows[2][2 * 2 * 8];
    const void *planes[2] = { rows[0], rows[1] };
    const int32_t tokens[2] = { 4, 5 };
    char path[1000], part[1100];
    is_segment *s;
    live l;

    open_live(&l, kv_geometry(2, 4, 8, IS_PAIR_HALVES, 0, 8, 10000, 1), 0, 0, &seed);
    snprintf(path, sizeof path, "%s/id.0.2", l.dir);
    snprintf(part, sizeof part, "%s.part", path);
    rows[1][5] = INFINITY;
    FAILS(E_UNSUPPORTED, inferscale_kv_write(l.kv, path, tokens, 2, 9, 2, 4, 2, 4, INFERSCALE_F32, planes));
    rows[1][5] = -3;
    assert_int_equal(close(creat(part, 0600)), 0);
    OK(inferscale_kv_write(l.kv, path, tokens, 2, 9, 2, 4, 2, 4, INFERSCALE_F32, planes));
    assert_int_not_equal(access(part, F_OK), 0);
    OK(is_segment_read(is_fs_posix(), path, &s));
    assert_int_equal(is_segment_info(s)->n_context, 9);
    assert_int_equal(is_segment_info(s)->geometry->n_planes, 2);
    assert_int_equal(is_segment_info(s)->geometry->planes[0].layer, 1);
    assert_int_equal(is_segment_info(s)->geometry->planes[0].n_heads, 2);
    assert_true(((const float *)is_segment_head(s, 1, 0))[5] == -3);
    is_segment_unref(s);
    FAILS(E_INVALID, inferscale_kv_write(l.kv, path, tokens, 2, 9, 2, 5, 2, 4, INFERSCALE_F32, planes));
    FAILS(E_INVALID, inferscale_kv_write(l.kv, path, tokens, 2, 9, 2, 4, 3, 5, INFERSCALE_F32, planes));
    FAILS(E_INVALID, inferscale_kv_write(l.kv, path, tokens, 0, 9, 2, 4, 2, 4, INFERSCALE_F32, planes));
    planes[1] = NULL;
    FAILS(E_INVALID, inferscale_kv_write(l.kv, path, tokens, 2, 9, 2, 4, 2, 4, INFERSCALE_F32, planes));
    planes[1] = rows[1];
    snprintf(path, sizeof path, "%s/nowhere/id.0.2", l.dir);
    FAILS(E_NOTFOUND, inferscale_kv_write(l.kv, path, tokens, 2, 9, 2, 4, 2, 4, INFERSCALE_F32, planes));
    close_live(&l);
}

/* ---- Threads ------------------------------------------------------------------------------------------------------------------------------- */

typedef struct shared {
    live *l;
    stored *of;
    uint64_t seed;
    int failed;
} shared;

static void *use(void *ctx)
{
    shared *x = ctx;

    for (int i = 0; i < 60; i++) {
        stored *s = &x->of[kv_below(&x->seed, 3)];
        inferscale_kv_part p = part_of(s, 0, s->n, kv_below(&x->seed, 100));
        uint32_t h = kv_below(&x->seed, 2);
        inferscale_kv_load *load;
        float rows[64 * 16];

        x->failed |= inferscale_kv_load_open(x->l->kv, &p, 1, 0, 4, h, h + 1, &load, NULL) != INFERSCALE_OK;
        for (uint32_t q = 0; load && q < 4; q++) x->failed |= inferscale_kv_load_read(load, q, INFERSCALE_F32, rows, 16, 16) != INFERSCALE_OK;
        inferscale_kv_load_close(load);
    }
    return NULL;
}

static void test_threads(void **state)
{
    uint64_t seed = kv_seed();
    pthread_t threads[6];
    shared x[6];
    stored of[3];
    live l;

    open_live(&l, kv_geometry(2, 2, 16, IS_PAIR_HALVES, 0, 16, 10000, 1), INFERSCALE_ROT_PRODUCTS, 9000, &seed); /* a small tier: it turns over */
    for (int i = 0; i < 3; i++) put(&of[i], &l, &seed);
    for (int i = 0; i < 6; i++) {
        x[i] = (shared){ .l = &l, .of = of, .seed = seed + (uint64_t)i };
        assert_int_equal(pthread_create(&threads[i], NULL, use, &x[i]), 0);
    }
    for (int i = 0; i < 6; i++) {
        pthread_join(threads[i], NULL);
        assert_false(x[i].failed);
    }
    for (int i = 0; i < 3; i++) drop(&of[i], &l);
    close_live(&l);
}

/* ---- Forgetting ----------------------------------------------------------------------------------------------------------------------- */

static uint64_t n_read;

static is_status count_pread(const is_fs *fs, is_file *f, void *p, size_t n, uint64_t offset)
{
    (void)fs;
    n_read += n;
    return is_fs_posix()->pread(is_fs_posix(), f, p, n, offset);
}

/* Bytes that loading and checking a whole segment reads. */
static uint64_t cost(live *l, const stored *s)
{
    inferscale_kv_part p = part_of(s, 0, s->n, 0);
    inferscale_kv_load *load;

    n_read = 0;
    OK(inferscale_kv_load_open(l->kv, &p, 1, 0, l->g->n_planes, 0, l->g->planes[0].n_heads, &load, NULL));
    inferscale_kv_load_close(load);
    OK(inferscale_kv_check(l->kv, &p, s->tokens, s->n));
    return n_read;
}

/* Nothing of it is in memory, whatever was read of it; the others are; an open load goes on, right to its end. */
static void test_forgotten_is_out_of_memory(void **state)
{
    uint64_t seed = kv_seed();
    is_fs counting = *is_fs_posix();
    inferscale_kv_load *held;
    inferscale_kv_part part;
    is_segment_cut whole;
    stored s[3], *of;
    live l;

    (void)state;
    counting.pread = count_pread;
    is_fs_set_default(&counting);
    open_live(&l, kv_random_geometry(&seed), 0, 0, &seed);
    is_fs_set_default(NULL);
    for (int i = 0; i < 3; i++) put(&s[i], &l, &seed);
    for (int i = 0; i < 3; i++) assert_true(cost(&l, &s[i]) > 0);
    for (int i = 0; i < 3; i++) assert_int_equal(cost(&l, &s[i]), 0);
    part = part_of(&s[1], 0, s[1].n, 5);
    whole = (is_segment_cut){ 0, l.g->n_planes, 0, l.g->planes[0].n_heads };
    OK(inferscale_kv_load_open(l.kv, &part, 1, 0, whole.plane_end, 0, whole.head_end, &held, NULL));
    inferscale_kv_forget(l.kv, &s[1].name, 1);
    inferscale_kv_forget(l.kv, NULL, 0);
    inferscale_kv_forget(NULL, &s[1].name, 1);
    of = &s[1];
    check_load(&l, held, &part, &of, 1, &whole, l.type);
    inferscale_kv_load_close(held);
    assert_int_equal(cost(&l, &s[0]) + cost(&l, &s[2]), 0);
    assert_true(cost(&l, &s[1]) > 0);
    assert_int_equal(cost(&l, &s[1]), 0);
    for (int i = 0; i < 3; i++) drop(&s[i], &l);
    close_live(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_loads_as_the_oracle_says), cmocka_unit_test(test_match_finds_the_arithmetic),
        cmocka_unit_test(test_check_and_refusals),       cmocka_unit_test(test_open_refuses),
        cmocka_unit_test(test_write),                    cmocka_unit_test(test_threads),
        cmocka_unit_test(test_forgotten_is_out_of_memory),
    };
    int failed;

    folder = scratch_make();
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    scratch_remove(folder);
    return failed;
}
