/* quantize.c - other weights for a GGUF model, by libllama's own quantiser. */
#include <llama.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "tools/tools.h"

static const struct { const char *name; enum llama_ftype ftype; } types[] = {
    { "q4_0", LLAMA_FTYPE_MOSTLY_Q4_0 }, { "q4_1", LLAMA_FTYPE_MOSTLY_Q4_1 }, { "q8_0", LLAMA_FTYPE_MOSTLY_Q8_0 },
    { "f16", LLAMA_FTYPE_MOSTLY_F16 },   { "bf16", LLAMA_FTYPE_MOSTLY_BF16 }, { "f32", LLAMA_FTYPE_ALL_F32 },
};

static char last_error[256]; /* libllama says why only in its log */

static void keep_error(enum ggml_log_level level, const char *text, void *ctx)
{
    (void)ctx;
    if (level != GGML_LOG_LEVEL_ERROR) return;
    snprintf(last_error, sizeof(last_error), "%s", text);
    last_error[strcspn(last_error, "\n")] = '\0';
}

/* libllama takes any file apart before it finds out; a missing file deserves a plainer sentence. */
static is_status check_magic(const char *path)
{
    char magic[4] = { 0 };
    FILE *f = fopen(path, "rb");
    size_t n;

    if (!f) return is_fail_errno("cannot open the model %s; give the path of a GGUF file", path);
    n = fread(magic, 1, sizeof(magic), f);
    fclose(f);
    if (n != sizeof(magic) || memcmp(magic, "GGUF", 4))
        return is_fail(INFERSCALE_E_MODEL, "%s is not a GGUF file; give the path of a model in GGUF format", path);
    return INFERSCALE_OK;
}

is_status tool_quantize(const char *in, const char *out, const char *type)
{
    llama_model_quantize_params params = llama_model_quantize_default_params();
    char *temp;
    size_t i = 0;
    is_status st;

    while (i < sizeof(types) / sizeof(types[0]) && strcmp(types[i].name, type)) i++;
    if (i == sizeof(types) / sizeof(types[0]))
        return is_fail(INFERSCALE_E_INVALID, "unknown weight type '%.20s'; use q4_0, q4_1, q8_0, f16, bf16 or f32", type);
    IS_TRY(check_magic(in));
    temp = tool_temp_name(out);
    if (!temp) return is_fail(INFERSCALE_E_NOMEM, "out of memory; free some memory");
    params.ftype = types[i].ftype;
    params.allow_requantize = true;
    llama_log_set(keep_error, NULL);
    llama_backend_init();
    last_error[0] = '\0';
    if (llama_model_quantize(in, temp, &params)) {
        unlink(temp);
        st = is_fail(INFERSCALE_E_MODEL, "cannot re-quantise %s: %s; check that it is a whole model file and that %s can be written",
                     in, last_error[0] ? last_error : "libllama gave no reason", out);
    } else {
        st = tool_commit(temp, out);
    }
    llama_backend_free();
    is_free(temp);
    return st;
}
