/* int4.h - rows of 4 bits a value whose large values do not spoil the small ones.
 *
 * A row of n values is n / 64 blocks of 64 values, then a tail of what is left. A block is
 *
 *     scale (f16) | 64 codes of 4 bits | 2 outliers, each an index (byte) and a signed byte
 *
 * The codes name coefficients of the Walsh-Hadamard transform of the block. They are 16 levels,
 * closer to each other near zero, because the coefficients are spread as a normal distribution is.
 * With f = scale / 64, value i is  (sum over j of level[code j] * H[i][j]) * f,  where H[i][j] is 1
 * if i & j has an even number of bits, else -1. Then an outlier adds  byte * 1024 f  to the value
 * that it names.
 *
 * The transform spreads what a large value does to the rounding of its neighbours, and the two
 * largest values are taken out before it. After QuaRot (Ashkboos et al., 2024: Hadamard rotations
 * against outliers) and KVQuant (Hooper et al., 2024: outliers apart, levels that follow the
 * distribution).
 *
 * A tail has a scale and codes in order, the lower half of a byte first, and no outliers. Its
 * values are transformed in groups whose sizes are the powers of two that add up to its length, the
 * largest first. f of a group of b values is scale / 64 times is_int4_gain(b), about 8 / sqrt(b).
 * Before a tail of less than 20 values the last block has one outlier only: so rows of 64 values or
 * more take at most 0.30 of f16's bytes.
 *
 * The sums are whole numbers, and each operation on them is a single F32 one, so every SIMD level
 * gives the same bits. */
#ifndef IS_KV_INT4_H
#define IS_KV_INT4_H

#include <stddef.h>
#include <stdint.h>

enum {
    IS_INT4_BLOCK = 64,        /* values */
    IS_INT4_BLOCK_BYTES = 38,
    IS_INT4_SCALE_BYTES = 2,
    IS_INT4_OUTLIERS_AT = 34,  /* in a block */
    IS_INT4_OUTLIER_STEP = 1024,
    IS_INT4_LONGEST = 4096,    /* values of a row, at most: of the largest head */
};

size_t is_int4_row_bytes(size_t n); /* of a row of n values */

/* The byte of a block's codes that holds coefficient j (0 to 63), in its upper half from 32 on.
 * From this order SIMD comes to values in their own order without moving them. */
static inline size_t is_int4_place(size_t j) { return (j & 16) | (j & 3) << 2 | (j >> 2 & 3); }
extern const int8_t is_int4_levels[16];
float is_int4_gain(size_t b); /* of a group of b values in a tail: b a power of two below 64 */

/* A row of n finite values, none beyond IS_INT4_LARGEST, to is_int4_row_bytes(n) bytes. One
 * implementation for all levels: its bits do not depend on the machine. The scale is the one of a
 * few whose squared error is the least. */
void is_int4_encode(const float *src, uint8_t *dst, size_t n);

/* The same block of n rows, step bytes apart, with as many outliers each, to floats dst_step floats
 * apart. */
typedef void (*is_int4_blocks_fn)(const uint8_t *block, size_t step, size_t n_outliers, float *dst,
                                  size_t dst_step, size_t n);
void is_int4_blocks_scalar(const uint8_t *block, size_t step, size_t n_outliers, float *dst,
                           size_t dst_step, size_t n); /* the oracle */

/* Values [at, at + n) of a row of `dim` values. Any bytes decode to something: an index counts
 * modulo 64. */
void is_int4_decode(is_int4_blocks_fn blocks, const uint8_t *row, size_t dim, size_t at, float *dst,
                    size_t n);
/* The same of m rows, step bytes apart, to one behind another. Fast where `at` begins a block, and
 * n ends one or the row. */
void is_int4_decode_rows(is_int4_blocks_fn blocks, const uint8_t *rows, size_t step, size_t dim,
                         size_t at, float *dst, size_t n, size_t m);

#endif
