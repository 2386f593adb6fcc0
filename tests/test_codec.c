/* Codecs against the definition of their formats, against the hardware, and every SIMD level against the scalar oracle. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kv/kernels.h"
#include "support/kv_make.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

static uint32_t bits_of(float x)
{
    uint32_t u;

    memcpy(&u, &x, 4);
    return u;
}

static float float_of(uint32_t u)
{
    float x;

    memcpy(&x, &u, 4);
    return x;
}

/* The value of a 16-bit float from its definition, in double. */
static double value_of(uint16_t h, int exponent_bits, int mantissa_bits)
{
    int bias = (1 << (exponent_bits - 1)) - 1, e = h >> mantissa_bits & ((1 << exponent_bits) - 1);
    double m = h & ((1 << mantissa_bits) - 1), sign = h & 0x8000 ? -1 : 1;

    if (e == (1 << exponent_bits) - 1) return m != 0 ? NAN : sign * INFINITY;
    return sign * (e ? ldexp(1 + ldexp(m, -mantissa_bits), e - bias) : ldexp(m, 1 - bias - mantissa_bits));
}

static void test_names(void **state)
{
    is_codec c;

    for (int i = 0; i < IS_CODECS; i++) {
        assert_int_equal(is_codec_parse(is_codec_name((is_codec)i), &c), INFERSCALE_OK);
        assert_int_equal(c, i);
    }
    assert_int_equal(is_codec_parse("int3", &c), INFERSCALE_E_INVALID);
    assert_int_equal(is_codec_parse(NULL, &c), INFERSCALE_E_INVALID);
    assert_int_equal(is_codec_bytes(IS_CODEC_F32), 4);
    assert_int_equal(is_codec_bytes(IS_CODEC_F16), 2);
    assert_int_equal(is_codec_bytes(IS_CODEC_BF16), 2);
    assert_int_equal(is_codec_row_bytes(IS_CODEC_F32, 64), 256);
    assert_int_equal(is_codec_row_bytes(IS_CODEC_F16, 64), 128);
    assert_int_equal(is_codec_row_bytes(IS_CODEC_INT8, 64), 66); /* 0.516 of f16 */
    assert_int_equal(is_codec_row_bytes(IS_CODEC_INT4, 64), 38); /* 0.297 of f16 */
    for (size_t n = 64; n <= 4096; n++)
        if (is_codec_row_bytes(IS_CODEC_INT4, n) * 10 > n * 2 * 3)
            fail_msg("int4: %zu bytes for %zu values", is_codec_row_bytes(IS_CODEC_INT4, n), n);
}

static void test_all_values_decode_and_round_trip(void **state)
{
    for (uint32_t h = 0; h < 0x10000; h++) {
        double f16 = value_of((uint16_t)h, 5, 10), bf16 = value_of((uint16_t)h, 8, 7);
        float a = is_f32_from_f16((uint16_t)h), b = is_f32_from_bf16((uint16_t)h);

        if (isnan(f16)) assert_true(isnan(a) && isnan(is_f32_from_f16(is_f16_from_f32(a))));
        else if ((double)a != f16 || signbit(a) != (int)(h >> 15) * signbit(a) || is_f16_from_f32(a) != h)
            fail_msg("f16 %04x is %.9g, not %.9g, and comes back as %04x", h, a, f16, is_f16_from_f32(a));
        if (isnan(bf16)) assert_true(isnan(b) && isnan(is_f32_from_bf16(is_bf16_from_f32(b))));
        else if ((double)b != bf16 || is_bf16_from_f32(b) != h)
            fail_msg("bf16 %04x is %.9g, not %.9g, and comes back as %04x", h, b, bf16, is_bf16_from_f32(b));
    }
}

