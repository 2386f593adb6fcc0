/* int4.c - rows of 4 bits a value: sizes, encoding, the scalar decoding (the oracle of SIMD). */
#include "kv/int4.h"

#include <math.h>
#include <string.h>

#include "kv/codec.h"

enum { HALF = IS_INT4_BLOCK / 2, LARGEST_CODE = 15, LEAST_OFFSET = -128, LARGEST_OFFSET = 127 };

static size_t groups_of(size_t n)
{
    return n < IS_INT4_BLOCK ? 1 : n / IS_INT4_BLOCK;
}

size_t is_int4_row_bytes(size_t n)
{
    return n ? groups_of(n) * IS_INT4_HEAD_BYTES + (n + 1) / 2 : 0;
}

/* ---- Decoding -------------------------------------------------------------------------------- */

static float scale_of(const uint8_t *group)
{
    uint16_t h;

    memcpy(&h, group, sizeof h);
    return is_f32_from_f16(h);
}

static float value_of(const uint8_t *group, int code)
{
    return (float)(code + (int8_t)group[2]) * scale_of(group);
}

void is_int4_blocks_scalar(const uint8_t *block, size_t step, float *dst, size_t dst_step, size_t n)
{
    for (; n--; block += step, dst += dst_step)
        for (size_t j = 0; j < IS_INT4_BLOCK; j++)
            dst[j] = value_of(block, block[IS_INT4_HEAD_BYTES + j % HALF] >> j / HALF * 4 & 15);
}

/* Values [at, at + n) behind the whole 32s: of the last group, or of the only one. */
static void decode_rest(const uint8_t *row, size_t whole, size_t at, float *dst, size_t n)
{
    const uint8_t *group = row + (whole ? (whole / IS_INT4_BLOCK - 1) * IS_INT4_BLOCK_BYTES : 0);
    const uint8_t *codes = group + (whole ? (size_t)IS_INT4_BLOCK_BYTES : IS_INT4_HEAD_BYTES);

    for (size_t j = at - whole; n--; j++) *dst++ = value_of(group, codes[j / 2] >> j % 2 * 4 & 15);
}

void is_int4_decode(is_int4_blocks_fn blocks, const uint8_t *row, size_t dim, size_t at, float *dst,
                    size_t n)
{
    const size_t whole = dim - dim % IS_INT4_BLOCK;

    for (size_t m; n; n -= m, at += m, dst += m) {
        const uint8_t *block = row + at / IS_INT4_BLOCK * IS_INT4_BLOCK_BYTES;
        const size_t before = at % IS_INT4_BLOCK;
        float part[IS_INT4_BLOCK];

        m = IS_INT4_BLOCK - before < n ? IS_INT4_BLOCK - before : n;
        if (at >= whole) {
            decode_rest(row, whole, at, dst, m);
        } else if (m == IS_INT4_BLOCK) {
            blocks(block, 0, dst, 0, 1);
        } else {
            blocks(block, 0, part, 0, 1);
            memcpy(dst, part + before, m * sizeof *part);
        }
    }
}

void is_int4_decode_rows(is_int4_blocks_fn blocks, const uint8_t *rows, size_t step, size_t dim,
                         size_t at, float *dst, size_t n, size_t m)
{
    const size_t end = at + n, whole = dim - dim % IS_INT4_BLOCK;
    size_t b = at;

    for (; b % IS_INT4_BLOCK == 0 && b + IS_INT4_BLOCK <= end && b < whole; b += IS_INT4_BLOCK)
        blocks(rows + b / IS_INT4_BLOCK * IS_INT4_BLOCK_BYTES, step, dst + (b - at), n, m);
    for (size_t i = 0; b < end && i < m; i++)
        is_int4_decode(blocks, rows + i * step, dim, b, dst + i * n + (b - at), end - b);
}

/* ---- Encoding -------------------------------------------------------------------------------- */

/* The scale that spreads the codes over the values, unless the offset could not reach them then. */
static uint16_t scale_for(float lowest, float highest)
{
    const float spread = (highest - lowest) / LARGEST_CODE;
    const float far = lowest > 0 ? lowest / LARGEST_OFFSET : lowest / LEAST_OFFSET;

    return is_f16_not_below(far > spread ? far : spread);
}

static void encode_group(const float *x, uint8_t *group, size_t n)
{
    float lowest = x[0], highest = x[0], scale, offset;
    uint8_t *codes = group + IS_INT4_HEAD_BYTES;
    uint16_t h;

    for (size_t i = 1; i < n; i++) {
        lowest = x[i] < lowest ? x[i] : lowest;
        highest = x[i] > highest ? x[i] : highest;
    }
    h = scale_for(lowest, highest);
    scale = is_f32_from_f16(h);
    offset = scale > 0 ? nearbyintf(lowest / scale) : 0;
    if (!(offset > LEAST_OFFSET)) offset = LEAST_OFFSET;
    if (offset > LARGEST_OFFSET) offset = LARGEST_OFFSET;
    memcpy(group, &h, sizeof h);
    group[2] = (uint8_t)(int8_t)offset;
    memset(codes, 0, (n + 1) / 2);
    for (size_t j = 0; j < n; j++) {
        const float code = scale > 0 ? nearbyintf(x[j] / scale) - offset : 0;
        const uint8_t c = code >= LARGEST_CODE ? LARGEST_CODE : code > 0 ? (uint8_t)code : 0;
        const bool in_order = n < IS_INT4_BLOCK || j >= IS_INT4_BLOCK;

        codes[in_order ? j / 2 : j % HALF] |= (uint8_t)(c << 4 * (in_order ? j % 2 : j / HALF));
    }
}

void is_int4_encode(const float *src, uint8_t *dst, size_t n)
{
    for (; n >= 2 * IS_INT4_BLOCK; n -= IS_INT4_BLOCK) {
        encode_group(src, dst, IS_INT4_BLOCK);
        src += IS_INT4_BLOCK;
        dst += IS_INT4_BLOCK_BYTES;
    }
    if (n) encode_group(src, dst, n);
}
