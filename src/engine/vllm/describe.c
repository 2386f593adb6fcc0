/* describe.c - reading the connector's description. */
#include "engine/vllm/describe.h"

#include <stdio.h>
#include <string.h>
#include <zlib.h>

#include "base/mem.h"
#include "base/sort.h"

enum {
    MAX_VOCAB = 1 << 22,
    MAX_BLOCK = 1 << 29, /* beyond MAX_CTX: such a block is never full */
    MAX_CTX = 1 << 28,
    MAX_PIECES = 256 << 20,         /* bytes, unpacked */
    MAX_GEOMETRY = 64 << 20,
    MAX_SPECIAL = 1 << 16,
};

static is_status no_memory(void)
{
    return is_fail(INFERSCALE_E_NOMEM, "out of memory for vLLM's description of its model; free some and try again");
}

static is_status wrong(const char *field)
{
    return is_fail(INFERSCALE_E_ENGINE, "the connector's description of the model has no usable \"%s\"; install the inferscale-vllm of this "
                                        "version beside vLLM", field);
}

/* ---- Fields -------------------------------------------------------------------------------------------------------------- */

static is_status get_text(const json_t *d, const char *field, bool need, char *out, size_t cap)
{
    const json_t *v = json_object_get(d, field);
    const char *s = json_string_value(v);
    size_t n = s ? json_string_length(v) : 0;

    out[0] = 0;
    if (!s && !json_is_null(v) && v) return wrong(field);
    if (n == 0) return need ? wrong(field) : INFERSCALE_OK;
    if (strlen(s) != n || (need && n >= cap)) return wrong(field);
    snprintf(out, cap, "%s", s);
    for (char *p = out; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f) *p = ' ';
    return INFERSCALE_OK;
}

static is_status get_number(const json_t *d, const char *field, uint64_t low, uint64_t high, uint64_t *out)
{
    const json_t *v = json_object_get(d, field);
    json_int_t n = json_integer_value(v);

    if (!json_is_integer(v) || n < 0 || (uint64_t)n < low || (uint64_t)n > high) return wrong(field);
    *out = (uint64_t)n;
    return INFERSCALE_OK;
}

static is_status get_u32(const json_t *d, const char *field, uint32_t low, uint32_t high, uint32_t *out)
{
    uint64_t n = 0;

    IS_TRY(get_number(d, field, low, high, &n));
    *out = (uint32_t)n;
    return INFERSCALE_OK;
}

static bool get_bool(const json_t *d, const char *field)
{
    return json_is_true(json_object_get(d, field));
}

static bool is_id(const json_t *v, uint32_t n_vocab)
{
    return json_is_integer(v) && json_integer_value(v) >= 0 && json_integer_value(v) < (json_int_t)n_vocab;
}

static int value64(char c)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *at = c ? strchr(digits, c) : NULL;

    return at ? (int)(at - digits) : -1;
}

/* base64 with its padding; false if it is anything else. out: len / 4 * 3 bytes. */
static bool from_base64(const char *s, size_t len, uint8_t *out, size_t *n)
{
    size_t pad = len && s[len - 1] == '=' ? 1 + (len > 1 && s[len - 2] == '=') : 0;

    *n = 0;
    if (len == 0 || len % 4) return false;
    for (size_t i = 0; i < len; i += 4) {
        size_t digits = i + 4 == len ? 4 - pad : 4;
        uint32_t v = 0;

        for (size_t k = 0; k < 4; k++) {
            int d = k < digits ? value64(s[i + k]) : 0;

            if (d < 0) return false;
            v = v << 6 | (uint32_t)d;
        }
        if (digits < 4 && (v & (digits == 3 ? 0xff : 0xffff))) return false;
        for (size_t k = 0; k + 1 < digits; k++) out[(*n)++] = (uint8_t)(v >> (16 - 8 * k));
    }
    return true;
}

/* base64 of at most max bytes; is_free. */
static is_status get_bytes(const json_t *d, const char *field, size_t max, uint8_t **out, size_t *n)
{
    const json_t *v = json_object_get(d, field);
    size_t len = json_string_length(v);
    const char *s = json_string_value(v);

    *out = NULL;
    if (!s || len == 0 || len / 4 * 3 > max) return wrong(field);
    *out = is_malloc(len / 4 * 3 + 4);
    if (!*out) return no_memory();
    if (from_base64(s, len, *out, n)) return INFERSCALE_OK;
    is_free(*out);
    *out = NULL;
    return wrong(field);
}

/* ---- The parts that are more than a number ------------------------------------------------------------------------------- */

static is_status read_geometry(const json_t *d, vllm_model *m)
{
    uint8_t *bytes;
    size_t n;
    is_status st;

    if (!m->can_inject && !json_is_string(json_object_get(d, "geometry"))) return INFERSCALE_OK;
    IS_TRY(get_bytes(d, "geometry", MAX_GEOMETRY, &bytes, &n));
    st = is_geometry_read(bytes, n, &m->geometry);
    is_free(bytes);
    if (st == INFERSCALE_E_NOMEM) return no_memory();
    return st == INFERSCALE_OK ? st : wrong("geometry");
}

