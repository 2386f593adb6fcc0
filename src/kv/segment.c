/* segment.c - one encoded span's rows in memory. */
#include "kv/segment.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/words.h"
#include "kv/kernels.h"
#include "kv/segment_layout.h"

static is_status no_memory(void)
{
    return is_fail(INFERSCALE_E_NOMEM,
                   "out of memory for a KV segment; lower the RAM budget (%s) or free memory",
                   is_words(IS_CALL_RAM));
}

/* Cannot overflow: tokens, row size and planes are bounded (2^20 each of the first two times 4 bytes, 2^12 planes). */
uint64_t is_segment_lay_out(const is_segment_desc *desc, uint64_t *plane_at)
{
    uint64_t at = 0;

    for (uint32_t i = 0; i < desc->geometry->n_planes; i++) {
        const is_plane *p = &desc->geometry->planes[i];

        plane_at[i] = at;
        at += is_segment_block_bytes(desc, p) * p->n_heads;
        at = (at + IS_SEGMENT_ALIGN - 1) / IS_SEGMENT_ALIGN * IS_SEGMENT_ALIGN;
    }
    return at;
}

static void destroy(is_segment *s)
{
    if (atomic_load_explicit(&s->wipe, memory_order_relaxed)) {
        if (s->payload) explicit_bzero(s->payload, (size_t)s->payload_bytes);
        if (s->tokens) explicit_bzero(s->tokens, s->desc.n_tokens * sizeof *s->tokens);
    }
    is_free(s->payload);
    is_free(s->plane_at);
    is_free(s->tokens);
    is_geometry_free(s->geometry);
    is_free(s);
}

static is_status fill_head(is_segment *s, const is_segment_desc *desc)
{
    size_t token_bytes = desc->n_tokens * sizeof *s->tokens;

    s->desc = *desc;
    s->geometry = is_geometry_copy(desc->geometry);
    s->tokens = is_malloc(token_bytes);
    if (!s->geometry || !s->tokens) return no_memory();
    memcpy(s->tokens, desc->tokens, token_bytes);
    s->desc.geometry = s->geometry;
    s->desc.tokens = s->tokens;
    s->bytes = token_bytes + s->geometry->n_planes * sizeof(is_plane) + sizeof *s;
    for (uint32_t i = 0; i < s->geometry->n_freqs; i++)
        s->bytes += sizeof(is_freqs) + s->geometry->freqs[i].n_pairs * sizeof(double);
    return INFERSCALE_OK;
}

static is_status fill_payload(is_segment *s, uint64_t max_payload)
{
    s->plane_at = is_malloc(s->geometry->n_planes * sizeof *s->plane_at);
    if (!s->plane_at) return no_memory();
    s->payload_bytes = is_segment_lay_out(&s->desc, s->plane_at);
    if (s->payload_bytes > max_payload)
        return is_fail(INFERSCALE_E_CORRUPT,
                       "a KV segment is smaller than its header says; it is damaged, encode its facts again");
    if (s->payload_bytes > SIZE_MAX / 2) return no_memory();
    s->payload = is_malloc_aligned(IS_SEGMENT_ALIGN, (size_t)s->payload_bytes);
    if (!s->payload) return no_memory();
    s->bytes += (size_t)s->payload_bytes + s->geometry->n_planes * sizeof *s->plane_at;
    return INFERSCALE_OK;
}

static is_status alloc(const is_segment_desc *desc, bool bare, uint64_t max_payload, is_segment **out)
{
    is_segment *s;
    is_status st;

    *out = NULL;
    IS_TRY(is_geometry_check(desc->geometry));
    if (desc->n_tokens < 1 || desc->n_tokens > IS_SEGMENT_MAX_TOKENS || !desc->tokens)
        return is_fail(INFERSCALE_E_INVALID, "a KV segment of %u tokens; spans must have 1 to %d", desc->n_tokens,
                       IS_SEGMENT_MAX_TOKENS);
    if (!is_codec_known(desc->codec))
        return is_fail(INFERSCALE_E_INVALID,
                       "unknown codec %d of a KV segment; use f16, bf16, f32, int8 or int4",
                       (int)desc->codec);
    s = is_calloc(1, sizeof *s);
    if (!s) return no_memory();
    atomic_init(&s->refs, 1);
    st = fill_head(s, desc);
    if (st == INFERSCALE_OK && !bare) st = fill_payload(s, max_payload);
    if (st != INFERSCALE_OK) {
        destroy(s);
        return st;
    }
    *out = s;
    return INFERSCALE_OK;
}

