/* int4.c - rows of 4 bits a value: sizes, encoding, the scalar decoding (the oracle of SIMD). */
#include "kv/int4.h"

#include <math.h>
#include <string.h>

#include "kv/codec.h"

enum {
    CODES = IS_INT4_BLOCK / 2, /* bytes of a block's codes */
    OUTLIERS = 2,
    SHORT_TAIL = 20,
    TRIES = 8,
};

const int8_t is_int4_levels[16] = { -127, -96, -75, -58, -44, -31, -18, -6,
                                    6, 18, 31, 44, 58, 75, 96, 127 };

/* ---- Sizes ----------------------------------------------------------------------------------- */

/* Outliers of a block that begins at value `at` of a row of n. */
static size_t outliers_of(size_t at, size_t n)
{
    const size_t tail = n % IS_INT4_BLOCK;

    return at + IS_INT4_BLOCK + tail == n && tail && tail < SHORT_TAIL ? 1 : OUTLIERS;
}

size_t is_int4_row_bytes(size_t n)
{
    const size_t tail = n % IS_INT4_BLOCK, blocks = n / IS_INT4_BLOCK * IS_INT4_BLOCK_BYTES;

    if (!tail) return blocks;
    return blocks - (blocks && tail < SHORT_TAIL ? 2 : 0) + IS_INT4_SCALE_BYTES + (tail + 1) / 2;
}

float is_int4_gain(size_t b)
{
    /* Short fractions: their product with f is exact. */
    static const float gains[] = { 8.0f, 5.5f, 4.0f, 2.75f, 2.0f, 1.375f };
    size_t log2 = 0;

    while (b >>= 1) log2++;
    return gains[log2];
}

/* The largest power of two that is not above n (1 to 63). */
static size_t group_of(size_t n)
{
    size_t b = IS_INT4_BLOCK / 2;

    while (b > n) b /= 2;
    return b;
}

static float factor_of(uint16_t scale)
{
    return is_f32_from_f16(scale) * 0x1p-6f;
}

/* ---- Decoding -------------------------------------------------------------------------------- */

static void transform_whole(int32_t *c, size_t n)
{
    for (size_t h = 1; h < n; h *= 2)
        for (size_t i = 0; i < n; i++) {
            const int32_t a = c[i], b = c[i ^ h];

            if (i & h) continue;
            c[i] = a + b;
            c[i ^ h] = a - b;
        }
}

static void decode_block(const uint8_t *block, size_t n_outliers, float dst[IS_INT4_BLOCK])
{
    const uint8_t *codes = block + IS_INT4_SCALE_BYTES, *outlier = block + IS_INT4_OUTLIERS_AT;
    int32_t c[IS_INT4_BLOCK];
    uint16_t scale;
    float f;

    memcpy(&scale, block, sizeof scale);
    f = factor_of(scale);
    for (size_t j = 0; j < IS_INT4_BLOCK; j++)
        c[j] = is_int4_levels[codes[is_int4_place(j)] >> (j < CODES ? 0 : 4) & 15];
    transform_whole(c, IS_INT4_BLOCK);
    for (size_t i = 0; i < IS_INT4_BLOCK; i++) dst[i] = (float)c[i] * f;
    for (size_t k = 0; k < n_outliers; k++, outlier += 2)
        dst[outlier[0] % IS_INT4_BLOCK] += (float)(int8_t)outlier[1] * (f * IS_INT4_OUTLIER_STEP);
}

void is_int4_blocks_scalar(const uint8_t *block, size_t step, size_t n_outliers, float *dst,
                           size_t dst_step, size_t n)
{
    for (; n--; block += step, dst += dst_step) decode_block(block, n_outliers, dst);
}

static void decode_tail(const uint8_t *tail, float *dst, size_t n)
{
    const uint8_t *codes = tail + IS_INT4_SCALE_BYTES;
    int32_t c[IS_INT4_BLOCK];
    uint16_t scale;
    float f;

    memcpy(&scale, tail, sizeof scale);
    for (size_t j = 0; j < n; j++) c[j] = is_int4_levels[codes[j / 2] >> 4 * (j % 2) & 15];
    for (size_t at = 0, b; at < n; at += b) {
        b = group_of(n - at);
        transform_whole(c + at, b);
        f = factor_of(scale) * is_int4_gain(b);
        for (size_t i = at; i < at + b; i++) dst[i] = (float)c[i] * f;
    }
}

/* Where the tail of a row of dim values begins. */
static const uint8_t *tail_of(const uint8_t *row, size_t dim)
{
    return row + is_int4_row_bytes(dim) - IS_INT4_SCALE_BYTES - (dim % IS_INT4_BLOCK + 1) / 2;
}

