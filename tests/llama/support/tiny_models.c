/* tiny_models.c - see tiny_models.h. */
#include "llama/support/tiny_models.h"

#include <dirent.h>
#include <ggml.h>
#include <gguf.h>
#include <llama.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HEADS .n_head = 4, .n_head_kv = 2, .head_dim = 32, .n_embd = 128, .n_ff = 192
#define DENSE HEADS, .rot_dim = 32

const tiny_model tiny_models[] = {
    { .name = "tiny-llama", .arch = "llama", .can_inject = true, .n_layer = 3, DENSE },
    { .name = "tiny-llama3", .arch = "llama", .can_inject = true, .n_layer = 3, DENSE },       /* frequency factors */
    { .name = "tiny-llama-yarn", .arch = "llama", .can_inject = true, .n_layer = 3, DENSE },   /* a ramp and a magnitude */
    { .name = "tiny-qwen2-yarn", .arch = "qwen2", .can_inject = true, .n_layer = 3, DENSE },
    { .name = "tiny-qwen2", .arch = "qwen2", .can_inject = true, .n_layer = 3, DENSE },        /* halves, biases */
    { .name = "tiny-qwen3", .arch = "qwen3", .can_inject = true, .n_layer = 3, DENSE },        /* norms on queries and keys */
    { .name = "tiny-gemma3", .arch = "gemma3", .can_inject = true, .n_layer = 7, .window = 64, DENSE }, /* layer 5 is full */
    { .name = "tiny-gemma3-wide", .arch = "gemma3", .can_inject = true, .n_layer = 7, .window = 64, .n_head = 8, .n_head_kv = 8,
      .head_dim = 128, .rot_dim = 128, .n_embd = 128, .n_ff = 192 }, /* 28 KiB a token: 1,900 are composed in pieces */
    { .name = "tiny-stablelm", .arch = "stablelm", .can_inject = true, .n_layer = 3, HEADS, .rot_dim = 8 }, /* partial rotary */
    { .name = "tiny-smollm3", .arch = "smollm3", .can_inject = true, .n_layer = 4, DENSE },    /* the 4th layer has no RoPE */
    { .name = "tiny-mamba", .arch = "mamba", .why_not = "recurrent", .n_layer = 2, .n_embd = 128 },
    { .name = "tiny-jamba", .arch = "jamba", .why_not = "hybrid", .n_layer = 4, DENSE },       /* the 3rd layer has attention */
    { .name = "tiny-qwen2vl", .arch = "qwen2vl", .why_not = "RoPE", .n_layer = 2, DENSE },     /* M-RoPE */
    { .name = "tiny-hunyuan", .arch = "hunyuan-dense", .why_not = "norm", .n_layer = 2, DENSE }, /* keys normed after RoPE */
};
const unsigned tiny_model_count = sizeof tiny_models / sizeof *tiny_models;

const tiny_model *tiny_model_find(const char *name)
{
    for (unsigned i = 0; i < tiny_model_count; i++)
        if (strcmp(tiny_models[i].name, name) == 0) return &tiny_models[i];
    return NULL;
}

/* ---- Writing ------------------------------------------------------------------------------------------------------------- */

typedef struct writer {
    const tiny_model *m;
    struct gguf_context *gguf;
    struct ggml_context *ggml;
    uint64_t rng;
} writer;

static double uniform(writer *w)
{
    w->rng += 0x9e3779b97f4a7c15u;
    uint64_t x = w->rng;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return ((double)((x ^ (x >> 31)) >> 11) + 0.5) / 9007199254740992.0;
}

static double normal(writer *w)
{
    double r = sqrt(-2 * log(uniform(w)));
    return r * cos(6.283185307179586 * uniform(w));
}

/* A tensor "name" or, with layer >= 0, "blk.LAYER.name": mean + spread * normal. ne1 = 0: one dimension. */
static void tensor(writer *w, int layer, const char *name, int64_t ne0, int64_t ne1, double mean, double spread)
{
    char full[96];
    struct ggml_tensor *t = ggml_new_tensor_2d(w->ggml, GGML_TYPE_F32, ne0, ne1 ? ne1 : 1);
    float *p = ggml_get_data_f32(t);

    if (layer >= 0) snprintf(full, sizeof full, "blk.%d.%s", layer, name);
    else snprintf(full, sizeof full, "%s", name);
    ggml_set_name(t, full);
    for (int64_t i = 0; i < ggml_nelements(t); i++) p[i] = (float)(mean + spread * normal(w));
    gguf_add_tensor(w->gguf, t);
}