is_status is_segment_alloc(const is_segment_desc *desc, uint64_t max_payload, is_segment **out)
{
    return alloc(desc, false, max_payload, out);
}

is_status is_segment_alloc_bare(const is_segment_desc *desc, is_segment **out)
{
    return alloc(desc, true, 0, out);
}

/* What would become infinite, or is not a number, must not be stored: attention over it would spoil every answer it serves. */
static is_status check_values(const float *x, size_t n, is_codec codec, uint32_t plane)
{
    static const float limits[IS_CODECS] = { INFINITY, 65520.0f, 0x1.ffp127f, IS_INT8_LARGEST,
                                             IS_INT4_LARGEST };
    const float limit = limits[codec];
    size_t wrong = 0;

    for (size_t i = 0; i < n; i++) wrong += !(fabsf(x[i]) < limit);
    if (!wrong) return INFERSCALE_OK;
    return is_fail(INFERSCALE_E_UNSUPPORTED,
                   "%zu values of KV plane %u are outside the range of %s; use another codec "
                   "(%s %s), or serve this model from text",
                   wrong, plane, is_codec_name(codec), is_words(IS_CALL_CODEC),
                   codec == IS_CODEC_F16 || codec == IS_CODEC_INT4 ? "bf16" : "f32");
}

/* rows F32 [n_tokens][n_heads][head_dim] -> [head][token][dim] of the codec. */
static void encode_plane(is_segment *s, uint32_t plane, const float *rows)
{
    const is_plane *p = &s->geometry->planes[plane];
    size_t row = is_codec_row_bytes(s->desc.codec, p->head_dim);
    uint8_t *dst = s->payload + s->plane_at[plane];
    uint64_t used = is_segment_head_bytes(s, p) * p->n_heads;
    uint64_t end = plane + 1 < s->geometry->n_planes ? s->plane_at[plane + 1] : s->payload_bytes;

    for (uint32_t h = 0; h < p->n_heads; h++)
        for (uint32_t t = 0; t < s->desc.n_tokens; t++, dst += row)
            is_codec_encode(s->desc.codec, rows + (size_t)t * is_plane_width(p) + (size_t)h * p->head_dim, dst, p->head_dim);
    memset(dst, 0, (size_t)(end - s->plane_at[plane] - used));
}

is_status is_segment_new(const is_segment_desc *desc, const float *const *rows, is_segment **out)
{
    is_segment *s;

    *out = NULL;
    IS_TRY(is_segment_alloc(desc, UINT64_MAX, &s));
    for (uint32_t i = 0; i < s->geometry->n_planes; i++) {
        size_t n = (size_t)is_plane_width(&s->geometry->planes[i]) * s->desc.n_tokens;
        is_status st = check_values(rows[i], n, s->desc.codec, i);

        if (st != INFERSCALE_OK) {
            is_segment_unref(s);
            return st;
        }
        encode_plane(s, i, rows[i]);
    }
    *out = s;
    return INFERSCALE_OK;
}

/* [head][token][dim] of the codec -> rows F32 [n_tokens][n_heads][head_dim]. */
static void decode_plane(const is_segment *s, uint32_t plane, float *rows)
{
    const is_plane *p = &s->geometry->planes[plane];
    size_t row = is_codec_row_bytes(s->desc.codec, p->head_dim);
    const uint8_t *src = s->payload + s->plane_at[plane];

    for (uint32_t h = 0; h < p->n_heads; h++)
        for (uint32_t t = 0; t < s->desc.n_tokens; t++, src += row)
            is_codec_decode(s->desc.codec, src, rows + (size_t)t * is_plane_width(p) + (size_t)h * p->head_dim, p->head_dim);
}

