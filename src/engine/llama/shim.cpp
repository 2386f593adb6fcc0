// shim.cpp - libllama is C++ behind a C header, and some of its calls let exceptions out. C code cannot catch them, and an
// exception that crosses C frames ends the process; so every call that can throw goes through here.
//
// ggml ends the process where an assertion of its own fails, which a model file with impossible numbers can bring about. Its
// abort callback throws instead, back to the call below that this thread is in. That is right only while no other thread works
// on the same graph: the others would wait at ggml's barrier for ever. So a computation is left that way only if it has one
// thread, and a model computes its first token with one (is_llama_first_token, embedder.c): what is wrong with it shows there.
#include "shim.h"

#include <cstdio>
#include <exception>
#include <stdexcept>

static thread_local char caught[512];
static thread_local bool may_throw; // in a call that an exception may leave

static void record(const char *what)
{
    std::snprintf(caught, sizeof caught, "%s", what);
}

// Says for as long as it lives whether a failed assertion may be thrown.
struct throwing {
    const bool before = may_throw;
    explicit throwing(bool allowed) { may_throw = allowed; }
    ~throwing() { may_throw = before; }
};

// Runs call(); on an exception records its text and returns failed.
template <typename T, typename F> static T guarded(T failed, F call, bool assertions = true)
{
    const throwing scope(assertions);

    try {
        return call();
    } catch (const std::exception &e) {
        record(e.what());
    } catch (...) {
        record("an unknown C++ exception");
    }
    return failed;
}

static bool has_one_thread(struct llama_context *ctx)
{
    return llama_n_threads(ctx) == 1 && llama_n_threads_batch(ctx) == 1;
}

// The part of "FILE:LINE: GGML_ASSERT(...) failed" that does not depend on where libllama was built.
static const char *without_folder(const char *message)
{
    const char *from = message;

    for (const char *p = message; *p && *p != ' ' && *p != ':'; p++)
        if (*p == '/' || *p == '\\') from = p + 1;
    return from;
}

static void on_abort(const char *message)
{
    const char *what = without_folder(message);

    if (may_throw) throw std::runtime_error(what);
    is_llama_fatal(what); // and ggml ends the process
}

extern "C" {

const char *is_shim_error(void) { return caught; }
void is_shim_clear(void) { caught[0] = 0; }
void is_shim_catch_aborts(void) { ggml_set_abort_callback(on_abort); }

struct llama_model *is_shim_model_load(const char *path, struct llama_model_params params)
{
    return guarded<llama_model *>(nullptr, [&] { return llama_model_load_from_file(path, params); });
}

struct llama_context *is_shim_context_new(struct llama_model *m, struct llama_context_params p)
{
    return guarded<llama_context *>(nullptr, [&] { return llama_init_from_model(m, p); });
}

int32_t is_shim_decode(struct llama_context *ctx, struct llama_batch batch)
{
    return guarded<int32_t>(SHIM_THROWN, [&] { return llama_decode(ctx, batch); }, has_one_thread(ctx));
}

int32_t is_shim_encode(struct llama_context *ctx, struct llama_batch batch)
{
    return guarded<int32_t>(SHIM_THROWN, [&] { return llama_encode(ctx, batch); }, has_one_thread(ctx));
}

size_t is_shim_state_size(struct llama_context *ctx, llama_seq_id seq)
{
    return guarded<size_t>(0, [&] { return llama_state_seq_get_size(ctx, seq); });
}

size_t is_shim_state_get(struct llama_context *ctx, uint8_t *dst, size_t size, llama_seq_id seq)
{
    return guarded<size_t>(0, [&] { return llama_state_seq_get_data(ctx, dst, size, seq); });
}

size_t is_shim_state_set(struct llama_context *ctx, const uint8_t *src, size_t size, llama_seq_id seq)
{
    return guarded<size_t>(0, [&] { return llama_state_seq_set_data(ctx, src, size, seq); });
}

int32_t is_shim_tokenize(const struct llama_vocab *vocab, const char *text, int32_t len, llama_token *out, int32_t max,
                         bool add_special, bool parse_special)
{
    return guarded<int32_t>(INT32_MIN, [&] { return llama_tokenize(vocab, text, len, out, max, add_special, parse_special); });
}

int32_t is_shim_piece(const struct llama_vocab *vocab, llama_token token, char *buf, int32_t cap, bool special)
{
    return guarded<int32_t>(SHIM_THROWN, [&] { return llama_token_to_piece(vocab, token, buf, cap, 0, special); });
}

int32_t is_shim_chat_apply(const char *tmpl, const struct llama_chat_message *msgs, size_t n, bool add_assistant, char *buf,
                           int32_t cap)
{
    return guarded<int32_t>(-1, [&] { return llama_chat_apply_template(tmpl, msgs, n, add_assistant, buf, cap); });
}

bool is_shim_sampler_apply(struct llama_sampler *chain, llama_token_data_array *candidates)
{
    return guarded<bool>(false, [&] { llama_sampler_apply(chain, candidates); return true; });
}

bool is_shim_sampler_accept(struct llama_sampler *chain, llama_token token)
{
    return guarded<bool>(false, [&] { llama_sampler_accept(chain, token); return true; });
}

struct llama_sampler *is_shim_grammar_new(const struct llama_vocab *vocab, const char *grammar)
{
    return guarded<struct llama_sampler *>(nullptr, [&] { return llama_sampler_init_grammar(vocab, grammar, "root"); });
}

}
