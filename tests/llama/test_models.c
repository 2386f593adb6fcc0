/* test_models.c - the models that set-up makes are what they should be, and inferscale-models refuses what it cannot use.
 *
 * The embeddings are compared with the original: golden values were computed from the published safetensors in double precision
 * by an independent program (BERT: embeddings, six post-norm layers with erf GELU, mean of the rows, unit length). */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <gguf.h>
#include <llama.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"

enum { DIM = 384, N_GOLDEN = 12 };

static const struct {
    int32_t ids[8];
    float begins[N_GOLDEN];
} golden[3] = {
    { { 101, 4698, 2003, 27395, 2000, 27613, 1012, 102 }, /* Anna is allergic to peanuts. */
      { -0.033238f, 0.035377f, 0.080613f, 0.080235f, -0.009698f, 0.036127f, 0.085824f, 0.045333f, -0.012701f, 0.025138f,
        -0.057572f, -0.046116f } },
    { { 101, 2054, 2442, 4698, 2025, 4521, 1029, 102 }, /* What must Anna not eat? */
      { -0.003645f, 0.052486f, 0.037429f, 0.093356f, -0.045145f, 0.025317f, 0.075557f, -0.054897f, -0.060089f, -0.033157f,
        -0.013501f, -0.102323f } },
    { { 101, 1996, 3345, 3727, 2012, 3157, 1012, 102 }, /* The train leaves at nine. */
      { 0.012456f, -0.02818f, 0.012281f, 0.101883f, 0.107579f, 0.166912f, -0.020679f, 0.102891f, -0.074393f, -0.102974f,
        -0.026726f, 0.004372f } },
};
static const char *const sentences[3] = { "Anna is allergic to peanuts.", "What must Anna not eat?", "The train leaves at nine." };

static char models_dir[512], tool[512], scratch[] = "/tmp/inferscale-models-XXXXXX";

static void quiet(enum ggml_log_level level, const char *text, void *ctx)
{
    (void)level, (void)text, (void)ctx;
}

/* The model's path; a model that is not there is a failure, with the next step. */
static char *model(const char *name, char out[1024])
{
    snprintf(out, 1024, "%s/%s", models_dir, name);
    if (access(out, R_OK)) fail_msg("there is no model %s; run scripts/setup.sh", out);
    return out;
}

static struct gguf_context *open_gguf(const char *path)
{
    struct gguf_init_params params = { .no_alloc = true };
    struct gguf_context *g = gguf_init_from_file(path, params);

    if (!g) fail_msg("%s is not a GGUF file", path);
    return g;
}

static int64_t key(const struct gguf_context *g, const char *name, enum gguf_type type)
{
    int64_t id = gguf_find_key(g, name);

    if (id < 0 || gguf_get_kv_type(g, id) != type) fail_msg("key %s is missing or of another type", name);
    return id;
}

static void test_minilm_file(void **state)
{
    static const struct { const char *name; uint32_t value; } keys[] = {
        { "bert.context_length", 512 }, { "bert.embedding_length", DIM }, { "bert.block_count", 6 },
        { "bert.feed_forward_length", 1536 }, { "bert.attention.head_count", 12 }, { "bert.pooling_type", 1 },
        { "tokenizer.ggml.token_type_count", 2 }, { "tokenizer.ggml.unknown_token_id", 100 },
        { "tokenizer.ggml.seperator_token_id", 102 }, { "tokenizer.ggml.padding_token_id", 0 },
        { "tokenizer.ggml.cls_token_id", 101 }, { "tokenizer.ggml.mask_token_id", 103 },
    };
    char path[1024];
    struct gguf_context *g = open_gguf(model("all-minilm-l6-v2-f16.gguf", path));
    int64_t tokens = key(g, "tokenizer.ggml.tokens", GGUF_TYPE_ARRAY), n_f16 = 0;

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        assert_int_equal(gguf_get_val_u32(g, key(g, keys[i].name, GGUF_TYPE_UINT32)), keys[i].value);
    assert_false(gguf_get_val_bool(g, key(g, "bert.attention.causal", GGUF_TYPE_BOOL)));
    assert_true(gguf_get_val_f32(g, key(g, "bert.attention.layer_norm_epsilon", GGUF_TYPE_FLOAT32)) == 1e-12f);
    assert_int_equal(gguf_find_key(g, "tokenizer.ggml.bos_token_id"), -1);
    assert_int_equal(gguf_get_arr_n(g, tokens), 30522);
    assert_string_equal(gguf_get_arr_str(g, tokens, 101), "[CLS]");
    assert_string_equal(gguf_get_arr_str(g, tokens, 4698), "\xe2\x96\x81" "anna");
    assert_string_equal(gguf_get_arr_str(g, tokens, 2015), "s"); /* was ##s */
    assert_int_equal(gguf_get_n_tensors(g), 101);
    for (int64_t i = 0; i < 101; i++) {
        const char *name = gguf_get_tensor_name(g, i);
        bool small = gguf_get_tensor_ne(g, i)[1] == 1 || !strncmp(name, "position_", 9) || !strncmp(name, "token_types", 11);

        assert_int_equal(gguf_get_tensor_type(g, i), small ? GGML_TYPE_F32 : GGML_TYPE_F16);
        n_f16 += !small;
    }
    assert_int_equal(n_f16, 1 + 6 * 6);
    gguf_free(g);
}

