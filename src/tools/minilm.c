/* minilm.c - all-MiniLM-L6-v2 (a BERT encoder) from safetensors to GGUF.
 *
 * The names and keys are those libllama's "bert" architecture reads. Vocabulary as libllama's WordPiece wants it: pieces that
 * continue a word lose their "##", all others get U+2581 in front, specials stay. The pooler is not used (mean pooling). */
#include <ggml.h>
#include <gguf.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "tools/safetensors.h"
#include "tools/tools.h"

enum { N_LAYERS = 6, N_EMBD = 384, N_FF = 1536, N_HEADS = 12, N_CTX = 512, N_VOCAB = 30522, N_TENSORS = 5 + 16 * N_LAYERS };
enum { ID_PAD = 0, ID_UNK = 100, ID_CLS = 101, ID_SEP = 102, ID_MASK = 103 };

/* One tensor: its name there and here, its shape there, and how it is kept. */
typedef struct map_row {
    const char *from, *to;
    uint32_t rows, cols; /* rows 0 = a vector */
    bool f16;
} map_row;

static const map_row head_rows[] = {
    { "embeddings.word_embeddings.weight", "token_embd.weight", N_VOCAB, N_EMBD, true },
    { "embeddings.position_embeddings.weight", "position_embd.weight", N_CTX, N_EMBD, false },
    { "embeddings.token_type_embeddings.weight", "token_types.weight", 2, N_EMBD, false },
    { "embeddings.LayerNorm.weight", "token_embd_norm.weight", 0, N_EMBD, false },
    { "embeddings.LayerNorm.bias", "token_embd_norm.bias", 0, N_EMBD, false },
};

/* Of one layer: "encoder.layer.N." + from, "blk.N." + to; each has .weight and .bias. A norm has rows 0. */
static const map_row layer_rows[] = {
    { "attention.self.query", "attn_q", N_EMBD, N_EMBD, true },
    { "attention.self.key", "attn_k", N_EMBD, N_EMBD, true },
    { "attention.self.value", "attn_v", N_EMBD, N_EMBD, true },
    { "attention.output.dense", "attn_output", N_EMBD, N_EMBD, true },
    { "attention.output.LayerNorm", "attn_output_norm", 0, N_EMBD, false },
    { "intermediate.dense", "ffn_up", N_FF, N_EMBD, true },
    { "output.dense", "ffn_down", N_EMBD, N_FF, true },
    { "output.LayerNorm", "layer_output_norm", 0, N_EMBD, false },
};

static is_status no_memory(void)
{
    return is_fail(INFERSCALE_E_NOMEM, "out of memory converting the model; free some memory");
}

static is_status add_tensor(struct ggml_context *ctx, struct gguf_context *g, const st_file *f, const map_row *m)
{
    const st_tensor *t = st_find(f, m->from);
    uint64_t n = (uint64_t)(m->rows ? m->rows : 1) * m->cols;
    enum ggml_type type = m->f16 ? GGML_TYPE_F16 : GGML_TYPE_F32;
    struct ggml_tensor *to;

    if (!t) return is_fail(INFERSCALE_E_CORRUPT, "the model has no tensor '%s'; this is not all-MiniLM-L6-v2", m->from);
    if (t->dtype != ST_F32)
        return is_fail(INFERSCALE_E_UNSUPPORTED, "tensor '%s' is %s; only F32 is converted", m->from, st_dtype_name(t->dtype));
    if (t->n_dims != (m->rows ? 2u : 1u) || t->n_bytes != n * 4 || t->shape[t->n_dims - 1] != m->cols)
        return is_fail(INFERSCALE_E_CORRUPT, "tensor '%s' has another shape; this is not all-MiniLM-L6-v2", m->from);
    to = m->rows ? ggml_new_tensor_2d(ctx, type, m->cols, m->rows) : ggml_new_tensor_1d(ctx, type, m->cols);
    if (!to) return no_memory();
    ggml_set_name(to, m->to);
    if (m->f16) {
        float *row = is_malloc(m->cols * sizeof(float)); /* the file's rows are not aligned */

        if (!row) return no_memory();
        for (uint32_t r = 0; r < m->rows; r++) {
            memcpy(row, t->data + (size_t)r * m->cols * 4, m->cols * 4u);
            ggml_fp32_to_fp16_row(row, (ggml_fp16_t *)to->data + (size_t)r * m->cols, m->cols);
        }
        is_free(row);
    } else {
        memcpy(to->data, t->data, (size_t)t->n_bytes);
    }
    gguf_add_tensor(g, to);
    return INFERSCALE_OK;
}

