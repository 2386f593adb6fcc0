/* compose.c - the hot path of serving: stored rows to an engine's cache rows.
 *
 * Work is cut into blocks of tokens whose destination rows fit well inside the first-level cache, and inside a block the heads
 * follow one another: the destination is then written about once, front to back, however many heads there are, while every head's
 * source is read front to back. */
#include "kv/compose.h"

#include "kv/kernels.h"
#include "kv/rope_table.h"
#include "kv/segment_layout.h"

enum {
    BLOCK_BYTES = 16 << 10, /* destination bytes of a block of tokens */
    STAGE_BYTES = 16 << 10, /* rotated or converted rows on their way to columns; one row of 4,096 f32 fits */
};

/* One call's work, checked. */
typedef struct compose_job {
    const is_segment *s;
    const is_plane *p;
    const is_rope_set *set; /* NULL = nothing rotates */
    is_codec from, to;
    size_t src_row, dst_row; /* bytes of one head of one token */
    uint32_t token_begin, n_tokens, head_begin, n_heads, plane, pos;
} compose_job;

static is_status prepare(compose_job *j, const is_segment *s, const is_rope *rope, uint32_t plane, uint32_t token_begin,
                         uint32_t token_end, uint32_t head_begin, uint32_t head_end, uint32_t pos, is_codec dst_type, const void *dst)
{
    if (!s || !dst || plane >= s->geometry->n_planes || (unsigned)dst_type > IS_CODEC_BF16)
        return is_fail(INFERSCALE_E_INVALID, "composing needs a segment, a destination, a plane of it and f32, f16 or bf16; check the "
                       "engine's geometry");
    j->p = &s->geometry->planes[plane];
    if (token_begin > token_end || token_end > s->desc.n_tokens || head_begin > head_end || head_end > j->p->n_heads)
        return is_fail(INFERSCALE_E_INVALID, "tokens %u to %u, heads %u to %u are outside a segment of %u tokens and %u heads; ask for "
                       "rows that are there", token_begin, token_end, head_begin, head_end, s->desc.n_tokens, j->p->n_heads);
    j->s = s;
    j->plane = plane;
    j->from = s->desc.codec;
    j->to = dst_type;
    j->src_row = (size_t)j->p->head_dim * is_codec_bytes(j->from);
    j->dst_row = (size_t)j->p->head_dim * is_codec_bytes(j->to);
    j->token_begin = token_begin;
    j->n_tokens = token_end - token_begin;
    j->head_begin = head_begin;
    j->n_heads = head_end - head_begin;
    j->pos = pos;
    j->set = NULL;
    if (j->p->pairing == IS_PAIR_NONE || !j->n_tokens) return INFERSCALE_OK;
    j->set = is_rope_set_for(rope, j->p, pos, j->n_tokens);
    return j->set ? INFERSCALE_OK : INFERSCALE_E_INVALID;
}

/* n tokens from the job's t-th, one head, to rows dst_step bytes apart. */
static void run_head(const is_kernels *k, const compose_job *j, uint32_t head, uint32_t t, uint32_t n, uint8_t *dst, size_t dst_step)
{
    const uint8_t *src = (const uint8_t *)is_segment_head(j->s, j->plane, j->head_begin + head) + (j->token_begin + t) * j->src_row;

    if (j->set) {
        const float *row = j->set->rows + ((size_t)j->pos + t) * 2 * j->set->half;
        is_rotate r = {
            .src = src, .dst = dst, .src_step = j->src_row, .dst_step = dst_step, .cos = row, .sin = row + j->set->half,
            .table_step = 2 * (size_t)j->set->half, .n_rows = n, .from = j->from, .to = j->to, .head_dim = j->p->head_dim,
            .rot_begin = j->p->rot_begin, .rot_dim = j->p->rot_dim, .pairing = j->p->pairing,
        };
        k->rotate(&r);
    } else if (j->from == j->to) {
        k->copy(src, j->src_row, dst, dst_step, j->src_row, n);
    } else {
        for (uint32_t i = 0; i < n; i++) k->convert(j->from, src + i * j->src_row, j->to, dst + i * dst_step, j->p->head_dim);
    }
}

is_status is_compose_rows(const is_segment *s, const is_rope *rope, uint32_t plane, uint32_t token_begin, uint32_t token_end,
                          uint32_t head_begin, uint32_t head_end, uint32_t pos, is_codec dst_type, void *dst, size_t token_stride,
                          size_t head_stride)
{
    const is_kernels *k = is_kernels_best();
    size_t token_step, head_step, block;
    compose_job j;

    IS_TRY(prepare(&j, s, rope, plane, token_begin, token_end, head_begin, head_end, pos, dst_type, dst));
    token_step = token_stride * is_codec_bytes(dst_type);
    head_step = head_stride * is_codec_bytes(dst_type);
    block = BLOCK_BYTES / (j.dst_row * (j.n_heads ? j.n_heads : 1));
    if (block < 4) block = 4;
    for (uint32_t t = 0; t < j.n_tokens; t += (uint32_t)block) {
        uint32_t n = j.n_tokens - t < block ? j.n_tokens - t : (uint32_t)block;

        for (uint32_t h = 0; h < j.n_heads; h++) run_head(k, &j, h, t, n, (uint8_t *)dst + t * token_step + h * head_step, token_step);
    }
    return INFERSCALE_OK;
}

is_status is_compose_columns(const is_segment *s, const is_rope *rope, uint32_t plane, uint32_t token_begin, uint32_t token_end,
                             uint32_t head_begin, uint32_t head_end, uint32_t pos, is_codec dst_type, void *dst, size_t column_stride)
{
    _Alignas(64) uint8_t stage[STAGE_BYTES];
    const is_kernels *k = is_kernels_best();
    size_t b = is_codec_bytes(dst_type), column_step = column_stride * b;
    void (*transpose)(const void *, size_t, void *, size_t, size_t, size_t) = b == 2 ? k->transpose16 : k->transpose32;
    compose_job j;

    IS_TRY(prepare(&j, s, rope, plane, token_begin, token_end, head_begin, head_end, pos, dst_type, dst));
    for (uint32_t h = 0; h < j.n_heads; h++) {
        uint8_t *d = (uint8_t *)dst + (size_t)h * j.p->head_dim * column_step;

        if (!j.set && j.from == j.to) {
            const uint8_t *src = (const uint8_t *)is_segment_head(s, plane, head_begin + h) + token_begin * j.src_row;

            transpose(src, j.src_row, d, column_step, j.n_tokens, j.p->head_dim);
            continue;
        }
        for (uint32_t t = 0, n; t < j.n_tokens; t += n) {
            n = (uint32_t)(STAGE_BYTES / j.dst_row);
            if (n > j.n_tokens - t) n = j.n_tokens - t;
            run_head(k, &j, h, t, n, stage, j.dst_row);
            transpose(stage, j.dst_row, d + t * b, column_step, n, j.p->head_dim);
        }
    }
    return INFERSCALE_OK;
}
