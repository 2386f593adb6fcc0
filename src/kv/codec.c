/* codec.c - how rows are held: sizes, names, the scalar conversions (the oracles of all SIMD), the choice of the kernel. */
#include "kv/codec.h"

#include <math.h>
#include <string.h>

#include "kv/int4.h"
#include "kv/kernels.h"

size_t is_codec_bytes(is_codec c)
{
    return c == IS_CODEC_F32 ? 4 : 2;
}

size_t is_codec_row_bytes(is_codec c, size_t n)
{
    if (c == IS_CODEC_INT4) return is_int4_row_bytes(n);
    return c == IS_CODEC_INT8 ? IS_INT8_SCALE_BYTES + n : n * is_codec_bytes(c);
}

const char *is_codec_name(is_codec c)
{
    switch (c) {
    case IS_CODEC_F32: return "f32";
    case IS_CODEC_F16: return "f16";
    case IS_CODEC_BF16: return "bf16";
    case IS_CODEC_INT8: return "int8";
    case IS_CODEC_INT4: return "int4";
    }
    return "unknown";
}

is_status is_codec_parse(const char *name, is_codec *out)
{
    for (int c = IS_CODEC_F32; c < IS_CODECS; c++) {
        if (name && !strcmp(name, is_codec_name((is_codec)c))) {
            *out = (is_codec)c;
            return INFERSCALE_OK;
        }
    }
    return is_fail(INFERSCALE_E_INVALID, "unknown codec \"%.20s\"; use f16, bf16, f32, int8 or int4",
                   name ? name : "");
}

uint16_t is_f16_not_below(float x)
{
    uint16_t h = is_f16_from_f32(x);

    if (h >= 0x7c00) return 0x7bff; /* beyond the largest finite f16: the values are cut to it */
    return is_f32_from_f16(h) < x ? (uint16_t)(h + 1) : h;
}

/* One row in int8. One implementation for all levels: encoding is not the hot path, and its bits must not depend on the machine. */
static void int8_encode(const float *src, uint8_t *dst, size_t n)
{
    float largest = 0, scale;
    uint16_t h;

    for (size_t i = 0; i < n; i++) largest = fabsf(src[i]) > largest ? fabsf(src[i]) : largest;
    h = is_f16_not_below(largest / 127.0f);
    scale = is_f32_from_f16(h);
    memcpy(dst, &h, sizeof h);
    for (size_t i = 0; i < n; i++) {
        float q = scale > 0 ? nearbyintf(src[i] / scale) : 0;

        dst[IS_INT8_SCALE_BYTES + i] = (uint8_t)(int8_t)(q > 127 ? 127 : q < -127 ? -127 : q);
    }
}

void is_codec_encode(is_codec c, const float *src, void *dst, size_t n)
{
    if (c == IS_CODEC_INT8) {
        int8_encode(src, dst, n);
        return;
    }
    if (c == IS_CODEC_INT4) {
        is_int4_encode(src, dst, n);
        return;
    }
    is_kernels_best()->convert(IS_CODEC_F32, src, n, 0, c, dst, n);
}

void is_codec_decode(is_codec c, const void *src, float *dst, size_t n)
{
    is_kernels_best()->convert(c, src, n, 0, IS_CODEC_F32, dst, n);
}

static uint32_t bits_of(float x)
{
    uint32_t u;

    memcpy(&u, &x, sizeof u);
    return u;
}

static float float_of(uint32_t u)
{
    float x;

    memcpy(&x, &u, sizeof x);
    return x;
}

uint16_t is_f16_from_f32(float x)
{
    uint32_t u = bits_of(x), sign = u >> 16 & 0x8000, a = u & 0x7fffffff;
    uint32_t shift, m, q, rest, half;

    if (a > 0x7f800000) return (uint16_t)(sign | 0x7e00 | (a >> 13 & 0x3ff)); /* NaN: quiet, upper payload bits kept, as F16C */
    if (a >= 0x477ff000) return (uint16_t)(sign | 0x7c00);                    /* from 65,520 on the nearest is infinity */
    if (a >= 0x38800000) {                                                    /* normal: exponent bias 127 -> 15 */
        a -= 0x38000000;
        return (uint16_t)(sign | (a + 0xfff + (a >> 13 & 1)) >> 13);
    }
    if (a <= 0x33000000) return (uint16_t)sign;                               /* up to 2^-25: nearest even is zero */
    shift = 126 - (a >> 23);                                                  /* subnormal: multiples of 2^-24 */
    m = (a & 0x7fffff) | 0x800000;
    q = m >> shift;
    rest = m & ((1u << shift) - 1);
    half = 1u << (shift - 1);
    if (rest > half || (rest == half && (q & 1))) q++;
    return (uint16_t)(sign | q);
}

float is_f32_from_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, e = h >> 10 & 0x1f, m = h & 0x3ff;
    float x;

    if (e == 31) return float_of(sign | 0x7f800000 | (m ? 0x400000 | m << 13 : 0)); /* NaN is quieted, as F16C does */
    if (e) return float_of(sign | (e + 112) << 23 | m << 13);
    x = (float)m * 0x1p-24f; /* zero and subnormals: exact */
    return float_of(sign | bits_of(x));
}

uint16_t is_bf16_from_f32(float x)
{
    uint32_t u = bits_of(x);

    if ((u & 0x7fffffff) > 0x7f800000) return (uint16_t)(u >> 16 | 0x40); /* NaN stays NaN */
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

float is_f32_from_bf16(uint16_t h)
{
    return float_of((uint32_t)h << 16);
}