static is_status read_eos(const json_t *d, vllm_model *m)
{
    const json_t *list = json_object_get(d, "eos");
    size_t n = json_array_size(list);

    if (!json_is_array(list) || n > 1024) return wrong("eos");
    m->eos = is_calloc(n + 1, sizeof *m->eos);
    if (!m->eos) return no_memory();
    for (size_t i = 0; i < n; i++) {
        if (!is_id(json_array_get(list, i), m->n_vocab)) return wrong("eos");
        m->eos[m->n_eos++] = (int32_t)json_integer_value(json_array_get(list, i));
    }
    return INFERSCALE_OK;
}

static int longest_first(const void *a, const void *b)
{
    const vllm_special *x = a, *y = b;

    return x->len != y->len ? (x->len < y->len) - (x->len > y->len) : (x->id > y->id) - (x->id < y->id);
}

static is_status read_special(const json_t *d, vllm_model *m)
{
    const json_t *list = json_object_get(d, "special");
    size_t n = json_array_size(list);

    if (!json_is_array(list) || n > MAX_SPECIAL) return wrong("special");
    m->special = is_calloc(n + 1, sizeof *m->special);
    if (!m->special) return no_memory();
    for (size_t i = 0; i < n; i++) {
        const json_t *pair = json_array_get(list, i), *id = json_array_get(pair, 0), *text = json_array_get(pair, 1);
        vllm_special *s = &m->special[m->n_special];

        if (json_array_size(pair) != 2 || !is_id(id, m->n_vocab) || json_string_length(text) == 0) return wrong("special");
        s->id = (int32_t)json_integer_value(id);
        s->len = json_string_length(text);
        s->text = is_malloc(s->len + 1);
        if (!s->text) return no_memory();
        memcpy(s->text, json_string_value(text), s->len + 1);
        m->n_special++;
    }
    is_sort(m->special, m->n_special, sizeof *m->special, longest_first);
    return INFERSCALE_OK;
}

/* zlib of unknown size, bounded. */
static is_status unpack(const uint8_t *p, size_t n, is_buf *out)
{
    z_stream z = { .next_in = (Bytef *)(uintptr_t)p, .avail_in = (uInt)n };
    int rc = inflateInit(&z);

    if (rc != Z_OK) return no_memory();
    out->max = MAX_PIECES;
    while (rc == Z_OK) {
        if (!is_buf_reserve(out, 1 << 16)) break;
        z.next_out = out->data + out->len;
        z.avail_out = 1 << 16;
        rc = inflate(&z, Z_NO_FLUSH);
        out->len += (1 << 16) - z.avail_out;
    }
    inflateEnd(&z);
    if (!is_buf_ok(out) && out->len + (1 << 16) < MAX_PIECES) return no_memory();
    return rc == Z_STREAM_END && z.avail_in == 0 && is_buf_ok(out) ? INFERSCALE_OK : wrong("pieces");
}

/* For each id u16 length and its bytes; nothing before, between or behind. */
static is_status cut_pieces(const is_buf *b, vllm_model *m)
{
    size_t at = 0;
    uint32_t total = 0;

    m->piece_at = is_calloc((size_t)m->n_vocab + 1, sizeof *m->piece_at);
    m->pieces = is_malloc(b->len + 1);
    if (!m->piece_at || !m->pieces) return no_memory();
    for (uint32_t i = 0; i < m->n_vocab; i++) {
        uint16_t n;

        if (b->len - at < 2) return wrong("pieces");
        n = is_get_u16(b->data + at);
        at += 2;
        if (b->len - at < n) return wrong("pieces");
        if (n) memcpy(m->pieces + total, b->data + at, n);
        at += n;
        total += n;
        m->piece_at[i + 1] = total;
    }
    return at == b->len ? INFERSCALE_OK : wrong("pieces");
}

static is_status read_pieces(const json_t *d, vllm_model *m)
{
    is_buf plain = IS_BUF_INIT;
    uint8_t *packed;
    size_t n;
    is_status st;

    IS_TRY(get_bytes(d, "pieces", MAX_PIECES, &packed, &n));
    st = unpack(packed, n, &plain);
    if (st == INFERSCALE_OK) st = cut_pieces(&plain, m);
    is_buf_free(&plain);
    is_free(packed);
    return st;
}

static is_status read_fingerprint(const json_t *d, vllm_model *m)
{
    const json_t *v = json_object_get(d, "fingerprint");
    const char *s = json_string_value(v);

    return s && json_string_length(v) == 2 * IS_HASH_BYTES && is_unhex(s, IS_HASH_BYTES, m->fingerprint) ? INFERSCALE_OK : wrong("fingerprint");
}

static is_status read_max_logprobs(const json_t *d, vllm_model *m)
{
    const json_t *v = json_object_get(d, "max_logprobs");

    m->max_logprobs = -1;
    if (!v || json_is_null(v)) return INFERSCALE_OK;
    if (!json_is_integer(v) || json_integer_value(v) < -1 || json_integer_value(v) > INT32_MAX) return wrong("max_logprobs");
    m->max_logprobs = (int32_t)json_integer_value(v);
    return INFERSCALE_OK;
}