/* A matrix from in to out whose outputs have the size `gain` for inputs of unit size. */
static void matrix(writer *w, int layer, const char *name, int64_t in, int64_t out, double gain)
{
    tensor(w, layer, name, in, out, 0, gain / sqrt((double)in));
}

static void norm(writer *w, int layer, const char *name, int64_t n)
{
    tensor(w, layer, name, n, 0, 1, 0.1);
}

static const char *key(const writer *w, const char *suffix)
{
    static char text[128];
    snprintf(text, sizeof text, "%s.%s", w->m->arch, suffix);
    return text;
}

static void put_u32(writer *w, const char *suffix, uint32_t v)
{
    gguf_set_val_u32(w->gguf, key(w, suffix), v);
}

static void put_f32(writer *w, const char *suffix, double v)
{
    gguf_set_val_f32(w->gguf, key(w, suffix), (float)v);
}

/* Sentencepiece: <unk> <s> </s>, 256 bytes, then the letters and some marks of English as pieces of their own. */
static void write_tokenizer(writer *w)
{
    static char text[TINY_VOCAB][8];
    static const char marks[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.,:-?\xe2\x96\x81";
    const char *tokens[TINY_VOCAB];
    float scores[TINY_VOCAB];
    int32_t types[TINY_VOCAB];

    for (int i = 0; i < TINY_VOCAB; i++) {
        if (i < 3) snprintf(text[i], 8, "%s", i == 0 ? "<unk>" : i == 1 ? "<s>" : "</s>");
        else if (i < 259) snprintf(text[i], 8, "<0x%02X>", i - 3);
        else if (i < 259 + 57) snprintf(text[i], 8, "%c", marks[i - 259]);
        else if (i == 259 + 57) snprintf(text[i], 8, "%s", marks + 57);
        else snprintf(text[i], 8, "<x%d>", i);
        tokens[i] = text[i];
        scores[i] = (float)-i;
        types[i] = i == 0 ? 2 : i < 3 ? 3 : i < 259 ? 6 : i <= 259 + 57 ? 1 : 5; /* unknown, control, byte, normal, unused */
    }
    gguf_set_val_str(w->gguf, "tokenizer.ggml.model", "llama");
    gguf_set_arr_str(w->gguf, "tokenizer.ggml.tokens", tokens, TINY_VOCAB);
    gguf_set_arr_data(w->gguf, "tokenizer.ggml.scores", GGUF_TYPE_FLOAT32, scores, TINY_VOCAB);
    gguf_set_arr_data(w->gguf, "tokenizer.ggml.token_type", GGUF_TYPE_INT32, types, TINY_VOCAB);
    gguf_set_val_u32(w->gguf, "tokenizer.ggml.bos_token_id", 1);
    gguf_set_val_u32(w->gguf, "tokenizer.ggml.eos_token_id", 2);
    gguf_set_val_bool(w->gguf, "tokenizer.ggml.add_bos_token", true);
    gguf_set_val_bool(w->gguf, "tokenizer.ggml.add_space_prefix", false);
}

static bool is(const writer *w, const char *name)
{
    return strcmp(w->m->name, name) == 0;
}

static bool is_gemma(const writer *w)
{
    return strcmp(w->m->arch, "gemma3") == 0;
}

static void write_rope(writer *w)
{
    if (is(w, "tiny-llama-yarn") || is(w, "tiny-qwen2-yarn")) {
        gguf_set_val_str(w->gguf, key(w, "rope.scaling.type"), "yarn");
        put_f32(w, "rope.scaling.factor", 4);
        put_u32(w, "rope.scaling.original_context_length", TINY_CTX / 4);
    }
    if (is(w, "tiny-llama3")) {
        struct ggml_tensor *t = ggml_new_tensor_1d(w->ggml, GGML_TYPE_F32, w->m->rot_dim / 2);
        for (uint32_t i = 0; i < w->m->rot_dim / 2; i++) /* 1 for the fast pairs, then a ramp to 8, as Llama 3.1 has it */
            ggml_get_data_f32(t)[i] = i < 5 ? 1 : i > 9 ? 8 : 1 + 7 * (float)(i - 4) / 6;
        ggml_set_name(t, "rope_freqs.weight");
        gguf_add_tensor(w->gguf, t);
    }
    if (is_gemma(w)) {
        put_u32(w, "attention.sliding_window", w->m->window);
        put_f32(w, "rope.freq_base_swa", 10000);
    }
    if (is(w, "tiny-qwen2vl")) {
        const int32_t sections[4] = { 4, 6, 6, 0 };
        gguf_set_arr_data(w->gguf, key(w, "rope.dimension_sections"), GGUF_TYPE_INT32, sections, 4);
    }
    put_f32(w, "rope.freq_base", is_gemma(w) ? 1e6 : is(w, "tiny-llama3") ? 5e5 : 1e4);
    put_u32(w, "rope.dimension_count", w->m->rot_dim);
}

static void write_header(writer *w)
{
    const tiny_model *m = w->m;
    uint32_t no_attention_but_one[4] = { 0, 0, m->n_head_kv, 0 };

    gguf_set_val_str(w->gguf, "general.architecture", m->arch);
    gguf_set_val_str(w->gguf, "general.name", m->name);
    gguf_set_val_u32(w->gguf, "general.file_type", 0);
    put_u32(w, "context_length", TINY_CTX);
    put_u32(w, "embedding_length", m->n_embd);
    put_u32(w, "block_count", m->n_layer);
    put_u32(w, "vocab_size", TINY_VOCAB);
    put_f32(w, is(w, "tiny-stablelm") ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon", 1e-6);
    put_u32(w, "feed_forward_length", m->n_ff);
    put_u32(w, "attention.head_count", m->n_head);
    if (is(w, "tiny-jamba"))
        gguf_set_arr_data(w->gguf, key(w, "attention.head_count_kv"), GGUF_TYPE_UINT32, no_attention_but_one, 4);
    else put_u32(w, "attention.head_count_kv", m->n_head_kv);
    if (m->n_head) {
        put_u32(w, "attention.key_length", m->head_dim);
        put_u32(w, "attention.value_length", m->head_dim);
        write_rope(w);
    }
    if (is(w, "tiny-mamba") || is(w, "tiny-jamba")) {
        put_u32(w, "ssm.conv_kernel", 4);
        put_u32(w, "ssm.inner_size", 2 * m->n_embd);
        put_u32(w, "ssm.state_size", 16);
        put_u32(w, "ssm.time_step_rank", 8);
    }
    write_tokenizer(w);
}

static void write_attention(writer *w, int l)
{
    const tiny_model *m = w->m;
    int64_t q = (int64_t)m->n_head * m->head_dim, kv = (int64_t)m->n_head_kv * m->head_dim;
    bool normed = is(w, "tiny-qwen3") || is_gemma(w) || is(w, "tiny-hunyuan");

    matrix(w, l, "attn_q.weight", m->n_embd, q, 1.6);
    matrix(w, l, "attn_k.weight", m->n_embd, kv, 1.6);
    matrix(w, l, "attn_v.weight", m->n_embd, kv, 1.0);
    matrix(w, l, "attn_output.weight", q, m->n_embd, 1.5);
    if (strncmp(m->arch, "qwen2", 5) == 0) {
        tensor(w, l, "attn_q.bias", q, 0, 0, 0.5);
        tensor(w, l, "attn_k.bias", kv, 0, 0, 0.5);
        tensor(w, l, "attn_v.bias", kv, 0, 0, 0.5);
    }
    if (normed) { /* mean 1.6: the norm undoes the gain of the matrices */
        tensor(w, l, "attn_q_norm.weight", m->head_dim, 0, 1.6, 0.2);
        tensor(w, l, "attn_k_norm.weight", m->head_dim, 0, 1.6, 0.2);
    }
}

static void write_ssm(writer *w, int l)
{
    int64_t n = w->m->n_embd, inner = 2 * n, state = 16, rank = 8;

    matrix(w, l, "ssm_in.weight", n, 2 * inner, 1);
    tensor(w, l, "ssm_conv1d.weight", 4, inner, 0, 0.5);
    tensor(w, l, "ssm_conv1d.bias", inner, 0, 0, 0.1);
    matrix(w, l, "ssm_x.weight", inner, rank + 2 * state, 1);
    matrix(w, l, "ssm_dt.weight", rank, inner, 1);
    tensor(w, l, "ssm_dt.bias", inner, 0, -1, 0.3);
    tensor(w, l, "ssm_a", state, inner, -1, 0.2);
    tensor(w, l, "ssm_d", inner, 0, 1, 0.1);
    matrix(w, l, "ssm_out.weight", inner, n, 1);
    if (is(w, "tiny-jamba")) {
        norm(w, l, "ssm_dt_norm.weight", rank);
        norm(w, l, "ssm_b_norm.weight", state);
        norm(w, l, "ssm_c_norm.weight", state);
    }
}

static void write_layer(writer *w, int l)
{
    const tiny_model *m = w->m;
    bool biased_norms = is(w, "tiny-stablelm"), ssm = is(w, "tiny-mamba") || (is(w, "tiny-jamba") && l != 2);

    norm(w, l, "attn_norm.weight", m->n_embd);
    if (biased_norms) tensor(w, l, "attn_norm.bias", m->n_embd, 0, 0, 0.1);
    if (ssm) write_ssm(w, l);
    else write_attention(w, l);
    if (is(w, "tiny-mamba")) return;
    norm(w, l, "ffn_norm.weight", m->n_embd);
    if (biased_norms) tensor(w, l, "ffn_norm.bias", m->n_embd, 0, 0, 0.1);
    if (is_gemma(w)) {
        norm(w, l, "post_attention_norm.weight", m->n_embd);
        norm(w, l, "post_ffw_norm.weight", m->n_embd);
    }
    matrix(w, l, "ffn_gate.weight", m->n_embd, m->n_ff, 1);
    matrix(w, l, "ffn_up.weight", m->n_embd, m->n_ff, 1);
    matrix(w, l, "ffn_down.weight", m->n_ff, m->n_embd, 1);
}

bool tiny_model_write(const tiny_model *m, uint64_t seed, const char *path)
{
    writer w = { .m = m, .rng = seed };
    struct ggml_init_params mem = { .mem_size = 32u << 20 };
    bool ok;

    w.gguf = gguf_init_empty();
    w.ggml = ggml_init(mem);
    write_header(&w);
    /* gemma multiplies embeddings by the root of their length */
    tensor(&w, -1, "token_embd.weight", m->n_embd, TINY_VOCAB, 0, is_gemma(&w) ? 1 / sqrt((double)m->n_embd) : 1);
    norm(&w, -1, "output_norm.weight", m->n_embd);
    if (is(&w, "tiny-stablelm")) tensor(&w, -1, "output_norm.bias", m->n_embd, 0, 0, 0.1);
    matrix(&w, -1, "output.weight", m->n_embd, TINY_VOCAB, 2);
    for (uint32_t l = 0; l < m->n_layer; l++) write_layer(&w, (int)l);
    ok = gguf_write_to_file(w.gguf, path, false);
    gguf_free(w.gguf);
    ggml_free(w.ggml);
    return ok;
}

/* ---- A folder of this process -------------------------------------------------------------------------------------------- */

static char folder[256];

static void remove_folder(void)
{
    DIR *d = opendir(folder);
    struct dirent *e;
    char path[600];

    while (d && (e = readdir(d))) {
        if (e->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        unlink(path);
    }
    if (d) closedir(d);
    rmdir(folder);
}

/* NAME.gguf in the folder, which is made if need be. */
static bool in_folder(const char *name, char *out, unsigned cap)
{
    const char *tmp = getenv("TMPDIR");

    if (!folder[0]) {
        snprintf(folder, sizeof folder, "%s/tiny-models-XXXXXX", tmp && *tmp ? tmp : P_tmpdir);
        if (!mkdtemp(folder)) {
            folder[0] = 0;
            return false;
        }
        atexit(remove_folder);
    }
    return snprintf(out, cap, "%s/%s.gguf", folder, name) < (int)cap;
}

const char *tiny_model_path(const tiny_model *m, uint64_t seed)
{
    static char path[400];

    if (!in_folder(m->name, path, sizeof path)) return NULL;
    return access(path, R_OK) == 0 || tiny_model_write(m, seed, path) ? path : NULL;
}

bool tiny_model_wide(const char *from, const char *name, char *out, unsigned cap)
{
    struct llama_model_quantize_params p = llama_model_quantize_default_params();

    if (!in_folder(name, out, cap)) return false;
    if (access(out, R_OK) == 0) return true;
    p.ftype = LLAMA_FTYPE_MOSTLY_F16;
    p.allow_requantize = true;
    p.nthread = 1;
    return llama_model_quantize(from, out, &p) == 0;
}