void is_int4_decode(is_int4_blocks_fn blocks, const uint8_t *row, size_t dim, size_t at, float *dst,
                    size_t n)
{
    const size_t end = at + n, whole = dim - dim % IS_INT4_BLOCK;

    for (size_t b = at - at % IS_INT4_BLOCK; b < end; b += IS_INT4_BLOCK) {
        const size_t begin = at > b ? at - b : 0;
        const size_t stop = end - b < IS_INT4_BLOCK ? end - b : IS_INT4_BLOCK;
        const bool direct = !begin && stop == IS_INT4_BLOCK;
        float part[IS_INT4_BLOCK], *to = direct ? dst + (b - at) : part;

        if (b < whole)
            blocks(row + b / IS_INT4_BLOCK * IS_INT4_BLOCK_BYTES, 0, outliers_of(b, dim), to, 0, 1);
        else
            decode_tail(tail_of(row, dim), to, dim - whole);
        if (!direct) memcpy(dst + (b + begin - at), part + begin, (stop - begin) * sizeof *part);
    }
}

void is_int4_decode_rows(is_int4_blocks_fn blocks, const uint8_t *rows, size_t step, size_t dim,
                         size_t at, float *dst, size_t n, size_t m)
{
    const size_t end = at + n, whole = dim - dim % IS_INT4_BLOCK;
    size_t b = at;

    for (; b % IS_INT4_BLOCK == 0 && b + IS_INT4_BLOCK <= end && b < whole; b += IS_INT4_BLOCK)
        blocks(rows + b / IS_INT4_BLOCK * IS_INT4_BLOCK_BYTES, step, outliers_of(b, dim),
               dst + (b - at), n, m);
    for (size_t i = 0; b < end && i < m; i++)
        is_int4_decode(blocks, rows + i * step, dim, b, dst + i * n + (b - at), end - b);
}

/* ---- Encoding -------------------------------------------------------------------------------- */

static void transform(float *x, size_t n)
{
    for (size_t h = 1; h < n; h *= 2)
        for (size_t i = 0; i < n; i++) {
            const float a = x[i], b = x[i ^ h];

            if (i & h) continue;
            x[i] = a + b;
            x[i ^ h] = a - b;
        }
}

/* The code whose level is the nearest to t / f. */
static uint8_t code_of(float t, float f)
{
    const float twice = f > 0 ? 2 * fabsf(t) / f : 0;
    const int level = (twice >= 24) + (twice >= 49) + (twice >= 75) + (twice >= 102) + /* doubled */
                      (twice >= 133) + (twice >= 171) + (twice >= 223); /* middles of the levels */

    return (uint8_t)(t < 0 ? 7 - level : 8 + level);
}

/* Codes of t; their squared error. */
static double code_all(const float *t, size_t n, float f, uint8_t *codes)
{
    double error = 0;

    for (size_t j = 0; j < n; j++) {
        float e;

        codes[j] = code_of(t[j], f);
        e = t[j] - (float)is_int4_levels[codes[j]] * f;
        error += (double)e * (double)e;
    }
    return error;
}

/* Scales to try: some about the one that suits a normal distribution, and one that cuts nothing.
 * Each lets the largest outlier fit in its byte. */
static void scales_to_try(const float *t, size_t n, float outlier, uint16_t scales[TRIES])
{
    static const float about[TRIES - 1] = { 0.8f, 0.9f, 1.0f, 1.1f, 1.2f, 1.35f, 1.6f };
    const float least = outlier / (127.0f * IS_INT4_OUTLIER_STEP);
    double squares = 0;
    float largest = 0, f;

    for (size_t j = 0; j < n; j++) {
        squares += (double)t[j] * (double)t[j];
        largest = fabsf(t[j]) > largest ? fabsf(t[j]) : largest;
    }
    f = (float)sqrt(squares / (double)n) / 46.5f; /* 127 is 2.73 deviations */
    for (int i = 0; i < TRIES - 1; i++)
        scales[i] = is_f16_not_below(fmaxf(f * about[i], least) * 64);
    f = largest / (outlier > 0 ? 111.0f : 127.0f); /* what two outliers leave adds up to 16 f */
    scales[TRIES - 1] = is_f16_not_below(fmaxf(f, least) * 64);
}

/* A block on its way: its largest values apart, the transform of the others. */
typedef struct int4_block {
    float rest[IS_INT4_BLOCK], value[OUTLIERS];
    uint8_t index[OUTLIERS], codes[IS_INT4_BLOCK];
    int8_t byte[OUTLIERS];
    size_t n_outliers;
} int4_block;