static void embed(struct llama_context *ctx, const int32_t *ids, float *out)
{
    struct llama_batch batch = llama_batch_get_one((int32_t *)ids, 8);
    double norm = 0;
    const float *e;

    assert_int_equal(llama_encode(ctx, batch), 0);
    e = llama_get_embeddings_seq(ctx, 0);
    assert_non_null(e);
    for (int i = 0; i < DIM; i++) norm += (double)e[i] * e[i];
    for (int i = 0; i < DIM; i++) out[i] = (float)(e[i] / sqrt(norm));
}

static void test_minilm_embeds(void **state)
{
    char path[1024];
    struct llama_model *m = llama_model_load_from_file(model("all-minilm-l6-v2-f16.gguf", path), llama_model_default_params());
    struct llama_context_params params = llama_context_default_params();
    struct llama_context *ctx;
    float e[3][DIM];
    double near = 0, far = 0;

    assert_non_null(m);
    params.n_ctx = params.n_batch = params.n_ubatch = 512;
    params.embeddings = true;
    ctx = llama_init_from_model(m, params);
    assert_non_null(ctx);
    for (int i = 0; i < 3; i++) {
        int32_t ids[16];
        int n = llama_tokenize(llama_model_get_vocab(m), sentences[i], (int32_t)strlen(sentences[i]), ids, 16, true, false);

        assert_int_equal(n, 8);
        assert_memory_equal(ids, golden[i].ids, sizeof(golden[i].ids));
        embed(ctx, ids, e[i]);
        for (int d = 0; d < N_GOLDEN; d++) /* f16 weights: 1e-3 of unit-length vectors; another layer order is 100 times off */
            if (fabsf(e[i][d] - golden[i].begins[d]) > 1e-3f)
                fail_msg("sentence %d, dimension %d: %f, golden %f", i, d, (double)e[i][d], (double)golden[i].begins[d]);
    }
    for (int d = 0; d < DIM; d++) near += (double)e[0][d] * e[1][d], far += (double)e[0][d] * e[2][d];
    assert_true(fabs(near - 0.665523) < 1e-3);
    assert_true(fabs(far + 0.040878) < 1e-3);
    llama_free(ctx);
    llama_model_free(m);
}

static int run_tool(const char *a, const char *b, const char *c, const char *d)
{
    pid_t pid = fork();
    int status;

    assert_true(pid >= 0);
    if (!pid) {
        if (!freopen("/dev/null", "w", stderr)) _exit(99);
        execl(tool, tool, a, b, c, d, (char *)NULL);
        _exit(98);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status)); /* never by a signal */
    return WEXITSTATUS(status);
}

static uint8_t *read_all(const char *path, size_t *n)
{
    uint8_t *p = NULL;

    if (is_file_read_all(is_fs_posix(), path, (size_t)1 << 30, &p, n) != INFERSCALE_OK) fail_msg("%s", is_error());
    return p;
}

static is_status count_entry(void *ctx, const char *name, bool is_dir)
{
    (void)name, (void)is_dir;
    ++*(int *)ctx;
    return INFERSCALE_OK;
}

