/* vllm_fake_model.c - the fake server's model: what it says next, its rows, and how the connector describes it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include <jansson.h>

#include "kv/segment_part.h"
#include "kv/ticket.h"
#include "support/vllm_fake.h"
#include "support/vllm_fake_parts.h"

static fake_mood mood_of(const vllm_fake *f)
{
    return __atomic_load_n(&f->mood, __ATOMIC_ACQUIRE);
}

static uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t x = a ^ (b + 0x9e3779b97f4a7c15u + (a << 6) + (a >> 2));

    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

int32_t fake_next(const int32_t *tokens, uint32_t n, uint32_t prompt, uint32_t length)
{
    uint64_t h = 1;

    for (uint32_t i = 0; i < n; i++) h = mix(h, (uint64_t)tokens[i]);
    return n - prompt >= length ? FAKE_END : 'a' + (int32_t)(h % 26);
}

is_codec fake_codec = IS_CODEC_BF16;

float fake_row(uint32_t plane, uint32_t head, uint32_t dim, const int32_t *tokens, uint32_t upto)
{
    uint64_t h = mix(plane, mix(head, dim));

    for (uint32_t i = 0; i <= upto; i++) h = mix(h, (uint64_t)tokens[i]);
    if (fake_codec == IS_CODEC_F32) return (float)((int)(h % 0x1ffffff) - 0xffffff) / 0x800000;
    if (fake_codec == IS_CODEC_F16) return (float)((int)(h % 0xfff) - 0x7ff) / 0x400;
    return (float)((int)(h % 0x1ff) - 0xff) / 0x80;
}

is_geometry *fake_geometry(void)
{
    is_geometry *g = is_geometry_new(2 * FAKE_LAYERS, 0);
    const double w[FAKE_DIM / 2] = { 1, 0.1, 0.01, 0.001 };
    int freq = is_geometry_add_freqs(g, FAKE_DIM / 2, 1, w);

    g->n_layers = FAKE_LAYERS;
    for (uint32_t p = 0; p < g->n_planes; p++)
        g->planes[p] = (is_plane){ .layer = p / 2, .is_v = p % 2, .pairing = p % 2 ? IS_PAIR_NONE : IS_PAIR_HALVES,
                                   .freq = p % 2 ? 0xffff : (uint16_t)freq, .n_heads = FAKE_HEADS, .head_dim = FAKE_DIM,
                                   .rot_dim = p % 2 ? 0 : FAKE_DIM };
    return g;
}

void fake_fingerprint(uint8_t out[32], bool foreign)
{
    memset(out, foreign ? 0x42 : 0x17, 32);
}

/* ---- Description ------------------------------------------------------------------------------------------------------------------------- */

static char *base64(const uint8_t *p, size_t n)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char *out = malloc(n / 3 * 4 + 5), *at = out;

    for (size_t i = 0; i < n; i += 3) {
        uint32_t v = (uint32_t)p[i] << 16 | (i + 1 < n ? p[i + 1] << 8 : 0) | (i + 2 < n ? p[i + 2] : 0);

        *at++ = digits[v >> 18];
        *at++ = digits[v >> 12 & 63];
        *at++ = i + 1 < n ? digits[v >> 6 & 63] : '=';
        *at++ = i + 2 < n ? digits[v & 63] : '=';
    }
    *at = 0;
    return out;
}

static void pack(z_stream *z, const uint8_t *p, size_t n, int flush, is_buf *out)
{
    z->next_in = (Bytef *)(uintptr_t)p;
    z->avail_in = (uInt)n;
    do {
        if (!is_buf_reserve(out, 1 << 16)) return;
        z->next_out = out->data + out->len;
        z->avail_out = 1 << 16;
        deflate(z, flush);
        out->len += (1 << 16) - z->avail_out;
    } while (z->avail_out == 0);
}

