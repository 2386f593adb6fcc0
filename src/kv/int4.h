/* int4.h - rows of 4 bits a value, in groups of 32 values with a scale and an offset each.
 *
 * A group is
 *
 *     scale (f16) | offset (signed byte) | codes of 4 bits, 0 to 15
 *
 * and a value is  (code + offset) * scale,  exact in F32. So a large value coarsens the 31 beside it
 * and no others, and values that are all on one side of zero waste no codes. (After KIVI, Liu et al.,
 * 2024, which has such groups; there those of keys go along tokens, here within the row, so that a
 * row stands alone.)
 *
 * A row of n values is n / 32 groups, the last of which takes what is left over as well; fewer than
 * 32 values are one group. Code j of the first 32 values of a group is in byte j % 16, in the lower
 * half for j < 16, else in the upper. The others, and those of a group of fewer than 32, stand in
 * order, the lower half of a byte first. So 64 values take 38 bytes, and 64 or more at most 0.30 of
 * f16's. */
#ifndef IS_KV_INT4_H
#define IS_KV_INT4_H

#include <stddef.h>
#include <stdint.h>

enum {
    IS_INT4_BLOCK = 32,        /* values */
    IS_INT4_HEAD_BYTES = 3,    /* scale and offset */
    IS_INT4_BLOCK_BYTES = IS_INT4_HEAD_BYTES + IS_INT4_BLOCK / 2,
    IS_INT4_LONGEST = 4096,    /* values of a row, at most: of the largest head */
};

size_t is_int4_row_bytes(size_t n); /* of a row of n values */

/* A row of n finite values, none beyond IS_INT4_LARGEST, to is_int4_row_bytes(n) bytes. One
 * implementation for all levels: its bits do not depend on the machine. */
void is_int4_encode(const float *src, uint8_t *dst, size_t n);

/* The first 32 values of the same group of n rows, step bytes apart, to floats dst_step apart. */
typedef void (*is_int4_blocks_fn)(const uint8_t *block, size_t step, float *dst, size_t dst_step,
                                  size_t n);
void is_int4_blocks_scalar(const uint8_t *block, size_t step, float *dst, size_t dst_step,
                           size_t n); /* the oracle */

/* Values [at, at + n) of a row of `dim` values. Any bytes decode to something. */
void is_int4_decode(is_int4_blocks_fn blocks, const uint8_t *row, size_t dim, size_t at, float *dst,
                    size_t n);
/* The same of m rows, step bytes apart, to one behind another. Fast where `at` begins a group, and
 * n ends one or the row. */
void is_int4_decode_rows(is_int4_blocks_fn blocks, const uint8_t *rows, size_t step, size_t dim,
                         size_t at, float *dst, size_t n, size_t m);

#endif