static int n_files(const char *dir)
{
    int n = 0;

    assert_int_equal(is_fs_posix()->list(is_fs_posix(), dir, count_entry, &n), INFERSCALE_OK);
    return n;
}

/* Q4_1 -> Q4_0 gives the installed file again, byte for byte, and the weights are what the name says. */
static void test_quantize_repeats(void **state)
{
    char in[1024], want[1024], out[1024];
    size_t n_want, n_got;
    uint8_t *a, *b;
    struct gguf_context *g;
    int64_t n_q4_0 = 0, n_q4_1 = 0;

    snprintf(out, sizeof(out), "%s/out.gguf", scratch);
    assert_int_equal(run_tool("quantize", model("smollm2-135m-instruct-q4_1.gguf", in), out, "q4_0"), 0);
    a = read_all(model("smollm2-135m-instruct-q4_0.gguf", want), &n_want);
    b = read_all(out, &n_got);
    assert_int_equal(n_got, n_want);
    assert_true(!memcmp(a, b, n_want));
    g = open_gguf(out);
    for (int64_t i = 0; i < gguf_get_n_tensors(g); i++) {
        n_q4_0 += gguf_get_tensor_type(g, i) == GGML_TYPE_Q4_0;
        n_q4_1 += gguf_get_tensor_type(g, i) == GGML_TYPE_Q4_1;
    }
    assert_true(n_q4_0 >= 7 * 30 - 2); /* the matrices of 30 layers */
    assert_int_equal(n_q4_1, 0);
    gguf_free(g);
    is_free(a);
    is_free(b);
    assert_int_equal(n_files(scratch), 1); /* no temporary file stays */
    unlink(out);
}

static void test_refuses(void **state)
{
    char in[1024], out[1024], cut[1024];
    size_t n;
    uint8_t *p = read_all(model("smollm2-135m-instruct-q4_1.gguf", in), &n);
    static const size_t cuts[] = { 0, 3, 4, 20, 4096, 1 << 20 };

    snprintf(out, sizeof(out), "%s/out.gguf", scratch);
    snprintf(cut, sizeof(cut), "%s/cut.gguf", scratch);
    assert_int_equal(run_tool("quantize", in, out, "q9_9"), 1);
    assert_int_equal(run_tool("quantize", "/dev/null", out, "q4_0"), 1);
    assert_int_equal(run_tool("quantize", "no/such/file", out, "q4_0"), 1);
    assert_int_equal(run_tool("quantize", in, "no/such/folder/out.gguf", "q4_0"), 1);
    assert_int_equal(run_tool("quantise", in, out, "q4_0"), 2);
    assert_int_equal(run_tool("convert-minilm", scratch, out, NULL), 1);
    for (size_t i = 0; i < sizeof(cuts) / sizeof(cuts[0]); i++) {
        FILE *f = fopen(cut, "wb");

        assert_non_null(f);
        assert_int_equal(fwrite(p, 1, cuts[i], f), cuts[i]);
        fclose(f);
        assert_int_equal(run_tool("quantize", cut, out, "q4_0"), 1);
        assert_int_equal(n_files(scratch), 1); /* the cut input alone */
    }
    unlink(cut);
    is_free(p);
}

static int set_up(void **state)
{
    const char *env = getenv("INFERSCALE_MODELS"), *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char self[400];
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

    if (n < 0 || !mkdtemp(scratch)) return -1;
    self[n] = '\0';
    for (int up = 0; up < 2; up++) *strrchr(self, '/') = '\0'; /* build/X/tests/NAME -> build/X */
    snprintf(tool, sizeof(tool), "%s/inferscale-models", self);
    if (env && *env) snprintf(models_dir, sizeof(models_dir), "%s", env);
    else if (cache && *cache) snprintf(models_dir, sizeof(models_dir), "%s/inferscale/models", cache);
    else snprintf(models_dir, sizeof(models_dir), "%s/.cache/inferscale/models", home ? home : ".");
    llama_log_set(quiet, NULL);
    llama_backend_init();
    return 0;
}

static int tear_down(void **state)
{
    llama_backend_free();
    return rmdir(scratch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_minilm_file),
        cmocka_unit_test(test_minilm_embeds),
        cmocka_unit_test(test_quantize_repeats),
        cmocka_unit_test(test_refuses),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