/* With so many MiB of zeros behind it, which are never in memory at once: a busy machine with a sanitizer needed 20 s for that. */
static char *packed(const uint8_t *p, size_t n, int zeros_mib)
{
    static const uint8_t zeros[1 << 20];
    is_buf out = IS_BUF_INIT;
    z_stream z = { 0 };
    char *text;

    deflateInit(&z, Z_BEST_SPEED);
    pack(&z, p, n, Z_NO_FLUSH, &out);
    while (zeros_mib-- > 0) pack(&z, zeros, sizeof zeros, Z_NO_FLUSH, &out);
    pack(&z, NULL, 0, Z_FINISH, &out);
    deflateEnd(&z);
    text = base64(out.data, out.len);
    is_buf_free(&out);
    return text;
}

static char *pieces(fake_mood mood)
{
    is_buf b = IS_BUF_INIT;
    char *text;

    for (int i = 0; i < FAKE_VOCAB - (mood == FAKE_BAD_PIECES); i++) {
        is_buf_u16(&b, i < 256);
        if (i < 256) is_buf_u8(&b, (uint8_t)i);
    }
    text = packed(b.data, b.len, mood == FAKE_HUGE_PIECES ? 300 : 0);
    is_buf_free(&b);
    return text;
}

json_t *fake_description(const vllm_fake *f)
{
    is_geometry *g = fake_geometry();
    is_buf b = IS_BUF_INIT;
    uint8_t fingerprint[32];
    char hex[65], *geometry, *packed_pieces = pieces(mood_of(f));
    json_t *d;

    is_geometry_write(g, &b);
    if (mood_of(f) == FAKE_BAD_GEOMETRY) b.data[b.len / 2] ^= 0xff;
    geometry = base64(b.data, b.len);
    fake_fingerprint(fingerprint, mood_of(f) == FAKE_FOREIGN);
    is_hex(fingerprint, 32, hex);
    d = json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:b, s:s}", "connector", "0.1.0", "vllm", "0.32.0", "model", "fake/model", "arch",
                  "Fake", "fingerprint", hex, "dtype", is_codec_name(fake_codec), "geometry",
                  geometry, "can_inject", mood_of(f) != FAKE_NO_INJECT, "why_not",
                  mood_of(f) == FAKE_NO_INJECT ? "the fake was told not to" : "");
    json_object_update_new(d, json_pack("{s:i, s:i, s:i, s:I, s:i, s:i, s:b}", "block_size", FAKE_BLOCK, "n_layers", FAKE_LAYERS, "n_ctx", FAKE_CTX,
                                        "n_params", (json_int_t)1000000, "n_vocab", FAKE_VOCAB, "bos", FAKE_BOS, "adds_bos", 1));
    json_object_update_new(d, json_pack("{s:[i], s:[[is], [is], [is], [is]], s:s}", "eos", mood_of(f) == FAKE_BAD_EOS ? 99999 : FAKE_END, "special",
                                        FAKE_START, "<|im_start|>", FAKE_END, "<|im_end|>", FAKE_BOS, "<s>", FAKE_X, "<|x<|", "pieces",
                                        packed_pieces));
    json_object_update_new(d, json_pack("{s:s, s:i}", "served", f->served, "max_logprobs", f->max_logprobs));
    json_object_update_new(d, json_pack("{s:i, s:i, s:b, s:b, s:b}", "tensor_parallel", (int)f->tp, "pipeline_parallel", (int)f->pp, "can_evict", 1,
                                        "can_abort", 1, "prefix_caching", !f->no_prefix_cache));
    free(geometry);
    free(packed_pieces);
    is_buf_free(&b);
    is_geometry_free(g);
    return d;
}

/* ---- Capture: a file of each worker ------------------------------------------------------------------------------------------------------ */

