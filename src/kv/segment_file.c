/* segment_file.c - the file form of a segment: docs/formats.md, "Segment". Every length is checked before it is used, and
 * nothing is allocated that the file's real size does not vouch for. */
#include <string.h>

#include "base/mem.h"
#include "base/words.h"
#include "kv/segment_layout.h"

static const uint8_t magic[8] = { 0x89, 'I', 'S', 'S', 'E', 'G', '\r', '\n' };

enum {
    NEWEST = 3,         /* version */
    PREFIX_BYTES = 24,  /* magic, version, header bytes, file bytes */
    FIXED_BYTES = 128,  /* what stands before the tokens */
    MAX_HEADER = 1 << 30,
};

/* The header's parts, from its counts. */
typedef struct header_layout {
    uint64_t geometry_at, planes_at, sums_at, header_bytes;
} header_layout;

static uint64_t align_up(uint64_t n, uint64_t a)
{
    return (n + a - 1) / a * a;
}

static header_layout lay_out(uint64_t n_tokens, uint64_t geometry_bytes, uint64_t n_planes, uint64_t n_heads)
{
    header_layout l;

    l.geometry_at = FIXED_BYTES + 4 * n_tokens;
    l.planes_at = align_up(l.geometry_at + geometry_bytes, 8);
    l.sums_at = l.planes_at + 8 * n_planes;
    l.header_bytes = align_up(l.sums_at + 8 * n_heads + 8, IS_SEGMENT_ALIGN);
    return l;
}

static uint64_t count_heads(const is_geometry *g)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < g->n_planes; i++) n += g->planes[i].n_heads;
    return n;
}

static is_status corrupt(const char *what)
{
    return is_fail(INFERSCALE_E_CORRUPT, "KV segment: %s; the file is torn or damaged, its facts are served as text until they "
                   "are encoded again (%s)", what, is_words(IS_CALL_ENCODE));
}

static is_status no_memory(void)
{
    return is_fail(INFERSCALE_E_NOMEM, "out of memory for a KV segment's file; free memory and try again");
}

static bool all_zero(const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (p[i]) return false;
    return true;
}

/* ---- Write ----------------------------------------------------------------------------------------------------------- */

static void add_zeros(is_buf *b, uint64_t upto)
{
    while (is_buf_ok(b) && b->len < upto) is_buf_u8(b, 0);
}

static void add_sums(is_buf *b, const is_segment *s)
{
    for (uint32_t i = 0; i < s->geometry->n_planes; i++) {
        const is_plane *p = &s->geometry->planes[i];

        for (uint32_t h = 0; h < p->n_heads; h++)
            is_buf_u64(b, is_checksum(is_segment_head(s, i, h), (size_t)is_segment_head_bytes(s, p)));
    }
}

/* Versions 2 and 3 are version 1 with rows in int8 and int4: programs that do not know them refuse
 * the file as a newer one's. */
static uint32_t version_of(is_codec codec)
{
    return is_codec_plain(codec) ? 1 : codec == IS_CODEC_INT8 ? 2 : 3;
}

