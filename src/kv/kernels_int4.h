/* kernels_int4.h - a block of int4 in AVX2, for both levels; st_i16 is of the including file.
 *
 * The transform takes a step for each of the 6 bits of an index: sums and differences of what differs
 * in that bit. A step between two vectors is an addition and a subtraction. So bits are brought from
 * inside the vectors to between them: the first by multiplying pairs of bytes with (1, 1) and (1, -1),
 * the upper bit of the codes' own place is between them already, three come by interleaving two vectors,
 * the last by exchanging their halves. Codes are stored in the order (is_int4_place) that this turns
 * into the values' own. */
IS_INLINE void int4_step(__m256i *a, __m256i *b)
{
    const __m256i sum = _mm256_add_epi16(*a, *b);

    *b = _mm256_sub_epi16(*a, *b);
    *a = sum;
}

IS_INLINE void int4_interleave(__m256i *a, __m256i *b)
{
    const __m256i low = _mm256_unpacklo_epi16(*a, *b);

    *b = _mm256_unpackhi_epi16(*a, *b);
    *a = low;
    int4_step(a, b);
}

IS_INLINE void int4_exchange(__m256i *a, __m256i *b)
{
    const __m256i low = _mm256_permute2x128_si256(*a, *b, 0x20);

    *b = _mm256_permute2x128_si256(*a, *b, 0x31);
    *a = low;
    int4_step(a, b);
}

static IS_TARGET void int4_block(const uint8_t *block, float dst[IS_INT4_BLOCK])
{
    const __m256i levels = _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)is_int4_levels));
    const __m256i codes = _mm256_loadu_si256((const void *)(block + IS_INT4_SCALE_BYTES));
    const __m256i four = _mm256_set1_epi8(15), ones = _mm256_set1_epi8(1);
    const __m256i top = _mm256_set1_epi8(-128), minus = _mm256_set1_epi16((short)0xff01);
    const __m256i c0 = _mm256_shuffle_epi8(levels, _mm256_and_si256(codes, four));
    const __m256i c1 = _mm256_shuffle_epi8(levels, _mm256_and_si256(_mm256_srli_epi16(codes, 4), four));
    __m256i a = _mm256_maddubs_epi16(ones, c0), b = _mm256_maddubs_epi16(_mm256_xor_si256(c0, top), minus);
    __m256i c = _mm256_maddubs_epi16(ones, c1), d = _mm256_maddubs_epi16(_mm256_xor_si256(c1, top), minus);
    const vf f = v_mul(v_f16_everywhere(block), v_everywhere(0x1p-6f));

    int4_step(&a, &c);
    int4_step(&b, &d);
    for (int i = 0; i < 3; i++) {
        int4_interleave(&a, &b);
        int4_interleave(&c, &d);
    }
    int4_exchange(&a, &b);
    int4_exchange(&c, &d);
    st_i16(dst, a, f);
    st_i16(dst + 16, b, f);
    st_i16(dst + 32, c, f);
    st_i16(dst + 48, d, f);
}
