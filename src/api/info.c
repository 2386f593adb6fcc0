/* info.c - what is loaded and what is stored. */
#include <stdio.h>
#include <string.h>

#include "api/handle.h"
#include "base/cpu.h"
#include "base/mem.h"

static void copy(char *to, size_t cap, const char *from)
{
    snprintf(to, cap, "%s", from ? from : "");
}

is_status inferscale_model(inferscale *is, inferscale_model_info *out)
{
    const is_engine_info *i;
    char *path = NULL;

    if (!out) return is_fail(INFERSCALE_E_INVALID, "there is no place for the description; pass its address");
    memset(out, 0, sizeof *out);
    IS_TRY(is_handle_check(is));
    IS_TRY(is_handle_engine(is));
    i = is_engine_describe(is->engine);
    copy(out->name, sizeof out->name, i->name);
    copy(out->arch, sizeof out->arch, i->arch);
    copy(out->weights, sizeof out->weights, i->weights);
    copy(out->engine, sizeof out->engine, i->engine);
    copy(out->why_not, sizeof out->why_not, i->why_not);
    copy(out->cpu, sizeof out->cpu, is_cpu_simd_name(is_cpu_simd()));
    if (strcmp(is->engine_name, "mock") != 0 && !is_handle_is_remote(is) && is_model_find(is->model, IS_DEFAULT_MODEL, &path) == INFERSCALE_OK)
        copy(out->path, sizeof out->path, path);
    is_free(path);
    is_hex(i->fingerprint, IS_HASH_BYTES, out->fingerprint);
    out->n_params = i->n_params;
    out->n_layers = i->n_layers;
    out->n_ctx = i->n_ctx;
    out->n_ctx_train = i->n_ctx_train;
    out->n_vocab = i->n_vocab;
    out->n_threads = i->n_threads;
    out->can_inject = i->can_inject;
    out->flash_attention = i->flash_attention;
    out->fa_on_ms = i->fa_on_ms;
    out->fa_off_ms = i->fa_off_ms;
    out->selftest_kl = i->selftest_kl;
    out->selftest_noise = i->selftest_noise;
    if (is_engine_geometry(is->engine)) {
        out->n_planes = is_engine_geometry(is->engine)->n_planes;
        out->kv_bytes_per_token = (uint32_t)is_geometry_token_bytes(is_engine_geometry(is->engine),
                                                                    is_handle_profile(is)->codec);
    }
    return INFERSCALE_OK;
}

is_status inferscale_store(inferscale *is, int check, inferscale_store_info *out)
{
    is_bank_counts c;
    is_vault_stats v;
    is_embedder *embedder;
    bool ok = true;

    if (!out) return is_fail(INFERSCALE_E_INVALID, "there is no place for the description; pass its address");
    memset(out, 0, sizeof *out);
    IS_TRY(is_handle_check(is));
    IS_TRY(is_bank_count(is->bank, &c));
    IS_TRY(is_vault_scan(is->vault, &v));
    if (check) IS_TRY(is_bank_check(is->bank, &ok));
    copy(out->home, sizeof out->home, is->home);
    embedder = is_handle_embedder_if_loaded(is);
    copy(out->embedder, sizeof out->embedder, is->embedder_spec ? is->embedder_spec : IS_DEFAULT_EMBEDDER);
    if (embedder) is_hex(is_embedder_fingerprint(embedder), IS_HASH_BYTES, out->embedder_fingerprint);
    out->n_partitions = c.partitions;
    out->n_facts = c.facts;
    out->n_turns = c.turns;
    out->n_embedded = c.embeddings;
    out->n_segments = v.n_files;
    out->bank_bytes = c.bytes;
    out->vault_bytes = v.file_bytes;
    out->ram_bytes_used = v.ram_bytes;
    out->ram_bytes_budget = v.ram_budget;
    out->schema_version = is_bank_schema_version(is->bank);
    out->sqlite_ok = check ? ok : 0;
    return INFERSCALE_OK;
}
