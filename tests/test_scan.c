/* What must hold of the dot product scan: every level this CPU has equals the scalar oracle, bit for bit, at any dimension,
 * stride and alignment, and reads nothing past a row. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/mem.h"
#include "recall/scan.h"

static uint64_t state;

static uint32_t next(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 32);
}

/* 0 random, 1 extremes at random, 2 all -128, 3 all 127, 4 -128 against 127 */
static int8_t value(int kind, int side)
{
    if (kind == 0) return (int8_t)next();
    if (kind == 1) return next() & 1 ? -128 : 127;
    if (kind == 2) return -128;
    if (kind == 3) return 127;
    return side ? -128 : 127;
}

/* The oracle of the oracle: 64-bit sums. */
static void check_all(const int8_t *q, const int8_t *rows, size_t stride, uint32_t dim, size_t n)
{
    int32_t *out = is_malloc((n + 1) * sizeof *out);

    for (is_simd level = IS_SIMD_SCALAR; level <= is_cpu_simd(); level++) {
        memset(out, 0x55, (n + 1) * sizeof *out);
        is_scan_dot_level(level, q, rows, stride, dim, n, out);
        for (size_t i = 0; i < n; i++) {
            int64_t want = 0;
            for (uint32_t d = 0; d < dim; d++) want += (int64_t)q[d] * rows[i * stride + d];
            if (out[i] != want) print_message("level %s dim %u row %zu\n", is_cpu_simd_name(level), dim, i);
            assert_int_equal(out[i], want);
        }
        assert_int_equal(out[n], 0x55555555); /* nothing written past the end */
    }
    is_free(out);
}

static void levels_equal_oracle(void **ctx)
{
    static const uint32_t dims[] = {1,   2,   15,  16,  31,  32,  33,  63,  64,   65,   95,   127,
                                    128, 129, 383, 384, 385, 767, 768, 1000, 1024, 4099, 65536};

    (void)ctx;
    state = 0x9e3779b97f4a7c15u;
    print_message("seed %llu, levels up to %s\n", (unsigned long long)state, is_cpu_simd_name(is_cpu_simd()));
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++)
        for (int kind = 0; kind < 5; kind++) {
            uint32_t dim = dims[i];
            size_t n = dim > 4096 ? 5 : 1 + next() % 11, stride = dim + next() % 70, shift = next() % 64;
            int8_t *q = is_malloc(dim + 64), *rows = is_malloc(n * stride + 64);
            for (uint32_t d = 0; d < dim; d++) q[shift + d] = value(kind, 0);
            for (size_t j = 0; j < n * stride; j++) rows[shift + j] = value(kind, 1);
            check_all(q + shift, rows + shift, stride, dim, n);
            is_free(q);
            is_free(rows);
        }
}

/* Query and last row end where unreadable memory begins. */
static void reads_stay_inside(void **ctx)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    int8_t *p = mmap(NULL, 4 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    (void)ctx;
    assert_true(p != MAP_FAILED);
    assert_int_equal(mprotect(p + page, page, PROT_NONE), 0);
    assert_int_equal(mprotect(p + 3 * page, page, PROT_NONE), 0);
    for (size_t i = 0; i < page; i++) p[i] = (int8_t)next(), p[2 * page + i] = (int8_t)next();
    for (uint32_t dim = 1; dim <= 200; dim++) {
        size_t n = 1 + dim % 6;
        check_all(p + page - dim, p + 3 * page - n * dim, dim, dim, n);
    }
    munmap(p, 4 * page);
}

static void no_rows_is_fine(void **ctx)
{
    int8_t q[4] = {1, 2, 3, 4};
    int32_t out = 7;

    (void)ctx;
    is_scan_dot(q, q, 4, 4, 0, &out);
    assert_int_equal(out, 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(levels_equal_oracle),
        cmocka_unit_test(reads_stay_inside),
        cmocka_unit_test(no_rows_is_fine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