static is_status add_tensors(struct ggml_context *ctx, struct gguf_context *g, const st_file *f)
{
    char from[128], to[64];

    for (size_t i = 0; i < sizeof(head_rows) / sizeof(head_rows[0]); i++) IS_TRY(add_tensor(ctx, g, f, &head_rows[i]));
    for (int l = 0; l < N_LAYERS; l++) {
        for (size_t i = 0; i < sizeof(layer_rows) / sizeof(layer_rows[0]); i++) {
            const map_row *r = &layer_rows[i];
            map_row weight = { from, to, r->rows, r->cols, r->f16 };
            map_row bias = { from, to, 0, r->rows ? r->rows : r->cols, false };

            snprintf(from, sizeof(from), "encoder.layer.%d.%s.weight", l, r->from);
            snprintf(to, sizeof(to), "blk.%d.%s.weight", l, r->to);
            IS_TRY(add_tensor(ctx, g, f, &weight));
            snprintf(from, sizeof(from), "encoder.layer.%d.%s.bias", l, r->from);
            snprintf(to, sizeof(to), "blk.%d.%s.bias", l, r->to);
            IS_TRY(add_tensor(ctx, g, f, &bias));
        }
    }
    return INFERSCALE_OK;
}

static bool is_special(uint32_t id)
{
    return id == ID_PAD || (id >= ID_UNK && id <= ID_MASK);
}

/* model.vocab of tokenizer.json is piece -> id; out[id] gets the piece as libllama wants it, in pieces (owned by the caller). */
static is_status read_vocab(const json_t *root, char **pieces)
{
    const json_t *vocab = json_object_get(json_object_get(root, "model"), "vocab");
    const char *key;
    json_t *value;

    if (json_object_size(vocab) != N_VOCAB)
        return is_fail(INFERSCALE_E_CORRUPT, "tokenizer.json has %zu pieces, not %d; this is not all-MiniLM-L6-v2",
                       json_object_size(vocab), N_VOCAB);
    json_object_foreach((json_t *)vocab, key, value) {
        json_int_t id = json_integer_value(value);
        is_buf b = IS_BUF_INIT;

        if (!json_is_integer(value) || id < 0 || id >= N_VOCAB || pieces[id])
            return is_fail(INFERSCALE_E_CORRUPT, "tokenizer.json: piece '%.40s' has a wrong id; fetch the file again", key);
        if (is_special((uint32_t)id)) {
            is_buf_str(&b, key);
        } else if (!strncmp(key, "##", 2)) {
            is_buf_str(&b, key + 2);
        } else {
            is_buf_str(&b, "\xe2\x96\x81"); /* U+2581 */
            is_buf_str(&b, key);
        }
        pieces[id] = is_buf_take(&b);
        if (!pieces[id]) return no_memory();
    }
    return INFERSCALE_OK;
}

static is_status add_vocab(struct gguf_context *g, const json_t *root)
{
    static const char *const specials[] = { "[UNK]", "[CLS]", "[SEP]", "[MASK]" };
    char **pieces = is_calloc(N_VOCAB, sizeof(*pieces));
    int32_t *kinds = is_calloc(N_VOCAB, sizeof(*kinds));
    is_status st = pieces && kinds ? read_vocab(root, pieces) : no_memory();

    for (uint32_t i = 0; st == INFERSCALE_OK && i < N_VOCAB; i++) kinds[i] = is_special(i) ? 3 : 1;
    for (uint32_t i = 0; st == INFERSCALE_OK && i < 4; i++)
        if (strcmp(pieces[ID_UNK + i], specials[i]))
            st = is_fail(INFERSCALE_E_CORRUPT, "tokenizer.json: piece %u is not %s; this is not all-MiniLM-L6-v2", ID_UNK + i,
                         specials[i]);
    if (st == INFERSCALE_OK) {
        gguf_set_val_str(g, "tokenizer.ggml.model", "bert");
        gguf_set_val_u32(g, "tokenizer.ggml.token_type_count", 2);
        gguf_set_arr_str(g, "tokenizer.ggml.tokens", (const char **)pieces, N_VOCAB);
        gguf_set_arr_data(g, "tokenizer.ggml.token_type", GGUF_TYPE_INT32, kinds, N_VOCAB);
        gguf_set_val_u32(g, "tokenizer.ggml.unknown_token_id", ID_UNK);
        gguf_set_val_u32(g, "tokenizer.ggml.seperator_token_id", ID_SEP); /* the key is spelled so */
        gguf_set_val_u32(g, "tokenizer.ggml.padding_token_id", ID_PAD);
        gguf_set_val_u32(g, "tokenizer.ggml.cls_token_id", ID_CLS);
        gguf_set_val_u32(g, "tokenizer.ggml.mask_token_id", ID_MASK);
    }
    for (uint32_t i = 0; pieces && i < N_VOCAB; i++) is_free(pieces[i]);
    is_free(pieces);
    is_free(kinds);
    return st;
}

