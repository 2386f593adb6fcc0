/* kernels_int4.h - groups of int4 by SIMD. Of the including file: st_bytes, which stores 16
 * unsigned bytes, plus an offset, times a scale, as 16 floats. */
static IS_TARGET void int4_blocks(const uint8_t *block, size_t step, float *dst, size_t dst_step,
                                  size_t n)
{
    const __m128i four = _mm_set1_epi8(15);

    for (; n--; block += step, dst += dst_step) {
        const __m128i codes = _mm_loadu_si128((const void *)(block + IS_INT4_HEAD_BYTES));
        const vf scale = v_f16_everywhere(block);
        const int offset = (int8_t)block[2];

        st_bytes(dst, _mm_and_si128(codes, four), offset, scale);
        st_bytes(dst + 16, _mm_and_si128(_mm_srli_epi16(codes, 4), four), offset, scale);
    }
}