static is_status build_header(const is_segment *s, is_buf *b)
{
    is_buf geometry = IS_BUF_INIT;
    uint64_t n_heads = count_heads(s->geometry);
    header_layout l;

    if (!s->payload) return is_fail(INFERSCALE_E_INVALID, "a KV segment without its rows cannot be written; read the whole of it");
    is_geometry_write(s->geometry, &geometry);
    l = lay_out(s->desc.n_tokens, geometry.len, s->geometry->n_planes, n_heads);
    is_buf_add(b, magic, sizeof magic);
    is_buf_u32(b, version_of(s->desc.codec));
    is_buf_u32(b, (uint32_t)l.header_bytes);
    is_buf_u64(b, l.header_bytes + s->payload_bytes);
    is_buf_u32(b, (uint32_t)s->desc.codec);
    is_buf_u32(b, s->desc.n_tokens);
    is_buf_u32(b, s->desc.n_context);
    is_buf_u32(b, s->geometry->n_planes);
    is_buf_u32(b, (uint32_t)n_heads);
    is_buf_u32(b, (uint32_t)geometry.len);
    is_buf_u64(b, s->payload_bytes);
    is_buf_u64(b, 0);
    is_buf_add(b, s->desc.name, IS_HASH_BYTES);
    is_buf_add(b, s->desc.fingerprint, IS_HASH_BYTES);
    for (uint32_t i = 0; i < s->desc.n_tokens; i++) is_buf_u32(b, (uint32_t)s->tokens[i]);
    is_buf_add(b, geometry.data, geometry.len);
    add_zeros(b, l.planes_at);
    for (uint32_t i = 0; i < s->geometry->n_planes; i++) is_buf_u64(b, l.header_bytes + s->plane_at[i]);
    add_sums(b, s);
    add_zeros(b, l.header_bytes - 8);
    if (is_buf_ok(b)) is_buf_u64(b, is_checksum(b->data, b->len));
    if (!is_buf_ok(&geometry) || !is_buf_ok(b) || b->len != l.header_bytes) b->failed = true;
    is_buf_free(&geometry);
    return is_buf_ok(b) ? INFERSCALE_OK : no_memory();
}

is_status is_segment_serialize(const is_segment *s, is_buf *out)
{
    is_buf header = IS_BUF_INIT;
    is_status st = build_header(s, &header);

    if (st == INFERSCALE_OK) {
        is_buf_add(out, header.data, header.len);
        is_buf_add(out, s->payload, (size_t)s->payload_bytes);
        if (!is_buf_ok(out)) st = no_memory();
    }
    is_buf_free(&header);
    return st;
}

is_status is_segment_write(const is_segment *s, const is_fs *fs, const char *path)
{
    is_buf header = IS_BUF_INIT;
    is_file *f = NULL;
    is_status st = build_header(s, &header);

    if (st == INFERSCALE_OK) st = fs->open(fs, path, IS_OPEN_CREATE_NEW, &f);
    if (st == INFERSCALE_OK) {
        st = fs->pwrite(fs, f, header.data, header.len, 0);
        if (st == INFERSCALE_OK) st = fs->pwrite(fs, f, s->payload, (size_t)s->payload_bytes, header.len);
        if (st == INFERSCALE_OK) st = fs->sync(fs, f);
        fs->close(fs, f);
        if (st != INFERSCALE_OK) {
            char why[256];

            strncpy(why, is_error(), sizeof why - 1);
            why[sizeof why - 1] = 0;
            fs->unlink(fs, path); /* no torn file is left where it can be avoided; its failure must not hide the cause */
            is_fail(st, "%s", why);
        }
    }
    is_buf_free(&header);
    return st;
}

/* ---- Read ------------------------------------------------------------------------------------------------------------ */

/* The first PREFIX_BYTES of a file of file_bytes bytes (n of them given). */
static is_status check_prefix(const uint8_t *p, size_t n, uint64_t file_bytes, uint32_t *header_bytes)
{
    *header_bytes = 0;
    if (memcmp(p, magic, n < sizeof magic ? n : sizeof magic))
        return is_fail(INFERSCALE_E_FOREIGN, "this is not a KV segment file; give the path of a .seg file of the vault");
    if (n < PREFIX_BYTES) return corrupt("shorter than its header");
    if (is_get_u32(p + 8) < 1 || is_get_u32(p + 8) > NEWEST)
        return is_fail(INFERSCALE_E_FOREIGN,
                       "this KV segment has format version %u and this program reads versions 1 to %d; use a newer "
                       "inferscale, or encode its facts again",
                       is_get_u32(p + 8), NEWEST);
    *header_bytes = is_get_u32(p + 12);
    if (*header_bytes < FIXED_BYTES + IS_SEGMENT_ALIGN || *header_bytes % IS_SEGMENT_ALIGN || *header_bytes > MAX_HEADER)
        return corrupt("header size out of range");
    if (is_get_u64(p + 16) != file_bytes || *header_bytes > file_bytes) return corrupt("not as long as it says");
    return INFERSCALE_OK;
}

