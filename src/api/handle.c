/* handle.c - opening and closing a store, and loading model and embedder when they are first needed. */
#include "api/background.h"
#include "api/catch_up.h"
#include "api/damage.h"
#include "api/lost.h"
#include "api/room.h"
#include "api/store_codec.h"
#include "api/talks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "base/url.h"

is_status is_handle_check(const inferscale *is)
{
    if (!is)
        return is_fail(INFERSCALE_E_INVALID,
                       "the store handle is NULL; open one with inferscale_open");
    is_log_for(is->logger.id);
    return INFERSCALE_OK;
}

is_status is_scope_check(const inferscale_scope *scope)
{
    if (scope) return INFERSCALE_OK;
    return is_fail(INFERSCALE_E_INVALID, "no scope given; say whose memory to use (user, agent, run or app)");
}

is_status is_text_check(const char *text, const char *what)
{
    size_t bad = 0;

    if (!text) return is_fail(INFERSCALE_E_INVALID, "the %s is NULL; give a UTF-8 string", what);
    if (!is_utf8_valid(text, strlen(text), &bad))
        return is_fail(INFERSCALE_E_INVALID, "the %s is not valid UTF-8 at byte %zu; convert it first", what, bad);
    if (is_utf8_blank(text, strlen(text))) return is_fail(INFERSCALE_E_INVALID, "the %s is empty; write something", what);
    return INFERSCALE_OK;
}

/* ---- Where the store is -------------------------------------------------------------------------------------------------- */

char *is_default_home(void)
{
    const char *own = getenv("INFERSCALE_HOME"), *xdg = getenv("XDG_DATA_HOME"), *home = getenv("HOME");
    is_buf b = IS_BUF_INIT;

    if (own && own[0]) is_buf_str(&b, own);
    else if (xdg && xdg[0]) is_buf_fmt(&b, "%s/inferscale", xdg);
    else if (home && home[0]) is_buf_fmt(&b, "%s/.local/share/inferscale", home);
    else is_buf_str(&b, "inferscale-home");
    return is_buf_take(&b);
}

bool is_handle_is_remote(const inferscale *is)
{
    return is->engine_name && strcmp(is->engine_name, "vllm") == 0;
}

static bool is_remote(const char *engine)
{
    return engine && strcmp(engine, "vllm") == 0;
}

static const char *given(const char *value, const char *variable)
{
    const char *s = value && value[0] ? value : getenv(variable);

    return s && s[0] ? s : NULL;
}

/* Which model it is: a file here, or what the servers have. */
static is_status check_model(const inferscale_options *o)
{
    if (is_remote(o->engine) && o->model && o->model[0])
        return is_fail(INFERSCALE_E_INVALID, "engine %s serves the model of its upstream, and --model %.60s names another; drop it", o->engine,
                       o->model);
    if (!is_remote(o->engine) && o->upstream && o->upstream[0])
        return is_fail(INFERSCALE_E_INVALID, "an upstream is what engine vllm computes on; add --engine vllm, or drop it");
    if (is_remote(o->engine) && given(o->upstream, "INFERSCALE_UPSTREAM")) return is_urls_check(given(o->upstream, "INFERSCALE_UPSTREAM"));
    return INFERSCALE_OK;
}

static is_status copy_strings(inferscale *is, const inferscale_options *o)
{
    const char *key = o->embedder_key ? o->embedder_key : getenv("INFERSCALE_EMBEDDER_KEY");
    const bool remote = is_remote(o->engine);
    const char *upstream = remote ? given(o->upstream, "INFERSCALE_UPSTREAM") : NULL;
    const char *upstream_key = remote ? given(o->upstream_key, "INFERSCALE_UPSTREAM_KEY") : NULL;

    is->home = o->home && o->home[0] ? is_strdup(o->home) : is_default_home();
    is->engine_name = is_strdup(o->engine && o->engine[0] ? o->engine : "llama");
    is->model = is_strdup(o->model);
    is->embedder_spec = is_strdup(o->embedder);
    is->embedder_key = is_strdup(key);
    is->plugin_dir = is_strdup(o->plugin_dir);
    is->system = is_strdup(o->system);
    is->upstream = is_strdup(upstream);
    is->upstream_key = is_strdup(upstream_key);
    if (!is->home || !is->engine_name || (o->model && !is->model) || (o->embedder && !is->embedder_spec) || (key && !is->embedder_key) ||
        (o->plugin_dir && !is->plugin_dir) || (o->system && !is->system) || (upstream && !is->upstream) ||
        (upstream_key && !is->upstream_key))
        return is_fail(INFERSCALE_E_NOMEM, "out of memory while opening the store");
    return INFERSCALE_OK;
}

/* "default" names what "" stands for in the bank. */
static is_status take_codec(inferscale *is, const char *name)
{
    is_codec codec;

    is->codec_named = name && name[0];
    if (!is->codec_named || strcmp(name, "default") == 0) return INFERSCALE_OK;
    if (strcmp(name, "auto") != 0) IS_TRY(is_codec_parse(name, &codec));
    snprintf(is->codec, sizeof is->codec, "%s", name);
    return INFERSCALE_OK;
}

