/* tuning.c - is flash attention faster for what serving does most: a short question behind a long injected context?
 *
 * On CPUs libllama's fast path starts at 64 tokens; below, flash attention can be 2.5 times slower than without. It depends on
 * the CPU and the model's shape, so it is measured: a decode of 28 tokens behind cells that were set, not computed. */
#include "engine/llama/internal.h"

#include <stdio.h>
#include <string.h>

enum { SUFFIX = 28, CELLS = 1536, ROUNDS = 3 };

static void tuning_key(const is_llama *e, uint8_t key[IS_HASH_BYTES])
{
    char cpu[64];
    is_hash *h;

    memset(key, 0, IS_HASH_BYTES);
    is_cpu_model(cpu);
    if (is_hash_new(NULL, &h) != INFERSCALE_OK) return;
    is_hash_field(h, e->file_hash, IS_HASH_BYTES);
    is_hash_field(h, cpu, strlen(cpu));
    is_hash_field(h, llama_version(), strlen(llama_version()));
    is_hash_u64(h, e->info.n_threads);
    is_hash_u64(h, e->n_ctx < 2 * CELLS);
    is_hash_end(h, key);
}

/* Milliseconds of a short decode behind `cells` used cells; the best of some rounds. < 0 = it cannot be had. */
static double time_suffix(is_llama *e, struct llama_context *ctx, uint32_t cells)
{
    llama_memory_t mem = llama_get_memory(ctx);
    int32_t tokens[SUFFIX];
    is_layout l;
    uint8_t *blob = NULL;
    size_t len = 0;
    double best = -1;
    bool ok = is_layout_find(e, ctx, &l) == INFERSCALE_OK;

    if (ok) ok = is_blob_zero(e, &l, cells, &blob, &len) == INFERSCALE_OK && is_shim_state_set(ctx, blob, len, 0) == len;
    for (uint32_t i = 0; i < SUFFIX; i++) tokens[i] = (int32_t)((5 * i + 2) % e->n_vocab);
    for (int round = 0; round < ROUNDS && ok; round++) {
        double t0 = is_now_ms(), ms;

        ok = is_llama_decode(e, ctx, 0, tokens, SUFFIX, cells, 0, true) == INFERSCALE_OK;
        ms = is_now_ms() - t0;
        if (ok && (best < 0 || ms < best)) best = ms;
        llama_memory_seq_rm(mem, 0, (llama_pos)cells, -1);
        if (ms > 3000 && ok) break; /* a large model: one round says enough */
        /* Window layers lost rows to the suffix: set them again. */
        if (ok && l.n_blocks > 1) ok = is_shim_state_set(ctx, blob, len, 0) == len;
    }
    is_free(blob);
    is_layout_free(&l);
    return best;
}

static double measure(is_llama *e, bool fa)
{
    uint32_t n_ctx = e->n_ctx < 2 * CELLS ? e->n_ctx : CELLS + 512, cells = n_ctx < CELLS + 512 ? n_ctx / 2 : CELLS;
    struct llama_context *ctx = is_llama_context(e, n_ctx, SEQ_MAX, UBATCH < n_ctx ? UBATCH : n_ctx, fa, false, false, NULL);
    double ms;

    if (!ctx) return -1;
    ms = time_suffix(e, ctx, cells);
    llama_free(ctx);
    return ms;
}

bool is_tune_flash_attention(is_llama *e)
{
    uint8_t key[IS_HASH_BYTES];
    char text[64];
    double on = -1, off = -1;

    tuning_key(e, key);
    if (!is_cache_read(e->cache_dir, "tune", key, text, sizeof text) || sscanf(text, "%lf %lf", &on, &off) != 2 ||
        !(on > 0) || !(off > 0)) {
        on = measure(e, true);
        off = measure(e, false);
        if (on <= 0 || off <= 0) return on > 0 || off <= 0;
        snprintf(text, sizeof text, "%.3f %.3f\n", on, off);
        is_cache_write(e->cache_dir, "tune", key, text);
    }
    e->info.fa_on_ms = on;
    e->info.fa_off_ms = off;
    is_log(IS_LOG_INFO, "a question of %d tokens takes %.1f ms with flash attention and %.1f ms without", SUFFIX, on, off);
    return on <= off;
}