void is_segment_header_clear(is_segment_header *h)
{
    is_free(h->tokens);
    is_free(h->plane_at);
    is_geometry_free(h->geometry);
    memset(h, 0, sizeof *h);
}

/* Tokens, geometry and offsets of a header whose checksum and sizes are right. */
static is_status parse_parts(const uint8_t *h, const header_layout *l, is_segment_header *out)
{
    uint32_t geometry_bytes = is_get_u32(h + 44), n_planes = is_get_u32(h + 36);
    uint64_t n_heads = is_get_u32(h + 40), sums_end = l->sums_at + 8 * n_heads;

    IS_TRY(is_geometry_read(h + l->geometry_at, geometry_bytes, &out->geometry));
    if (out->geometry->n_planes != n_planes || count_heads(out->geometry) != n_heads) return corrupt("geometry of another size");
    if (!all_zero(h + l->geometry_at + geometry_bytes, (size_t)(l->planes_at - l->geometry_at - geometry_bytes)) ||
        !all_zero(h + sums_end, (size_t)(out->header_bytes - 8 - sums_end)))
        return corrupt("padding in use");
    out->tokens = is_malloc(out->desc.n_tokens * sizeof *out->tokens);
    out->plane_at = is_malloc(n_planes * sizeof *out->plane_at);
    if (!out->tokens || !out->plane_at) return no_memory();
    for (uint32_t i = 0; i < out->desc.n_tokens; i++) out->tokens[i] = (int32_t)is_get_u32(h + FIXED_BYTES + 4 * (size_t)i);
    out->desc.tokens = out->tokens;
    out->desc.geometry = out->geometry;
    if (is_segment_lay_out(&out->desc, out->plane_at) != out->payload_bytes) return corrupt("payload of another size");
    for (uint32_t i = 0; i < n_planes; i++)
        if (is_get_u64(h + l->planes_at + 8 * (size_t)i) != out->header_bytes + out->plane_at[i]) return corrupt("offset table");
    out->sums = h + l->sums_at;
    return INFERSCALE_OK;
}

/* h is the whole header, its prefix checked. */
static is_status parse_header(const uint8_t *h, uint32_t header_bytes, uint64_t file_bytes, is_segment_header *out)
{
    uint32_t n_tokens = is_get_u32(h + 28);
    header_layout l = lay_out(n_tokens, is_get_u32(h + 44), is_get_u32(h + 36), is_get_u32(h + 40));
    is_status st;

    memset(out, 0, sizeof *out);
    if (is_checksum(h, header_bytes - 8) != is_get_u64(h + header_bytes - 8)) return corrupt("header checksum");
    if (n_tokens < 1 || n_tokens > IS_SEGMENT_MAX_TOKENS || !is_codec_known((is_codec)is_get_u32(h + 24)) || is_get_u64(h + 56))
        return corrupt("a header field out of range");
    out->header_bytes = header_bytes;
    out->payload_bytes = is_get_u64(h + 48);
    if (l.header_bytes != header_bytes || out->payload_bytes != file_bytes - header_bytes)
        return corrupt("sizes that contradict each other");
    out->desc.codec = (is_codec)is_get_u32(h + 24);
    if (is_get_u32(h + 8) != version_of(out->desc.codec)) return corrupt("a codec of another version");
    out->desc.n_tokens = n_tokens;
    out->desc.n_context = is_get_u32(h + 32);
    memcpy(out->desc.name, h + 64, IS_HASH_BYTES);
    memcpy(out->desc.fingerprint, h + 96, IS_HASH_BYTES);
    st = parse_parts(h, &l, out);
    if (st != INFERSCALE_OK) is_segment_header_clear(out);
    return st;
}