static void add_keys(struct gguf_context *g)
{
    gguf_set_val_str(g, "general.architecture", "bert");
    gguf_set_val_str(g, "general.name", "all-MiniLM-L6-v2");
    gguf_set_val_str(g, "general.license", "apache-2.0");
    gguf_set_val_u32(g, "general.file_type", 1); /* mostly F16 */
    gguf_set_val_u32(g, "bert.context_length", N_CTX);
    gguf_set_val_u32(g, "bert.embedding_length", N_EMBD);
    gguf_set_val_u32(g, "bert.block_count", N_LAYERS);
    gguf_set_val_u32(g, "bert.feed_forward_length", N_FF);
    gguf_set_val_u32(g, "bert.attention.head_count", N_HEADS);
    gguf_set_val_f32(g, "bert.attention.layer_norm_epsilon", 1e-12f);
    gguf_set_val_bool(g, "bert.attention.causal", false);
    gguf_set_val_u32(g, "bert.pooling_type", 1); /* mean */
}

static is_status write_gguf(const st_file *f, const json_t *tokenizer, const char *out)
{
    struct ggml_init_params params = { .mem_size = ((size_t)64 << 20) + N_TENSORS * ggml_tensor_overhead() };
    struct ggml_context *ctx = ggml_init(params);
    struct gguf_context *g = gguf_init_empty();
    char *temp = tool_temp_name(out);
    is_status st = ctx && g && temp ? INFERSCALE_OK : no_memory();

    if (st == INFERSCALE_OK) {
        add_keys(g);
        st = add_vocab(g, tokenizer);
    }
    if (st == INFERSCALE_OK) st = add_tensors(ctx, g, f);
    if (st == INFERSCALE_OK && gguf_get_n_tensors(g) != N_TENSORS)
        st = is_fail(INFERSCALE_E_INTERNAL, "%d tensors written, %d expected", (int)gguf_get_n_tensors(g), N_TENSORS);
    if (st == INFERSCALE_OK && !gguf_write_to_file(g, temp, false)) {
        st = is_fail_errno("cannot write %s; check that its folder exists and has room", temp);
        unlink(temp);
    } else if (st == INFERSCALE_OK) {
        st = tool_commit(temp, out);
    }
    is_free(temp);
    if (g) gguf_free(g);
    if (ctx) ggml_free(ctx);
    return st;
}

static is_status read_in(const char *dir, const char *name, size_t max, uint8_t **p, size_t *n)
{
    char *path = is_path_join(dir, name);
    is_status st = path ? is_file_read_all(is_fs_posix(), path, max, p, n) : no_memory();

    is_free(path);
    return st;
}

is_status tool_convert_minilm(const char *dir, const char *out)
{
    uint8_t *tensors = NULL, *tokenizer = NULL;
    size_t n_tensors = 0, n_tokenizer = 0;
    st_file *f = NULL;
    json_t *root = NULL;
    json_error_t err;
    is_status st;

    IS_TRY_GOTO(st, done, read_in(dir, "model.safetensors", (size_t)1 << 30, &tensors, &n_tensors));
    IS_TRY_GOTO(st, done, read_in(dir, "tokenizer.json", (size_t)64 << 20, &tokenizer, &n_tokenizer));
    IS_TRY_GOTO(st, done, st_parse(tensors, n_tensors, &f));
    root = json_loadb((const char *)tokenizer, n_tokenizer, 0, &err);
    st = root ? write_gguf(f, root, out)
              : is_fail(INFERSCALE_E_CORRUPT, "%s/tokenizer.json, line %d: %s; fetch the file again", dir, err.line, err.text);
done:
    json_decref(root);
    st_free(f);
    is_free(tensors);
    is_free(tokenizer);
    return st;
}
