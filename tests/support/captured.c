/* captured.c - see captured.h. */
#include "support/captured.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/scratch.h"

/* ---- What the witness wrote: "NAMES 0x1e CONTEXT 0x1f SPAN 0x1d IDS 0x1d IDS" --------------------------------------------- */

static uint32_t read_ids(const char *p, const char *end, int32_t *out)
{
    uint32_t n = 0;
    char *next;

    while (p < end) {
        long v = strtol(p, &next, 10);

        if (next == p) break;
        if (out) out[n] = (int32_t)v;
        n++;
        p = next;
    }
    return n;
}

static void read_stored(const char *p, const char *end, captured *c)
{
    while (*p == ' ') p++;
    c->stored = calloc(CAPTURED_STORED, sizeof *c->stored);
    assert_non_null(c->stored);
    for (; end - p > 2 * IS_HASH_BYTES; p += 2 * IS_HASH_BYTES + 1) {
        assert_true(c->n_stored < CAPTURED_STORED);
        for (int i = 0; i < IS_HASH_BYTES; i++) {
            unsigned v = 0;

            assert_int_equal(sscanf(p + 2 * i, "%2x", &v), 1);
            c->stored[c->n_stored][i] = (uint8_t)v;
        }
        c->n_stored++;
    }
}

void captured_read(const char *text, captured *out)
{
    const char *stored_end = strchr(text, 0x1e), *context_end = stored_end ? strchr(stored_end, 0x1f) : NULL;
    const char *span_end = context_end ? strchr(context_end, 0x1d) : NULL, *ids_end = span_end ? strchr(span_end + 1, 0x1d) : NULL;
    const char *end = text + strlen(text);

    assert_non_null(ids_end);
    *out = (captured){ .context = strndup(stored_end + 1, (size_t)(context_end - stored_end - 1)),
                       .span = strndup(context_end + 1, (size_t)(span_end - context_end - 1)),
                       .n_context = read_ids(span_end + 1, ids_end, NULL), .n_span = read_ids(ids_end + 1, end, NULL) };
    out->ids = calloc(out->n_context + out->n_span + 1, sizeof *out->ids);
    assert_non_null(out->ids);
    read_ids(span_end + 1, ids_end, out->ids);
    read_ids(ids_end + 1, end, out->ids + out->n_context);
    read_stored(text, stored_end, out);
}

void captured_free(captured *c)
{
    free(c->context);
    free(c->span);
    free(c->ids);
    free(c->stored);
    *c = (captured){ 0 };
}

uint32_t captured_offset(const captured *c, const int32_t *tokens, uint32_t n)
{
    for (uint32_t at = 0; at + n <= c->n_span; at++)
        if (memcmp(c->ids + c->n_context + at, tokens, n * sizeof *tokens) == 0) return at;
    return c->n_span;
}

/* ---- Once more ----------------------------------------------------------------------------------------------------------- */

void captured_path(const char *vault, const uint8_t *name, char out[700])
{
    char hex[IS_HASH_HEX];

    is_hex(name, IS_HASH_BYTES, hex);
    snprintf(out, 700, "%s/%.2s/%s.seg", vault, hex, hex);
}

void captured_rows_free(const is_geometry *g, float **rows)
{
    for (uint32_t p = 0; rows && p < g->n_planes; p++) free(rows[p]);
    free(rows);
}

float **captured_again(const captured *c, is_engine *e, const is_rope *rope, const char *vault)
{
    const is_geometry *g = is_engine_geometry(e);
    is_segment *stored[CAPTURED_STORED] = { 0 };
    float **rows = calloc(g->n_planes, sizeof *rows);
    is_capture again = { .context = c->ids, .n_context = c->n_context, .span = c->ids + c->n_context, .n_span = c->n_span,
                         .stored = stored, .n_stored = c->n_stored, .rows = rows };
    bool there = true;

    for (uint32_t p = 0; p < g->n_planes; p++) rows[p] = calloc((size_t)c->n_span * is_plane_width(&g->planes[p]), sizeof(float));
    for (uint32_t i = 0; there && i < c->n_stored; i++) {
        char path[700];

        captured_path(vault, c->stored[i], path);
        there = is_segment_read(is_fs_posix(), path, &stored[i]) == INFERSCALE_OK;
    }
    if (there) OK(is_engine_capture(e, &again));
    for (uint32_t i = 0; i < c->n_stored; i++) is_segment_unref(stored[i]);
    for (uint32_t p = 0; there && p < g->n_planes; p++) OK(is_rope_rows(rope, &g->planes[p], rows[p], c->n_span, c->n_context, -1));
    if (there) return rows;
    captured_rows_free(g, rows);
    return NULL;
}

/* One head of one token. */
static bool same_mean(const float *row, const is_plane *plane, uint32_t p, uint32_t token, uint32_t head, float **const *rows,
                      const uint32_t *at, size_t n)
{
    for (uint32_t i = 0; i < plane->head_dim; i++) {
        double sum = 0;

        for (size_t c = 0; c < n; c++) sum += rows[c][p][((size_t)(at[c] + token) * plane->n_heads + head) * plane->head_dim + i];
        if (fabs(sum / (double)n - row[i]) > 0.002 + 0.001 * fabs((double)row[i])) return false;
    }
    return true;
}

bool captured_is_mean(const is_segment *kept, float **const *rows, const uint32_t *at, size_t n)
{
    const is_segment_desc *d = is_segment_info(kept);
    size_t each = is_codec_bytes(d->codec);
    float row[256];

    for (uint32_t p = 0; p < d->geometry->n_planes; p++) {
        const is_plane *plane = &d->geometry->planes[p];

        for (uint32_t t = 0; t < d->n_tokens * plane->n_heads; t++) {
            uint32_t token = t / plane->n_heads, head = t % plane->n_heads;
            const uint8_t *bytes = is_segment_head(kept, p, head);

            is_codec_decode(d->codec, bytes + (size_t)token * plane->head_dim * each, row, plane->head_dim);
            if (!same_mean(row, plane, p, token, head, rows, at, n)) return false;
        }
    }
    return true;
}