/* Nearest even by looking at the two neighbours: independent of how the rounding is done. */
static void check_nearest(float x, uint16_t h, float (*decode)(uint16_t), uint16_t infinity, float first_infinite)
{
    uint16_t magnitude = h & 0x7fff;
    float ax = fabsf(x);
    double here, below, above;

    assert_int_equal(h >> 15, signbit(x) != 0);
    if (ax >= first_infinite) {
        assert_int_equal(magnitude, infinity);
        return;
    }
    assert_true(magnitude < infinity);
    here = fabs((double)decode(magnitude) - ax);
    below = magnitude ? fabs((double)decode((uint16_t)(magnitude - 1)) - ax) : INFINITY;
    above = magnitude + 1 < infinity ? fabs((double)decode((uint16_t)(magnitude + 1)) - ax) : INFINITY;
    if (here > below || here > above || ((here == below || here == above) && (magnitude & 1)))
        fail_msg("%.9g (%08x) became %04x", x, bits_of(x), h);
}

/* Every exponent, both signs, mantissas around every tie that 10 or 7 kept bits can have, and random ones. */
static void test_rounding_is_nearest_even(void **state)
{
    uint64_t seed = kv_seed();

    for (uint32_t e = 0; e < 255; e++) {
        for (uint32_t i = 0; i < 6000; i++) {
            uint32_t m = (uint32_t)kv_next(&seed) & 0x7fffff, u;

            if (i % 3 == 0) m = (m & ~0x1fffu) | (0x1000 + (kv_below(&seed, 3) - 1)); /* f16 ties and their neighbours */
            if (i % 3 == 1) m = (m & ~0xffffu) | (0x8000 + (kv_below(&seed, 3) - 1)); /* bf16 ties */
            if (i % 30 == 2) m = (uint32_t)(1u << kv_below(&seed, 23)) - kv_below(&seed, 2);
            u = (uint32_t)(kv_next(&seed) >> 63) << 31 | e << 23 | (m & 0x7fffff);
            check_nearest(float_of(u), is_f16_from_f32(float_of(u)), is_f32_from_f16, 0x7c00, 65520.0f);
            check_nearest(float_of(u), is_bf16_from_f32(float_of(u)), is_f32_from_bf16, 0x7f80, float_of(0x7f7f8000));
        }
    }
    assert_int_equal(is_f16_from_f32(65519.996f), 0x7bff);
    assert_int_equal(is_f16_from_f32(0x1p-25f), 0);
    assert_int_equal(is_f16_from_f32(0x1.000002p-25f), 1);
    assert_int_equal(is_f16_from_f32(-0.0f), 0x8000);
    assert_int_equal(is_f16_from_f32(INFINITY), 0x7c00);
    assert_int_equal(is_bf16_from_f32(-INFINITY), 0xff80);
    assert_int_equal(is_bf16_from_f32(FLT_MAX), 0x7f80);
    assert_true(isnan(is_f32_from_f16(is_f16_from_f32(float_of(0x7f800001)))));  /* payload only in bits that are cut */
    assert_true(isnan(is_f32_from_bf16(is_bf16_from_f32(float_of(0xff800001)))));
}

#if defined(__x86_64__)
static __attribute__((target("f16c"))) uint16_t hardware_f16(float x)
{
    return _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT);
}

static __attribute__((target("f16c"))) float hardware_f32(uint16_t h)
{
    return _cvtsh_ss(h);
}

static void test_f16_equals_hardware(void **state)
{
    if (is_cpu_simd() < IS_SIMD_AVX2) {
        print_message("this CPU (or INFERSCALE_SIMD) has no F16C: compared with the definition only\n");
        return;
    }
    for (uint32_t h = 0; h < 0x10000; h++)
        if (bits_of(hardware_f32((uint16_t)h)) != bits_of(is_f32_from_f16((uint16_t)h))) fail_msg("f16 %04x", h);
    /* Every exponent with every value of the 16 upper mantissa bits, and the lower ones all 0, 1 (sticky), and all set. */
    for (uint32_t upper = 0; upper < 1u << 25; upper++) {
        uint32_t u = upper << 7 | (upper % 3 == 0 ? 0 : upper % 3 == 1 ? 1 : 0x7f);

        if (hardware_f16(float_of(u)) != is_f16_from_f32(float_of(u))) fail_msg("f32 %08x", u);
    }
}
#endif