is_status is_segment_recode(const is_segment *s, const uint8_t name[IS_HASH_BYTES], is_codec codec, is_segment **out)
{
    is_segment_desc desc = s->desc;
    size_t width = 0;
    float *rows;
    is_status st;

    *out = NULL;
    if (!s->payload) return is_fail(INFERSCALE_E_INVALID, "a KV segment without its rows cannot be recoded; read the whole of it");
    desc.codec = codec;
    memcpy(desc.name, name, IS_HASH_BYTES);
    for (uint32_t i = 0; i < s->geometry->n_planes; i++)
        if (is_plane_width(&s->geometry->planes[i]) > width) width = is_plane_width(&s->geometry->planes[i]);
    rows = is_malloc(width * desc.n_tokens * sizeof *rows);
    if (!rows) return no_memory();
    st = is_segment_alloc(&desc, UINT64_MAX, out);
    for (uint32_t i = 0; i < s->geometry->n_planes && st == INFERSCALE_OK; i++) {
        decode_plane(s, i, rows);
        st = check_values(rows, (size_t)is_plane_width(&s->geometry->planes[i]) * desc.n_tokens, codec, i);
        if (st == INFERSCALE_OK) encode_plane(*out, i, rows);
    }
    is_free(rows);
    if (st == INFERSCALE_OK) return st;
    is_segment_unref(*out);
    *out = NULL;
    return st;
}

/* Values of any codec, a few at a time as F32. */
static is_status check_raw(const void *x, size_t n, is_codec codec, uint32_t plane)
{
    float some[256];

    for (size_t i = 0, m; i < n; i += m) {
        m = n - i < 256 ? n - i : 256;
        is_codec_decode(codec, (const uint8_t *)x + i * is_codec_bytes(codec), some, m);
        IS_TRY(check_values(some, m, IS_CODEC_F32, plane));
    }
    return INFERSCALE_OK;
}

is_status is_segment_new_raw(const is_segment_desc *desc, const void *const *rows, is_segment **out)
{
    is_segment *s;
    is_status st = INFERSCALE_OK;

    *out = NULL;
    if (!is_codec_plain(desc->codec))
        return is_fail(INFERSCALE_E_INVALID, "rows of an engine's cache in codec %d; they are f16, bf16 or f32", (int)desc->codec);
    IS_TRY(is_segment_alloc(desc, UINT64_MAX, &s));
    for (uint32_t i = 0; i < s->geometry->n_planes && st == INFERSCALE_OK; i++) {
        const is_plane *p = &s->geometry->planes[i];
        size_t row = is_codec_row_bytes(desc->codec, p->head_dim);
        uint8_t *dst = s->payload + s->plane_at[i];
        uint64_t end = i + 1 < s->geometry->n_planes ? s->plane_at[i + 1] : s->payload_bytes;

        st = check_raw(rows[i], (size_t)is_plane_width(p) * desc->n_tokens, desc->codec, i);
        for (uint32_t h = 0; h < p->n_heads; h++)
            for (uint32_t t = 0; t < desc->n_tokens; t++, dst += row)
                memcpy(dst, (const uint8_t *)rows[i] + ((size_t)t * p->n_heads + h) * row, row);
        memset(dst, 0, (size_t)(s->payload + end - dst));
    }
    if (st != INFERSCALE_OK) {
        is_segment_unref(s);
        return st;
    }
    *out = s;
    return INFERSCALE_OK;
}

is_segment *is_segment_ref(is_segment *s)
{
    atomic_fetch_add_explicit(&s->refs, 1, memory_order_relaxed);
    return s;
}

void is_segment_unref(is_segment *s)
{
    if (s && atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) == 1) destroy(s);
}

const is_segment_desc *is_segment_info(const is_segment *s)
{
    return &s->desc;
}

const void *is_segment_head(const is_segment *s, uint32_t plane, uint32_t head)
{
    return s->payload + s->plane_at[plane] + is_segment_head_bytes(s, &s->geometry->planes[plane]) * head;
}

bool is_segment_has_rows(const is_segment *s)
{
    return s->payload != NULL;
}

void is_segment_wipe(is_segment *s)
{
    atomic_store_explicit(&s->wipe, true, memory_order_relaxed); /* whoever lets go last sees it: letting go releases */
}

size_t is_segment_bytes(const is_segment *s)
{
    return s->bytes;
}
