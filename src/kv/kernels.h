/* kernels.h - the inner loops of the kv room: convert, rotate, copy and transpose rows.
 *
 * One table of functions per SIMD level, chosen at run time. The scalar one is the oracle: all levels give the SAME BITS (tests
 * demand it), because a rotation is computed as
 *
 *     y0 = x0 * cos - x1 * sin        y1 = x0 * sin + x1 * cos
 *
 * in F32 with separate multiplications and additions, never fused (a fused one rounds once less, so its bits depend on the
 * machine; it would not be faster here: the loops wait for conversions and memory). The result is rounded once, to nearest
 * even, to the destination's type. Only the sign and payload of NaNs that arithmetic makes are not promised. rotate_as computes as
 * another engine does (fused, each product rounded, cut instead of rounded), again with the same bits at all levels. */
#ifndef IS_KV_KERNELS_H
#define IS_KV_KERNELS_H

#include "base/cpu.h"
#include "kv/codec.h"
#include "kv/geometry.h"
#include "kv/int4.h"

/* n_heads x n_rows rows; steps in bytes, from row to row and from head to head. While a row is worked on, the row of the same
 * place at `ahead` is asked for (same steps; only read ahead, so it may be anything; NULL = nothing). */
typedef struct is_rows {
    const void *src, *ahead;
    void *dst;
    size_t src_step, dst_step, src_head, dst_head, ahead_head;
    size_t n_rows, n_heads;
} is_rows;

/* How a rotation is computed where an engine's own bits are wanted (the values of INFERSCALE_ROT_*, which say what they mean). */
enum {
    IS_ROTATE_F32 = INFERSCALE_ROT_F32,
    IS_ROTATE_PRODUCTS = INFERSCALE_ROT_PRODUCTS,
    IS_ROTATE_FUSED_SIN = INFERSCALE_ROT_FUSED_SIN,
    IS_ROTATE_FUSED_COS = INFERSCALE_ROT_FUSED_COS,
    IS_ROTATE_CUT = INFERSCALE_ROT_CUT,
};
static inline uint32_t is_rotate_block(uint32_t how) { return how >> 8 & 0xff; }
static inline uint32_t is_rotate_rest(uint32_t how) { return how >> 16 & 3; }
bool is_rotate_known(uint32_t how); /* made of those, without bits that mean nothing */

/* Rotate rows. Row r of every head uses cos[r * table_step ...], sin likewise (floats, readable up to a multiple of 16 pairs).
 * src may equal dst if types and steps are the same. Where the codec has a scale, a row begins with it. */
typedef struct is_rotate {
    is_rows rows;
    const float *cos, *sin;
    size_t table_step;
    is_codec from, to; /* to: a plain codec */
    uint32_t head_dim, rot_begin, rot_dim; /* rot_dim >= 2, even; dims outside the range are only converted */
    uint8_t pairing;                       /* IS_PAIR_ADJACENT or IS_PAIR_HALVES */
    uint32_t how;                          /* IS_ROTATE_*; `rotate` takes F32 only, `rotate_as` all */
} is_rotate;

enum { IS_GATHER = 32 }; /* rows that gather16 takes at a time */

typedef struct is_kernels {
    const char *name;
    /* Values [at, at + n) of the row of dim values at src to dst. to: a plain codec; a codec that is
     * not plain, to itself, is the caller's memcpy. */
    void (*convert)(is_codec from, const void *src, size_t dim, size_t at, is_codec to, void *dst,
                    size_t n);
    /* Whole rows of n values. to: as above. */
    void (*convert_rows)(is_codec from, is_codec to, const is_rows *r, size_t n);
    void (*rotate)(const is_rotate *r);
    void (*rotate_as)(const is_rotate *r); /* plain codecs; two only in the scalar table's */
    void (*copy)(const is_rows *r, size_t row_bytes);
    /* dst[c][r] = src[r][c] for 16-bit and 32-bit elements; steps in bytes, of a row of src and of a row of dst. */
    void (*transpose16)(const void *src, size_t src_step, void *dst, size_t dst_step, size_t n_rows, size_t n_cols);
    void (*transpose32)(const void *src, size_t src_step, void *dst, size_t dst_step, size_t n_rows, size_t n_cols);
    /* dst[c][r] = the 16 bits at rows[r] + at + 2 c, for up to IS_GATHER rows that lie anywhere. ahead: IS_GATHER rows of the
     * same form that will be wanted soon; they are only asked for (NULL = none). */
    void (*gather16)(const uint8_t *const *rows, const uint8_t *const *ahead, size_t at, void *dst, size_t dst_step,
                     size_t n_rows, size_t n_cols);
    /* memcpy past the caches: whole 64-byte lines of dst are written without being read first. fence() ends a series. */
    void (*stream)(void *dst, const void *src, size_t bytes);
    /* The same for n_cols columns of `bytes` bytes, but only the 64-byte lines of dst that are whole: in front of every source
     * column stand the 64 bytes that came before it (first: none did, a line that begins before dst is left out). Then the
     * last 64 bytes of each column are put in front of it. */
    void (*drain)(uint8_t *src, size_t src_step, uint8_t *dst, size_t dst_step, size_t n_cols, size_t bytes, bool first);
    void (*fence)(void);
    is_int4_blocks_fn int4_blocks;
} is_kernels;

const is_kernels *is_kernels_best(void);         /* what is_cpu_simd() allows */
const is_kernels *is_kernels_at(is_simd level);  /* that level, or the best one below it that this CPU and build have */

/* By the arithmetic that r asks for. */
void is_kernels_rotate(const is_kernels *k, const is_rotate *r);

extern const is_kernels is_kernels_scalar;
#if defined(__x86_64__)
extern const is_kernels is_kernels_avx2, is_kernels_avx512;
#endif

#endif
