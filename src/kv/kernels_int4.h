/* kernels_int4.h - blocks of int4 by SIMD, over a vocabulary that the including file defines:
 *
 *   vb, IS_BLOCKS             a vector of IS_BLOCKS times 32 bytes: of as many blocks at a time
 *   vb_codes                  the codes of IS_BLOCKS blocks that are step bytes apart
 *   vb_and, vb_xor, vb_shift  and, exclusive or; each 16 bits shifted right by 4
 *   vb_bytes, vb_shorts       the same byte, or the same 16 bits, everywhere
 *   vb_levels                 the levels of codes
 *   vb_pairs                  unsigned bytes times signed ones, neighbours added up to 16 bits
 *   vb_add, vb_sub            of 16 bits
 *   vb_low, vb_high           of two vectors, the 16 bits of each lower (upper) 64 interleaved
 *   vb_first, vb_second       of two vectors, the lower (upper) 128 bits of each 256
 *   vb_store                  16 numbers of the i-th block times f, to p
 *
 * The transform takes a step for each of the 6 bits of an index: sums and differences of what
 * differs in that bit. A step between two vectors is an addition and a subtraction. So bits are
 * brought from inside the vectors to between them: the first by multiplying pairs of bytes with
 * (1, 1) and (1, -1); the upper bit of a code's place is between them already; three come by
 * interleaving two vectors, the last by exchanging their halves. Codes are stored in the order
 * (is_int4_place) that this turns into the values' own. */

IS_INLINE void int4_step(vb *a, vb *b)
{
    const vb sum = vb_add(*a, *b);

    *b = vb_sub(*a, *b);
    *a = sum;
}

IS_INLINE void int4_interleave(vb *a, vb *b)
{
    const vb low = vb_low(*a, *b);

    *b = vb_high(*a, *b);
    *a = low;
    int4_step(a, b);
}

IS_INLINE void int4_exchange(vb *a, vb *b)
{
    const vb first = vb_first(*a, *b);

    *b = vb_second(*a, *b);
    *a = first;
    int4_step(a, b);
}

/* One of the blocks whose transform is a, b, c, d: times its scale, and its outliers added. */
IS_INLINE void int4_finish(const uint8_t *block, int i, vb a, vb b, vb c, vb d, size_t n_outliers,
                           float *dst)
{
    const vf f = v_mul(v_f16_everywhere(block), v_everywhere(0x1p-6f));
    const float step = v_first(f) * IS_INT4_OUTLIER_STEP;

    vb_store(dst, a, i, f);
    vb_store(dst + 16, b, i, f);
    vb_store(dst + 32, c, i, f);
    vb_store(dst + 48, d, i, f);
    block += IS_INT4_OUTLIERS_AT;
    for (size_t k = 0; k < n_outliers; k++, block += 2)
        dst[block[0] % IS_INT4_BLOCK] += (float)(int8_t)block[1] * step;
}

/* IS_BLOCKS blocks, or the first alone (then step is 0). */
IS_INLINE void int4_few(const uint8_t *block, size_t step, size_t n_outliers, float *dst,
                        size_t dst_step, bool one)
{
    const vb codes = vb_codes(block + IS_INT4_SCALE_BYTES, step);
    const vb four = vb_bytes(15), ones = vb_bytes(1);
    const vb top = vb_bytes(-128), minus = vb_shorts((short)0xff01);
    const vb c0 = vb_levels(vb_and(codes, four)), c1 = vb_levels(vb_and(vb_shift(codes), four));
    vb a = vb_pairs(ones, c0), b = vb_pairs(vb_xor(c0, top), minus);
    vb c = vb_pairs(ones, c1), d = vb_pairs(vb_xor(c1, top), minus);

    int4_step(&a, &c);
    int4_step(&b, &d);
    for (int i = 0; i < 3; i++) {
        int4_interleave(&a, &b);
        int4_interleave(&c, &d);
    }
    int4_exchange(&a, &b);
    int4_exchange(&c, &d);
    int4_finish(block, 0, a, b, c, d, n_outliers, dst);
    if (IS_BLOCKS > 1 && !one) int4_finish(block + step, 1, a, b, c, d, n_outliers, dst + dst_step);
}

static IS_TARGET void int4_blocks(const uint8_t *block, size_t step, size_t n_outliers, float *dst,
                                  size_t dst_step, size_t n)
{
    for (; n >= IS_BLOCKS; n -= IS_BLOCKS, block += IS_BLOCKS * step, dst += IS_BLOCKS * dst_step)
        int4_few(block, step, n_outliers, dst, dst_step, false);
    if (n) int4_few(block, 0, n_outliers, dst, 0, true);
}