/* All checksums of a filled payload, and that what lies between planes is zero. */
static is_status verify_payload(const is_segment *s, const uint8_t *sums)
{
    for (uint32_t i = 0; i < s->geometry->n_planes; i++) {
        const is_plane *p = &s->geometry->planes[i];
        uint64_t head_bytes = is_segment_head_bytes(s, p), used = s->plane_at[i] + head_bytes * p->n_heads;
        uint64_t end = i + 1 < s->geometry->n_planes ? s->plane_at[i + 1] : s->payload_bytes;

        for (uint32_t h = 0; h < p->n_heads; h++, sums += 8)
            if (is_checksum(is_segment_head(s, i, h), (size_t)head_bytes) != is_get_u64(sums))
                return corrupt("checksum of its rows");
        if (!all_zero(s->payload + used, (size_t)(end - used))) return corrupt("padding in use");
    }
    return INFERSCALE_OK;
}

is_status is_segment_parse(const uint8_t *p, size_t n, is_segment **out)
{
    uint32_t header_bytes;
    is_segment_header h;
    is_segment *s = NULL;
    is_status st;

    *out = NULL;
    IS_TRY(check_prefix(p, n, n, &header_bytes));
    IS_TRY(parse_header(p, header_bytes, n, &h));
    st = is_segment_alloc(&h.desc, h.payload_bytes, &s);
    if (st == INFERSCALE_OK) {
        memcpy(s->payload, p + header_bytes, (size_t)s->payload_bytes);
        st = verify_payload(s, h.sums);
    }
    is_segment_header_clear(&h);
    if (st != INFERSCALE_OK) {
        is_segment_unref(s);
        return st;
    }
    *out = s;
    return INFERSCALE_OK;
}

is_status is_segment_header_read(const is_fs *fs, is_file *f, uint8_t **bytes, is_segment_header *out)
{
    uint8_t prefix[PREFIX_BYTES];
    uint32_t header_bytes;
    uint64_t size;
    size_t n;

    memset(out, 0, sizeof *out);
    *bytes = NULL;
    IS_TRY(fs->size(fs, f, &size));
    n = size < PREFIX_BYTES ? (size_t)size : PREFIX_BYTES;
    if (n) IS_TRY(fs->pread(fs, f, prefix, n, 0));
    IS_TRY(check_prefix(prefix, n, size, &header_bytes));
    *bytes = is_malloc(header_bytes);
    if (!*bytes) return no_memory();
    IS_TRY(fs->pread(fs, f, *bytes, header_bytes, 0));
    if (memcmp(*bytes, prefix, PREFIX_BYTES)) return corrupt("it changed while it was read");
    return parse_header(*bytes, header_bytes, size, out);
}

is_status is_segment_read(const is_fs *fs, const char *path, is_segment **out)
{
    is_segment_header h = { 0 };
    uint8_t *bytes = NULL;
    is_segment *s = NULL;
    is_file *f;
    is_status st;

    *out = NULL;
    IS_TRY(fs->open(fs, path, IS_OPEN_READ, &f));
    st = is_segment_header_read(fs, f, &bytes, &h);
    if (st == INFERSCALE_OK) st = is_segment_alloc(&h.desc, h.payload_bytes, &s);
    if (st == INFERSCALE_OK) st = fs->pread(fs, f, s->payload, (size_t)s->payload_bytes, h.header_bytes);
    if (st == INFERSCALE_OK) st = verify_payload(s, h.sums);
    fs->close(fs, f);
    is_segment_header_clear(&h);
    is_free(bytes);
    if (st != INFERSCALE_OK) {
        is_segment_unref(s);
        return st;
    }
    *out = s;
    return INFERSCALE_OK;
}