/* Random bits in all lengths, so that whole vectors, ends and nothing at all occur, at odd addresses, with a guard behind. */
static void check_level(const is_kernels *k, is_codec from, is_codec to, uint64_t *seed)
{
    enum { MAX = 150 };
    uint8_t src[8 * MAX + 9], want[4 * MAX + 9], got[4 * MAX + 9];

    for (size_t n = 0; n <= MAX; n++) {
        size_t bytes = n * is_codec_bytes(to), at = n % 3 * (n % 50), dim = at + n + n % 7;

        for (size_t i = 0; i < sizeof src; i++) src[i] = (uint8_t)kv_next(seed);
        memset(want, 0xa5, sizeof want);
        memset(got, 0xa5, sizeof got);
        is_kernels_scalar.convert(from, src + 1, dim, at, to, want + 1, n);
        k->convert(from, src + 1, dim, at, to, got + 1, n);
        if (memcmp(want, got, sizeof want))
            fail_msg("%s: %zu values (%zu bytes) from %s to %s differ", k->name, n, bytes, is_codec_name(from),
                     is_codec_name(to));
    }
}

static void test_levels_give_the_same_bits(void **state)
{
    uint64_t seed = kv_seed();

    for (int level = IS_SIMD_SCALAR; level <= IS_SIMD_VNNI; level++) {
        const is_kernels *k = is_kernels_at((is_simd)level);

        print_message("level %s: kernel %s\n", is_cpu_simd_name((is_simd)level), k->name);
        for (int round = 0; round < 20; round++)
            for (int from = 0; from < IS_CODECS; from++)
                for (int to = 0; to < IS_CACHE_TYPES; to++) check_level(k, (is_codec)from, (is_codec)to, &seed);
    }
}

static void test_encode_decode_use_them(void **state)
{
    float x[37], y[37];
    uint16_t h[37];
    uint64_t seed = kv_seed();

    for (int i = 0; i < 37; i++) x[i] = kv_float(&seed);
    is_codec_encode(IS_CODEC_F16, x, h, 37);
    is_codec_decode(IS_CODEC_F16, h, y, 37);
    for (int i = 0; i < 37; i++) {
        assert_int_equal(h[i], is_f16_from_f32(x[i]));
        assert_true(fabsf(y[i] - x[i]) <= fabsf(x[i]) * 0x1p-11f + 0x1p-25f);
    }
    is_codec_encode(IS_CODEC_F32, x, y, 37);
    assert_memory_equal(x, y, sizeof x);
}

/* One row: by the format's definition, in double, and no value further from its origin than half a step of the scale. */
static void check_int8(const float *x, size_t n)
{
    uint8_t row[2 + 200];
    float y[200], largest = 0;
    uint16_t h;
    double scale;

    for (size_t i = 0; i < n; i++) largest = fmaxf(largest, fabsf(x[i]));
    memset(row, 0xa5, sizeof row);
    is_codec_encode(IS_CODEC_INT8, x, row, n);
    for (size_t i = 2 + n; i < sizeof row; i++) assert_int_equal(row[i], 0xa5);
    is_codec_decode(IS_CODEC_INT8, row, y, n);
    memcpy(&h, row, sizeof h);
    scale = value_of(h, 5, 10);
    assert_true(scale * 127 >= (double)largest);                                          /* nothing is cut off */
    assert_true(h == 0 || value_of((uint16_t)(h - 1), 5, 10) * 127 <= (double)largest * (1 + 0x1p-22)); /* and no step is wasted */
    for (size_t i = 0; i < n; i++) {
        assert_true((double)y[i] == (double)(int8_t)row[2 + i] * scale);
        if (fabs((double)y[i] - (double)x[i]) > scale / 2 * (1 + 0x1p-20))
            fail_msg("value %zu of %zu: %.9g became %.9g, scale %.9g", i, n, x[i], y[i], scale);
    }
}