static is_status read_bos(const json_t *d, vllm_model *m)
{
    const json_t *v = json_object_get(d, "bos");

    m->bos = -1;
    m->adds_bos = get_bool(d, "adds_bos");
    if (v == NULL || json_is_null(v) || (json_is_integer(v) && json_integer_value(v) == -1)) {
        m->adds_bos = false;
        return INFERSCALE_OK;
    }
    if (!is_id(v, m->n_vocab)) return wrong("bos");
    m->bos = (int32_t)json_integer_value(v);
    return INFERSCALE_OK;
}

static is_status read_all(const json_t *d, vllm_model *m)
{
    IS_TRY(get_text(d, "connector", true, m->connector, sizeof m->connector));
    IS_TRY(get_text(d, "vllm", true, m->vllm, sizeof m->vllm));
    IS_TRY(get_text(d, "model", true, m->name, sizeof m->name));
    IS_TRY(get_text(d, "served", json_object_get(d, "served") != NULL, m->served, sizeof m->served));
    if (!m->served[0]) snprintf(m->served, sizeof m->served, "%s", m->name); /* an older connector */
    IS_TRY(read_max_logprobs(d, m));
    IS_TRY(get_text(d, "arch", false, m->arch, sizeof m->arch));
    IS_TRY(get_text(d, "dtype", true, m->dtype, sizeof m->dtype));
    IS_TRY(get_text(d, "why_not", false, m->why_not, sizeof m->why_not));
    if (is_codec_parse(m->dtype, &m->codec) != INFERSCALE_OK) return wrong("dtype");
    IS_TRY(read_fingerprint(d, m));
    m->can_inject = get_bool(d, "can_inject");
    m->can_evict = get_bool(d, "can_evict");
    m->can_abort = get_bool(d, "can_abort");
    IS_TRY(get_u32(d, "block_size", 1, MAX_BLOCK, &m->block_size));
    if (json_is_false(json_object_get(d, "prefix_caching"))) m->block_size = MAX_BLOCK;
    IS_TRY(get_u32(d, "n_layers", 1, 4096, &m->n_layers));
    IS_TRY(get_u32(d, "n_ctx", 2, MAX_CTX, &m->n_ctx));
    IS_TRY(get_u32(d, "n_vocab", 1, MAX_VOCAB, &m->n_vocab));
    IS_TRY(get_u32(d, "tensor_parallel", 1, 4096, &m->tensor_parallel));
    IS_TRY(get_u32(d, "pipeline_parallel", 1, 4096, &m->pipeline_parallel));
    IS_TRY(get_number(d, "n_params", 0, UINT64_MAX / 4, &m->n_params));
    IS_TRY(read_geometry(d, m));
    IS_TRY(read_bos(d, m));
    IS_TRY(read_eos(d, m));
    IS_TRY(read_special(d, m));
    if (!m->can_inject && !m->why_not[0]) snprintf(m->why_not, sizeof m->why_not, "the connector does not say why");
    return read_pieces(d, m);
}

is_status vllm_model_read(const json_t *description, vllm_model **out)
{
    vllm_model *m = is_calloc(1, sizeof *m);
    is_status st;

    *out = NULL;
    if (!m) return no_memory();
    st = json_is_object(description) ? read_all(description, m) : wrong("inferscale");
    if (st != INFERSCALE_OK) {
        vllm_model_free(m);
        return st;
    }
    *out = m;
    return INFERSCALE_OK;
}

void vllm_model_free(vllm_model *m)
{
    if (!m) return;
    for (uint32_t i = 0; i < m->n_special; i++) is_free(m->special[i].text);
    is_free(m->special);
    is_free(m->eos);
    is_free(m->pieces);
    is_free(m->piece_at);
    is_geometry_free(m->geometry);
    is_free(m);
}

/* ---- Asking it ----------------------------------------------------------------------------------------------------------- */

bool vllm_model_is_eos(const vllm_model *m, int32_t token)
{
    for (uint32_t i = 0; i < m->n_eos; i++)
        if (m->eos[i] == token) return true;
    return false;
}

const vllm_special *vllm_model_special(const vllm_model *m, int32_t token)
{
    for (uint32_t i = 0; i < m->n_special; i++)
        if (m->special[i].id == token) return &m->special[i];
    return NULL;
}

void vllm_model_text(const vllm_model *m, const int32_t *tokens, size_t n, is_buf *out)
{
    for (size_t i = 0; i < n; i++) {
        const vllm_special *s = vllm_model_special(m, tokens[i]);

        if (s) is_buf_add(out, s->text, s->len);
        else if (tokens[i] >= 0 && (uint32_t)tokens[i] < m->n_vocab)
            is_buf_add(out, m->pieces + m->piece_at[tokens[i]], m->piece_at[tokens[i] + 1] - m->piece_at[tokens[i]]);
    }
}