static void split(const float *x, size_t n_outliers, int4_block *b)
{
    memcpy(b->rest, x, sizeof b->rest);
    b->n_outliers = n_outliers;
    for (size_t k = 0; k < n_outliers; k++) {
        size_t at = 0;

        for (size_t i = 1; i < IS_INT4_BLOCK; i++)
            if (fabsf(b->rest[i]) > fabsf(b->rest[at])) at = i;
        b->index[k] = (uint8_t)at;
        b->value[k] = b->rest[at];
        b->rest[at] = 0;
    }
    transform(b->rest, IS_INT4_BLOCK);
    for (size_t j = 0; j < IS_INT4_BLOCK; j++) b->rest[j] /= IS_INT4_BLOCK;
}

/* With this scale: what the outliers' bytes leave of them is transformed with the others. */
static double code_block(int4_block *b, float f)
{
    const float step = f * IS_INT4_OUTLIER_STEP;
    float t[IS_INT4_BLOCK];

    memcpy(t, b->rest, sizeof t);
    for (size_t k = 0; k < b->n_outliers; k++) {
        const float q = step > 0 ? nearbyintf(b->value[k] / step) : 0;
        float left;

        b->byte[k] = (int8_t)(q >= 127 ? 127 : q > -127 ? q : -127);
        left = (b->value[k] - (float)b->byte[k] * step) / IS_INT4_BLOCK;
        for (unsigned j = 0; j < IS_INT4_BLOCK; j++)
            t[j] += __builtin_parity(j & b->index[k]) ? -left : left;
    }
    return code_all(t, IS_INT4_BLOCK, f, b->codes);
}

static void encode_block(const float *x, uint8_t *dst, size_t n_outliers)
{
    uint16_t scales[TRIES], scale = 0;
    double least = INFINITY;
    int4_block b;

    split(x, n_outliers, &b);
    scales_to_try(b.rest, IS_INT4_BLOCK, fabsf(b.value[0]), scales);
    for (int i = 0; i < TRIES; i++) {
        const double error = code_block(&b, factor_of(scales[i]));

        if (i > 0 && !(error < least)) continue;
        least = error;
        scale = scales[i];
    }
    code_block(&b, factor_of(scale));
    memcpy(dst, &scale, sizeof scale);
    memset(dst + IS_INT4_SCALE_BYTES, 0, CODES);
    for (size_t j = 0; j < IS_INT4_BLOCK; j++)
        dst[IS_INT4_SCALE_BYTES + is_int4_place(j)] |= (uint8_t)(b.codes[j] << (j < CODES ? 0 : 4));
    for (size_t k = 0; k < n_outliers; k++) {
        dst[IS_INT4_OUTLIERS_AT + 2 * k] = b.index[k];
        dst[IS_INT4_OUTLIERS_AT + 2 * k + 1] = (uint8_t)b.byte[k];
    }
}

static void encode_tail(const float *x, uint8_t *dst, size_t n)
{
    uint16_t scales[TRIES], scale = 0;
    uint8_t codes[IS_INT4_BLOCK];
    float t[IS_INT4_BLOCK];
    double least = INFINITY;

    memcpy(t, x, n * sizeof *t);
    for (size_t at = 0, b; at < n; at += b) {
        b = group_of(n - at);
        transform(t + at, b);
        for (size_t i = at; i < at + b; i++) t[i] /= (float)b * is_int4_gain(b);
    }
    scales_to_try(t, n, 0, scales);
    for (int i = 0; i < TRIES; i++) {
        const double error = code_all(t, n, factor_of(scales[i]), codes);

        if (i > 0 && !(error < least)) continue;
        least = error;
        scale = scales[i];
    }
    code_all(t, n, factor_of(scale), codes);
    memcpy(dst, &scale, sizeof scale);
    memset(dst + IS_INT4_SCALE_BYTES, 0, (n + 1) / 2);
    for (size_t j = 0; j < n; j++)
        dst[IS_INT4_SCALE_BYTES + j / 2] |= (uint8_t)(codes[j] << 4 * (j % 2));
}

void is_int4_encode(const float *src, uint8_t *dst, size_t n)
{
    size_t at = 0;

    for (; at + IS_INT4_BLOCK <= n; at += IS_INT4_BLOCK) {
        const size_t n_outliers = outliers_of(at, n);

        encode_block(src + at, dst, n_outliers);
        dst += IS_INT4_OUTLIERS_AT + 2 * n_outliers;
    }
    if (at < n) encode_tail(src + at, dst, n - at);
}