static void write_part(const vllm_fake *f, const inferscale_ticket *t, const int32_t *prompt, uint32_t rank, uint32_t h, is_geometry *part,
                       uint32_t from)
{
    is_segment_desc d = { .codec = fake_codec, .n_tokens = t->capture_n,
                          .tokens = prompt + t->capture_from, .geometry = part };
    float **rows = calloc(part->n_planes, sizeof *rows);
    char hex[33], path[512], tmp[520];
    is_segment *s = NULL;

    fake_fingerprint(d.fingerprint, mood_of(f) == FAKE_CAPTURE_OTHER);
    for (uint32_t p = 0; p < part->n_planes; p++) {
        const is_plane *plane = &part->planes[p];

        rows[p] = malloc((size_t)t->capture_n * is_plane_width(plane) * sizeof **rows);
        for (uint32_t i = 0; i < t->capture_n; i++)
            for (uint32_t k = 0; k < is_plane_width(plane); k++)
                rows[p][i * is_plane_width(plane) + k] =
                    fake_row(2 * from + p, h + k / plane->head_dim, k % plane->head_dim, prompt, t->capture_from + i);
    }
    is_hex(t->id, 16, hex);
    if (f->elsewhere) snprintf(path, sizeof path, "%s/%s.%u.%u", f->elsewhere, hex, rank, h);
    else snprintf(path, sizeof path, "%s/vllm/spool/%s.%u.%u", f->home, hex, rank, h);
    snprintf(tmp, sizeof tmp, "%s.part", path);
    if (is_segment_new(&d, (const float *const *)rows, &s) == INFERSCALE_OK &&
        is_segment_write(s, is_fs_posix(), tmp) == INFERSCALE_OK && mood_of(f) != FAKE_CAPTURE_HANG)
        rename(tmp, path);
    is_segment_unref(s);
    for (uint32_t p = 0; p < part->n_planes; p++) free(rows[p]);
    free(rows);
}

void fake_capture(const vllm_fake *f, const inferscale_ticket *t, const int32_t *prompt)
{
    is_geometry *g = fake_geometry();
    uint32_t heads = FAKE_HEADS / f->tp, layers = FAKE_LAYERS / f->pp;

    for (uint32_t rank = 0; rank < f->pp; rank++)
        for (uint32_t k = 0; k < f->tp; k++) {
            const is_segment_cut cut = { 2 * rank * layers, 2 * (rank + 1) * layers, k * heads, (k + 1) * heads };
            is_geometry *part = NULL;

            if (is_geometry_cut(g, &cut, &part) != INFERSCALE_OK) continue;
            if (mood_of(f) != FAKE_CAPTURE_HALF || rank + k == 0) write_part(f, t, prompt, rank, k * heads, part, rank * layers);
            is_geometry_free(part);
        }
    is_geometry_free(g);
}

/* ---- Stored parts under heads: are they what the model would have computed there? ----------------------------------------------------------- */

bool fake_has_rows(const vllm_fake *f, const inferscale_kv_part *part, const int32_t *prompt)
{
    char hex[65], path[512];
    is_segment *s = NULL;
    bool good;

    is_hex(part->name, 32, hex);
    snprintf(path, sizeof path, "%s/vllm/heads/%.2s/%s.seg", f->home, hex, hex);
    if (is_segment_read(is_fs_posix(), path, &s) != INFERSCALE_OK) return false;
    good = is_segment_info(s)->n_tokens == part->n_tokens && part->begin == 0 &&
           memcmp(is_segment_info(s)->tokens, prompt + part->pos, part->n_tokens * sizeof *prompt) == 0;
    for (uint32_t p = 0; good && p < 2 * FAKE_LAYERS; p++)
        for (uint32_t h = 0; h < FAKE_HEADS; h++) {
            const char *rows = is_segment_head(s, p, h);

            for (uint32_t i = 0; i < part->n_tokens * FAKE_DIM; i++) {
                float x;

                is_codec_decode(fake_codec, rows + i * is_codec_bytes(fake_codec), &x, 1);
                good = good && x == fake_row(p, h, i % FAKE_DIM, prompt, part->pos + i / FAKE_DIM);
            }
        }
    is_segment_unref(s);
    return good;
}