static is_status take_options(inferscale *is, const inferscale_options *o)
{
    if (!o || o->struct_size < sizeof(inferscale_options))
        return is_fail(INFERSCALE_E_INVALID, "the options are not initialised; use INFERSCALE_OPTIONS_INIT of this library's header");
    if (o->flash_attention < INFERSCALE_FA_AUTO || o->flash_attention > INFERSCALE_FA_OFF)
        return is_fail(INFERSCALE_E_INVALID, "flash_attention is %d; use INFERSCALE_FA_AUTO, _ON or _OFF", o->flash_attention);
    if (o->n_parallel > IS_PARALLEL_MAX && !is_remote(o->engine))
        return is_fail(INFERSCALE_E_INVALID, "n_parallel is %u; use at most %d", o->n_parallel, IS_PARALLEL_MAX);
    is->n_ctx = o->n_ctx;
    if (!(o->encode_lag_s >= -1e9 && o->encode_lag_s <= 1e9) || !(o->encode_share >= 0 && o->encode_share < 1) ||
        !(o->encode_share_most >= 0 && o->encode_share_most < 1))
        return is_fail(INFERSCALE_E_INVALID, "encode_lag_s is %g and the shares are %g to %g; use seconds, and shares of at least 0 and below 1",
                       o->encode_lag_s, o->encode_share, o->encode_share_most);
    is->n_parallel = o->n_parallel;
    is->n_threads = o->n_threads;
    is->embedder_wait_ms = o->embedder_wait_ms;
    is->flash_attention = o->flash_attention;
    is->read_only = o->read_only != 0;
    if (o->start_empty && is->read_only)
        return is_fail(INFERSCALE_E_INVALID, "a new memory cannot begin in a store that is opened read-only; drop start_empty or read_only");
    is->question_embed_ms = o->question_embed_ms;
    is->question_embed_texts = o->question_embed_texts;
    is->on_loading = o->on_loading;
    is->loading_ctx = o->loading_ctx;
    if (o->background && is->read_only)
        return is_fail(INFERSCALE_E_INVALID, "a store that is opened read-only cannot be encoded in the background; drop one of both");
    IS_TRY(take_codec(is, o->codec));
    IS_TRY(check_model(o));
    IS_TRY(is_policy_parse(o->policy ? o->policy : IS_DEFAULT_POLICY, &is->policy));
    is->has_refine = !o->refine || strcmp(o->refine, "none") != 0;
    if (is->has_refine) IS_TRY(is_policy_parse(o->refine ? o->refine : IS_DEFAULT_REFINE, &is->refine));
    IS_TRY(copy_strings(is, o));
    if (is->system) IS_TRY(is_text_check(is->system, "system text"));
    return INFERSCALE_OK;
}

static is_status open_parts(inferscale *is, uint64_t ram_bytes, bool start_empty)
{
    const is_fs *fs = is_fs_default();
    char *vault = is_path_join(is->home, "vault");
    is_status st = vault ? INFERSCALE_OK : is_fail(INFERSCALE_E_NOMEM, "out of memory while opening the store");

    if (st == INFERSCALE_OK && !is->read_only) st = is_file_mkdirs(fs, is->home);
    if (st == INFERSCALE_OK) st = is_lost_open_bank(is, start_empty);
    if (st == INFERSCALE_OK) st = is_handle_open_codec(is);
    if (st == INFERSCALE_OK) st = is_vault_open(fs, vault, ram_bytes ? ram_bytes : UINT64_C(1) << 30, is->read_only, &is->vault);
    if (st == INFERSCALE_OK) st = is_recall_new(is->bank, &is->recall);
    is_free(vault);
    return st;
}

static is_status remove_from_vault(void *vault, const is_names *names)
{
    return is_vault_remove_all(vault, names->names, names->n);
}

/* Removes the files; the bank stops naming them only when all are gone, so that what a crash leaves is removed at the next open. */
static is_status remove_files(inferscale *is, const is_names *names)
{
    IS_TRY(remove_from_vault(is->vault, names));
    return names->n ? is_bank_doomed_done(is->bank, names) : INFERSCALE_OK;
}

/* A process that died between forgetting and removing left files that hold KV of forgotten text. They go before anything is served. */
static is_status finish_forgetting(inferscale *is)
{
    is_names doomed = { 0 };
    size_t n_removed = 0;
    is_status st;

    if (is->read_only) return INFERSCALE_OK;
    st = is_bank_doomed(is->bank, &doomed);
    if (st == INFERSCALE_OK && doomed.n) st = is_bank_sweep_doomed(is->bank, remove_from_vault, is->vault, &n_removed);
    if (n_removed) is_log(IS_LOG_WARN, "removed %zu segment files that an interrupted process left", n_removed);
    is_names_free(&doomed);
    return st == INFERSCALE_E_FULL ? INFERSCALE_OK : st; /* the files are gone; their names go when there is space to write it down */
}

