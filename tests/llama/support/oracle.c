/* oracle.c - see oracle.h. */
#include "llama/support/oracle.h"

#include <llama.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LIVE = 0, OWN = 1, BATCH = 512 };

struct oracle {
    struct llama_model *model;
    struct llama_context *ctx;
    uint32_t n_vocab;
};

static void quiet(enum ggml_log_level level, const char *text, void *ctx)
{
    if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
}

oracle *oracle_open(const char *path, uint32_t n_ctx, bool flash_attention)
{
    struct llama_model_params mp = llama_model_default_params();
    struct llama_context_params cp = llama_context_default_params();
    oracle *o = calloc(1, sizeof *o);

    llama_log_set(quiet, NULL);
    llama_backend_init();
    mp.n_gpu_layers = 0;
    if (o) o->model = llama_model_load_from_file(path, mp);
    cp.n_ctx = n_ctx;
    cp.n_batch = cp.n_ubatch = BATCH;
    cp.n_seq_max = 2;
    cp.n_threads = cp.n_threads_batch = 1;
    cp.kv_unified = true;
    cp.swa_full = true; /* windows are masked, but no cell is dropped before it was copied */
    cp.flash_attn_type = flash_attention ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    if (o && o->model) o->ctx = llama_init_from_model(o->model, cp);
    if (!o || !o->ctx) {
        fprintf(stderr, "oracle: cannot open %s\n", path);
        oracle_close(o);
        return NULL;
    }
    o->n_vocab = (uint32_t)llama_vocab_n_tokens(llama_model_get_vocab(o->model));
    return o;
}

void oracle_close(oracle *o)
{
    if (!o) return;
    if (o->ctx) llama_free(o->ctx);
    if (o->model) llama_model_free(o->model);
    free(o);
}

uint32_t oracle_vocab(const oracle *o)
{
    return o->n_vocab;
}

/* Decodes tokens[n] of one sequence from pos on; the last one's logits if wanted. */
static bool decode(oracle *o, llama_seq_id seq, const int32_t *tokens, uint32_t n, uint32_t pos, uint32_t batch, float *logits)
{
    struct llama_batch b = llama_batch_init(BATCH, 0, 1);
    bool ok = true;

    if (!batch || batch > BATCH) batch = BATCH;
    for (uint32_t at = 0; ok && at < n; at += batch) {
        b.n_tokens = (int32_t)(n - at < batch ? n - at : batch);
        for (int32_t i = 0; i < b.n_tokens; i++) {
            b.token[i] = tokens[at + (uint32_t)i];
            b.pos[i] = (llama_pos)(pos + at + (uint32_t)i);
            b.n_seq_id[i] = 1;
            b.seq_id[i][0] = seq;
            b.logits[i] = at + (uint32_t)i + 1 == n;
        }
        int rc = llama_decode(o->ctx, b);
        if (rc) fprintf(stderr, "oracle: decode of %d tokens at %u gives %d\n", b.n_tokens, pos + at, rc);
        ok = rc == 0;
    }
    if (ok && logits) {
        const float *p = llama_get_logits_ith(o->ctx, -1);
        ok = p != NULL;
        if (ok) memcpy(logits, p, o->n_vocab * sizeof *logits);
    }
    llama_batch_free(b);
    return ok;
}

bool oracle_prefill(oracle *o, const int32_t *tokens, uint32_t n, uint32_t batch, float *logits)
{
    llama_memory_clear(llama_get_memory(o->ctx), true);
    return decode(o, LIVE, tokens, n, 0, batch, logits);
}

/* How far the plan must move for every context to begin at a position >= 0. */
static uint32_t plan_shift(uint32_t n_header, const oracle_span *facts, uint32_t n_facts)
{
    uint32_t pos = n_header, shift = 0;

    for (uint32_t i = 0; i < n_facts; i++) {
        if (facts[i].n_context > pos + shift) shift = facts[i].n_context - pos;
        pos += facts[i].n_tokens;
    }
    return shift;
}

bool oracle_stitch(oracle *o, const int32_t *header, uint32_t n_header, const oracle_span *facts, uint32_t n_facts,
                   const int32_t *tail, uint32_t n_tail, float *logits)
{
    llama_memory_t mem = llama_get_memory(o->ctx);
    uint32_t pos = plan_shift(n_header, facts, n_facts);

    llama_memory_clear(mem, true);
    if (!decode(o, LIVE, header, n_header, pos, 0, NULL)) return false;
    pos += n_header;
    for (uint32_t i = 0; i < n_facts; i++) {
        const oracle_span *f = &facts[i];
        llama_pos begin = (llama_pos)pos, end = (llama_pos)(pos + f->n_tokens);
        if (!decode(o, OWN, f->context, f->n_context, pos - f->n_context, 0, NULL)) return false;
        if (!decode(o, OWN, f->tokens, f->n_tokens, pos, 0, NULL)) return false;
        if (!llama_memory_seq_rm(mem, OWN, 0, begin)) return false;
        llama_memory_seq_cp(mem, OWN, LIVE, begin, end);
        if (!llama_memory_seq_rm(mem, OWN, -1, -1)) return false;
        pos += f->n_tokens;
    }
    return decode(o, LIVE, tail, n_tail, pos, 0, logits);
}

/* ---- Comparing ----------------------------------------------------------------------------------------------------------- */

static double log_sum_exp(const float *p, uint32_t n)
{
    double top = p[logits_top(p, n)], sum = 0;

    for (uint32_t i = 0; i < n; i++) sum += exp(p[i] - top);
    return top + log(sum);
}

double logits_kl(const float *p, const float *q, uint32_t n)
{
    double zp = log_sum_exp(p, n), zq = log_sum_exp(q, n), kl = 0;

    for (uint32_t i = 0; i < n; i++) kl += exp(p[i] - zp) * ((p[i] - zp) - (q[i] - zq));
    return kl > 0 ? kl : 0;
}

uint32_t logits_top(const float *p, uint32_t n)
{
    uint32_t at = 0;

    for (uint32_t i = 1; i < n; i++)
        if (p[i] > p[at]) at = i;
    return at;
}

double logits_margin(const float *p, uint32_t n)
{
    uint32_t top = logits_top(p, n);
    double next = -INFINITY;

    for (uint32_t i = 0; i < n; i++)
        if (i != top && p[i] > next) next = p[i];
    return p[top] - next;
}

double logits_max_diff(const float *p, const float *q, uint32_t n)
{
    double shift = log_sum_exp(p, n) - log_sum_exp(q, n), most = 0;

    for (uint32_t i = 0; i < n; i++) most = fmax(most, fabs(p[i] - q[i] - shift));
    return most;
}