static void test_int8_is_its_definition(void **state)
{
    uint64_t seed = kv_seed();
    float x[200], y[200];
    uint8_t row[202];

    for (int round = 0; round < 20000; round++) {
        size_t n = 1 + kv_below(&seed, 200);
        int shift = (int)kv_below(&seed, 42) - 25;

        for (size_t i = 0; i < n; i++) x[i] = ldexpf(kv_float(&seed), kv_below(&seed, 30) ? shift : 3);
        check_int8(x, n);
    }
    for (int i = 0; i < 200; i++) x[i] = 0; /* a row of zeros has scale 0 */
    check_int8(x, 200);
    x[7] = 1e-9f;                           /* below the smallest scale: one step of it holds it */
    check_int8(x, 200);
    for (int i = 0; i < 200; i++) x[i] = (float)(i - 100); /* whole numbers up to 127 keep their values */
    x[0] = 127;
    is_codec_encode(IS_CODEC_INT8, x, row, 200);
    is_codec_decode(IS_CODEC_INT8, row, y, 200);
    assert_memory_equal(x, y, sizeof x);
}

/* ---- int4 ------------------------------------------------------------------------------------ */

enum { INT4_MOST = 330, INT4_BYTES = 256 };

/* The values of a row by the format's definition (docs/formats.md), and each one's scale. */
static void int4_by_definition(const uint8_t *row, size_t n, float *out, double *scales)
{
    const size_t groups = n < 32 ? 1 : n / 32;

    for (size_t g = 0; g < groups; g++) {
        const size_t begin = 32 * g, end = g + 1 < groups ? begin + 32 : n;
        const double scale = value_of((uint16_t)(row[0] | row[1] << 8), 5, 10);
        const int offset = row[2] < 128 ? row[2] : row[2] - 256;

        for (size_t i = begin; i < end; i++) {
            const size_t j = i - begin;
            const bool in_order = j >= 32 || end - begin < 32;
            const size_t byte = in_order ? j / 2 : j % 16, upper = in_order ? j % 2 : j / 16;

            out[i] = (float)(((row[3 + byte] >> 4 * upper & 15) + offset) * scale);
            scales[i] = scale;
        }
        row += 19;
    }
}

/* Encodes, and checks the bytes, the decoding, and that no value moved by more than a step: half of one,
 * but where all codes are used and the offset was rounded against the largest. Returns squared errors
 * over squares. */
static double int4_loss(const float *x, size_t n, float *y)
{
    const size_t bytes = is_codec_row_bytes(IS_CODEC_INT4, n);
    uint8_t row[INT4_BYTES];
    float want[INT4_MOST];
    double scales[INT4_MOST], lost = 0, all = 0;

    memset(row, 0xa5, sizeof row);
    is_codec_encode(IS_CODEC_INT4, x, row, n);
    for (size_t i = bytes; i < sizeof row; i++) assert_int_equal(row[i], 0xa5);
    is_codec_decode(IS_CODEC_INT4, row, y, n);
    int4_by_definition(row, n, want, scales);
    for (size_t i = 0; i < n; i++) {
        const double error = fabs((double)y[i] - (double)x[i]);

        if (y[i] != want[i]) fail_msg("value %zu of %zu is %.9g, not %.9g", i, n, y[i], want[i]);
        if (error > scales[i] * 1.001 + 0x1p-140)
            fail_msg("value %zu of %zu: %.9g became %.9g, scale %.9g", i, n, x[i], y[i], scales[i]);
        lost += error * error;
        all += (double)x[i] * (double)x[i];
    }
    return all > 0 ? lost / all : lost;
}

/* About normal: the sum of twelve uniform numbers. */
static float normal(uint64_t *seed)
{
    double sum = -6;

    for (int i = 0; i < 12; i++) sum += (double)kv_below(seed, 1 << 24) / (1 << 24);
    return (float)sum;
}