is_status inferscale_open(inferscale **out, const inferscale_options *options)
{
    inferscale *is;
    is_status st;

    if (!out) return is_fail(INFERSCALE_E_INVALID, "there is no place for the handle; pass the address of an inferscale pointer");
    *out = NULL;
    is = is_calloc(1, sizeof *is);
    if (!is) return is_fail(INFERSCALE_E_NOMEM, "out of memory while opening the store");
    is_loader_init(&is->engine_loader);
    is_loader_init(&is->embedder_slot.loader);
    pthread_mutex_init(&is->embedder_slot.lock, NULL);
    pthread_mutex_init(&is->measured.lock, NULL);
    pthread_mutex_init(&is->watch_lock, NULL);
    pthread_mutex_init(&is->codec_lock, NULL);
    pthread_mutex_init(&is->chats_lock, NULL);
    pthread_mutex_init(&is->holds_lock, NULL);
    pthread_rwlock_init(&is->listener_lock, NULL);
    st = is_gate_new(&is->gate);
    if (st == INFERSCALE_OK) st = is_damage_new(&is->damage);
    if (st == INFERSCALE_OK) st = is_talks_new(&is->talks);
    if (st == INFERSCALE_OK) st = is_catch_up_new(&is->catch_up);
    if (st == INFERSCALE_OK) st = take_options(is, options);
    if (st == INFERSCALE_OK) {
        is_logger_add(&is->logger, options->on_log, options->log_ctx);
        is_log_for(is->logger.id);
        st = open_parts(is, options->ram_bytes, options->start_empty != 0);
        if (st == INFERSCALE_OK) st = finish_forgetting(is);
        if (st == INFERSCALE_OK) is_room_reserve(is);
        if (st == INFERSCALE_OK && options->background && !is->read_only) st = is_background_start(is, options, &is->background);
    }
    if (st != INFERSCALE_OK) {
        inferscale_close(is);
        return st;
    }
    *out = is;
    return INFERSCALE_OK;
}

void inferscale_close(inferscale *is)
{
    if (!is) return;
    if (is->logger.id) is_log_for(is->logger.id);
    inferscale_stop_loading(is); /* the background encoder may be at it */
    is_background_stop(is->background);
    is_catch_up_free(is->catch_up);
    is_handle_end_chats(is);
    is_talks_free(is);
    is_rope_free(is->rope);
    is_handle_free_profiles(is);
    if (is->embedder) is_embedder_close(is->embedder);
    if (is->engine) is_engine_close(is->engine);
    if (is->recall) is_recall_free(is->recall);
    if (is->vault) is_vault_close(is->vault);
    if (is->watch != is->bank) is_bank_close(is->watch);
    if (is->bank) is_bank_close(is->bank);
    is_gate_free(is->gate);
    is_damage_free(is->damage);
    pthread_rwlock_destroy(&is->listener_lock);
    pthread_mutex_destroy(&is->holds_lock);
    pthread_mutex_destroy(&is->chats_lock);
    pthread_mutex_destroy(&is->watch_lock);
    pthread_mutex_destroy(&is->codec_lock);
    pthread_mutex_destroy(&is->embedder_slot.lock);
    pthread_mutex_destroy(&is->measured.lock);
    is_loader_destroy(&is->embedder_slot.loader);
    is_loader_destroy(&is->engine_loader);
    is_logger_drop(&is->logger);
    is_free(is->notice);
    is_free(is->home);
    is_free(is->model);
    is_free(is->embedder_spec);
    is_free(is->embedder_key);
    is_free(is->engine_name);
    is_free(is->plugin_dir);
    is_free(is->system);
    is_free(is->upstream);
    is_free(is->upstream_key);
    is_free(is);
}

/* ---- What others ask of the handle ---------------------------------------------------------------------------------------- */

is_encoder is_handle_encoder(inferscale *is)
{
    is_embedder *embedder = is_handle_embedder_if_loaded(is);

    return (is_encoder){ .bank = is->bank, .vault = is->vault, .engine = is->engine, .profile = is_handle_profile(is), .rope = is->rope,
                         .recall = is->recall, .embedder = embedder ? is_embedder_fingerprint(embedder) : NULL };
}

size_t is_handle_policies(const inferscale *is, int stage, is_policy out[IS_STAGE_POLICIES])
{
    size_t n = 0;

    if (stage == INFERSCALE_STAGE_FIRST) out[n++] = is->policy;
    if (stage != INFERSCALE_STAGE_REFINE || !is->has_refine) return n;
    out[n++] = is->refine;
    if (is->policy.kind != IS_POLICY_HEADER && is->refine.kind != IS_POLICY_HEADER && is_policy_parse("header", &out[n]) == INFERSCALE_OK) n++;
    return n;
}

is_status is_handle_drop(inferscale *is, const is_partition *p, is_names *stale)
{
    is_status st = remove_files(is, stale);

    is_names_free(stale);
    is_recall_forget(is->recall, p->id);
    return st;
}
