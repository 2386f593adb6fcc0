/* fuzz_segment.c - segment files: any bytes give a segment that is whole and consistent, or a status with a sentence. Checksums
 * would keep a fuzzer out, so every input is tried once more with its header's checksum put right, and once with those of its
 * rows too. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "kv/compose.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(int holds, const char *what)
{
    if (holds) return;
    fprintf(stderr, "does not hold: %s\n", what);
    abort();
}

/* What parsed must serve: same bytes again, and every plane can be composed. */
static void use(const is_segment *s, const uint8_t *data, size_t size)
{
    const is_geometry *g = is_segment_info(s)->geometry;
    uint32_t n = is_segment_info(s)->n_tokens;
    is_buf again = IS_BUF_INIT;
    is_rope *rope = NULL;

    check(is_segment_serialize(s, &again) == INFERSCALE_OK && again.len == size && !memcmp(again.data, data, size),
          "written as it was read");
    check(is_geometry_check(g) == INFERSCALE_OK, "its geometry checks");
    if (n <= 64 && is_rope_new(g, n, &rope) == INFERSCALE_OK) {
        for (uint32_t p = 0; p < g->n_planes; p++) {
            size_t width = is_plane_width(&g->planes[p]);
            float *rows = is_malloc(width * n * sizeof *rows);

            check(is_compose_rows(s, rope, p, 0, n, 0, g->planes[p].n_heads, 0, IS_CODEC_F32, rows, width,
                                  g->planes[p].head_dim) == INFERSCALE_OK,
                  "rows can be composed");
            check(is_compose_columns(s, rope, p, 0, n, 0, g->planes[p].n_heads, 0, IS_CODEC_F32, rows, n) == INFERSCALE_OK,
                  "columns too");
            is_free(rows);
        }
    }
    is_rope_free(rope);
    is_buf_free(&again);
}

static void parse(const uint8_t *data, size_t size)
{
    is_segment *s = NULL;
    is_status st = is_segment_parse(data, size, &s);

    check((st == INFERSCALE_OK) == (s != NULL), "a segment or a failure");
    if (st != INFERSCALE_OK) check(st == INFERSCALE_E_CORRUPT || st == INFERSCALE_E_FOREIGN, "damaged or foreign");
    if (st != INFERSCALE_OK) check(*is_error() != 0, "it says why");
    if (s) use(s, data, size);
    is_segment_unref(s);
}

static void put_sum(uint8_t *at, const uint8_t *p, size_t n)
{
    uint64_t sum = is_checksum(p, n);

    for (int i = 0; i < 8; i++) at[i] = (uint8_t)(sum >> 8 * i);
}

/* The rows' checksums, as far as the header's own words lead to them (docs/formats.md). */
static void repair_rows(uint8_t *d, size_t size, uint32_t header)
{
    uint32_t n_tokens = is_get_u32(d + 28), geometry_bytes = is_get_u32(d + 44);
    const is_codec codec = (is_codec)is_get_u32(d + 24);
    size_t geometry_at = 128 + 4 * (size_t)n_tokens, sums, offsets;
    is_geometry *g;

    if (!is_codec_known(codec)) return;
    if (geometry_at > header || geometry_bytes > header - geometry_at) return;
    if (is_geometry_read(d + geometry_at, geometry_bytes, &g) != INFERSCALE_OK) return;
    offsets = (geometry_at + geometry_bytes + 7) / 8 * 8;
    sums = offsets + 8 * (size_t)g->n_planes;
    for (uint32_t p = 0; p < g->n_planes; p++) {
        size_t head = n_tokens * is_codec_row_bytes(codec, g->planes[p].head_dim);

        for (uint32_t h = 0; h < g->planes[p].n_heads && sums + 16 <= header; h++, sums += 8) {
            uint64_t at = is_get_u64(d + offsets + 8 * (size_t)p) + h * (uint64_t)head;

            if (at <= size && head <= size - at) put_sum(d + sums, d + at, head);
        }
    }
    is_geometry_free(g);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *d;
    uint32_t header;

    parse(data, size);
    if (size < 192) return 0;
    header = is_get_u32(data + 12);
    if (header < 192 || header > size) return 0;
    d = malloc(size); /* exactly, so that a read past its end is seen */
    if (!d) return 0;
    memcpy(d, data, size);
    put_sum(d + header - 8, d, header - 8);
    parse(d, size);
    repair_rows(d, size, header);
    put_sum(d + header - 8, d, header - 8);
    parse(d, size);
    free(d);
    return 0;
}