static void test_int4_is_its_definition(void **state)
{
    uint64_t seed = kv_seed();
    uint8_t row[INT4_BYTES];
    float x[INT4_MOST], y[INT4_MOST], part[INT4_MOST];
    double scales[INT4_MOST];

    for (int round = 0; round < 8000; round++) {
        const size_t n = 1 + kv_below(&seed, INT4_MOST), at = kv_below(&seed, (uint32_t)n);
        const size_t few = kv_below(&seed, (uint32_t)(n - at + 1));
        const int shift = (int)kv_below(&seed, 24) - 21;
        const float mean = kv_below(&seed, 3) ? 0 : 100 * kv_float(&seed);

        for (size_t i = 0; i < n; i++) x[i] = ldexpf(kv_float(&seed) + mean, shift);
        int4_loss(x, n, y);
        for (size_t i = 0; i < sizeof row; i++) row[i] = (uint8_t)kv_next(&seed); /* any bytes */
        for (size_t g = 0; 32 * g < n; g++) row[19 * g + 1] &= 0xbf; /* of finite scales */
        is_codec_decode(IS_CODEC_INT4, row, y, n);
        int4_by_definition(row, n, x, scales);
        for (size_t i = 0; i < n; i++) assert_true(y[i] == x[i]);
        is_kernels_best()->convert(IS_CODEC_INT4, row, n, at, IS_CODEC_F32, part, few); /* some */
        for (size_t i = 0; i < few; i++) assert_true(part[i] == x[at + i]);
    }
}

/* What int4 loses of normal values, and that a channel which is hundreds of times larger costs the
 * other groups nothing. */
static void test_int4_holds_small_values_beside_large_ones(void **state)
{
    static const size_t sizes[] = { 64, 72, 80, 96, 128, 256 };
    uint64_t seed = kv_seed();
    float x[INT4_MOST], y[INT4_MOST], z[INT4_MOST];

    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        const size_t n = sizes[s];
        double mean = 0;

        for (int round = 0; round < 500; round++) {
            double l;

            for (size_t i = 0; i < n; i++) x[i] = normal(&seed);
            l = int4_loss(x, n, y);
            assert_true(l < 0.03);
            mean += l / 500;
            x[kv_below(&seed, 32)] = 300;
            int4_loss(x, n, z);
            assert_memory_equal(y + 32, z + 32, (n - 32) * sizeof *y);
        }
        print_message("%zu values: lost %.4f\n", n, mean);
        assert_true(mean > 0.004 && mean < 0.012);
    }
}

/* Values where a scale is hard: none but zeros, one alone, equal ones, close ones far from zero, the
 * largest, the least. */
static void test_int4_of_hard_rows(void **state)
{
    static const float sizes[] = { IS_INT4_LARGEST, 65504.0f, 1.0f, 1e-3f };
    float x[INT4_MOST] = { 0 }, y[INT4_MOST];

    for (size_t n = 1; n <= INT4_MOST; n++) {
        assert_true(int4_loss(x, n, y) == 0);
        for (size_t i = 0; i < 2 * sizeof sizes / sizeof *sizes; i++) {
            const float size = nextafterf(sizes[i / 2], 0) * (i % 2 ? -1 : 1);

            x[n / 2] = size;
            assert_true(int4_loss(x, n, y) < 0.002);
            for (size_t j = 0; j < n; j++) x[j] = size;
            assert_true(int4_loss(x, n, y) < 1e-4);
            for (size_t j = 0; j < n; j++) x[j] = size * (1 - 0.001f * (float)(j % 7));
            assert_true(int4_loss(x, n, y) < 1e-4);
            for (size_t j = 0; j < n; j++) x[j] = j % 2 ? size : -size;
            assert_true(int4_loss(x, n, y) < 0.01);
            memset(x, 0, sizeof x);
        }
        x[n - 1] = 0x1p-149f; /* less than any scale */
        int4_loss(x, n, y);
        x[n - 1] = 0;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_all_values_decode_and_round_trip),
        cmocka_unit_test(test_rounding_is_nearest_even),
#if defined(__x86_64__)
        cmocka_unit_test(test_f16_equals_hardware),
#endif
        cmocka_unit_test(test_levels_give_the_same_bits),
        cmocka_unit_test(test_encode_decode_use_them),
        cmocka_unit_test(test_int8_is_its_definition),
        cmocka_unit_test(test_int4_is_its_definition),
        cmocka_unit_test(test_int4_holds_small_values_beside_large_ones),
        cmocka_unit_test(test_int4_of_hard_rows),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
