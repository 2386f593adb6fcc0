/* load.c - model and embedder, loaded when they are first needed: each under its own loader, so that nobody waits for what he does
 * not need; and an embedder elsewhere that does not answer is left alone for a while. */
#include "api/store_codec.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/outside.h"
#include "base/words.h"

enum { DELAY_MS = 1000, DELAY_MOST_MS = 60000 };

/* The mock engine has no files; every other engine's model is looked up. */
static is_status model_path(const inferscale *is, const char *name, const char *fallback, char **path)
{
    if (strcmp(is->engine_name, "mock") != 0) return is_model_find(name, fallback, path);
    *path = is_strdup(name ? name : "mock");
    return *path ? INFERSCALE_OK : is_fail(INFERSCALE_E_NOMEM, "out of memory");
}

/* A file, or where the servers are. */
is_status is_handle_model_path(const inferscale *is, char **path)
{
    *path = NULL;
    if (!is_handle_is_remote(is)) return model_path(is, is->model, IS_DEFAULT_MODEL, path);
    if (!is->upstream)
        return is_fail(INFERSCALE_E_INVALID,
                       "engine %s computes on servers of its own; say where they are with %s "
                       "URL[,URL] or INFERSCALE_UPSTREAM",
                       is->engine_name, is_words(IS_CALL_UPSTREAM));
    *path = is_strdup(is->upstream);
    return *path ? INFERSCALE_OK : is_fail(INFERSCALE_E_NOMEM, "out of memory");
}

/* Embedders that run here come with the engine; one that computes elsewhere leaves them to the default one. */
static const char *embedder_plugin(const inferscale *is)
{
    return is_handle_is_remote(is) ? "llama" : is->engine_name;
}

static void tell_loading(const inferscale *is, int loading, const char *what, const char *name)
{
    if (is->on_loading) is->on_loading(is->loading_ctx, loading, what, name);
}

/* Measurements and file fingerprints are kept beside the models, not in the store: they are the machine's. */
static is_status open_engine(inferscale *is, uint32_t open_ms, is_engine **out)
{
    is_engine_opts opts = { .n_ctx = is->n_ctx, .n_threads = is->n_threads, .flash_attention = is->flash_attention, .gate = is->gate,
                            .n_parallel = is->n_parallel, .cancel = &is->load_off, .home = is->home, .key = is->upstream_key,
                            .open_ms = open_ms };
    const is_fs *fs = is_fs_posix();
    char *path = NULL, *cache = NULL;
    is_status st = is_cache_folder("tuning", &cache);

    if (st == INFERSCALE_OK) st = is_handle_model_path(is, &path);
    if (cache && fs->mkdirs(fs, cache) == INFERSCALE_OK) opts.cache_dir = cache;
    opts.model_path = path;
    if (st == INFERSCALE_OK) {
        tell_loading(is, 1, "model", path);
        st = is_engine_open(is->plugin_dir, is->engine_name, &opts, out);
        tell_loading(is, 0, "model", path);
    }
    is_free(path);
    is_free(cache);
    return st;
}

void inferscale_stop_loading(inferscale *is)
{
    if (is) __atomic_store_n(&is->load_off, 1, __ATOMIC_RELEASE);
}

static is_status may_load(const inferscale *is)
{
    if (!__atomic_load_n(&is->load_off, __ATOMIC_ACQUIRE)) return INFERSCALE_OK;
    return is_fail(INFERSCALE_E_CANCELLED, "loading was called off; open the store again to load a model");
}

typedef struct load_job { inferscale *is; uint32_t ms; bool patient; } load_job;

static is_status load_engine(void *ctx)
{
    const load_job *job = ctx;
    inferscale *is = job->is;
    is_engine *engine = NULL;
    is_profile *profile = NULL;
    is_rope *rope = NULL;
    is_status st = may_load(is);

    if (st == INFERSCALE_OK) st = open_engine(is, job->ms, &engine);
    if (st == INFERSCALE_OK) st = is_profile_new(engine, is->system, is_handle_codec(is, engine), &profile);
    if (st == INFERSCALE_OK && is_engine_geometry(engine))
        st = is_rope_new(is_engine_geometry(engine), is_engine_describe(engine)->n_ctx, &rope);
    if (st != INFERSCALE_OK) {
        is_rope_free(rope);
        is_profile_free(profile);
        if (engine) is_engine_close(engine);
        return st;
    }
    if (is_engine_describe(engine)->remote) is_vault_keep_no_rows(is->vault);
    is->engine = engine;
    is->rope = rope;
    is_handle_set_profile(is, profile);
    return INFERSCALE_OK;
}

is_status is_handle_engine_within(inferscale *is, uint32_t ms)
{
    load_job job = { .is = is, .ms = ms };

    return is_loader_run(&is->engine_loader, ms, load_engine, &job);
}

is_status is_handle_engine(inferscale *is)
{
    return is_handle_engine_within(is, 0);
}

/* ---- The embedder -------------------------------------------------------------------------------------------------------- */

static bool is_elsewhere(const inferscale *is)
{
    const char *spec = is->embedder_spec;

    return spec && (strncmp(spec, "http://", 7) == 0 || strncmp(spec, "https://", 8) == 0);
}

is_status is_handle_embedder_path(const inferscale *is, char **path, bool *remote)
{
    *path = NULL;
    *remote = is_elsewhere(is);
    if (!*remote) return model_path(is, is->embedder_spec, IS_DEFAULT_EMBEDDER, path);
    *path = is_strdup(is->embedder_spec);
    return *path ? INFERSCALE_OK : is_fail(INFERSCALE_E_NOMEM, "out of memory");
}

static is_status load_embedder(void *ctx)
{
    const load_job *job = ctx;
    inferscale *is = job->is;
    is_embedder_plug plug = { .plugin_dir = is->plugin_dir, .engine = embedder_plugin(is), .n_threads = is->n_threads,
                              .wait_ms = is->embedder_wait_ms, .patient = job->patient, .cancel = &is->load_off };
    is_embedder *e = NULL;
    char *path = NULL;
    bool remote = false;
    is_status st = may_load(is);

    if (st == INFERSCALE_OK) st = is_handle_embedder_path(is, &path, &remote);
    plug.spec = path;
    plug.key = remote ? is->embedder_key : NULL;
    if (st == INFERSCALE_OK) {
        tell_loading(is, 1, "embedder", path);
        st = is_embedder_open_with(&plug, &e);
        tell_loading(is, 0, "embedder", path);
    }
    is_free(path);
    if (st == INFERSCALE_OK) __atomic_store_n(&is->embedder, e, __ATOMIC_RELEASE);
    return st;
}

is_status is_handle_embedder(inferscale *is)
{
    load_job job = { .is = is, .patient = true };

    return is_loader_run(&is->embedder_slot.loader, 0, load_embedder, &job);
}

/* An embedder that runs here is waited for. One elsewhere that somebody else is opening is waited for as long as its answer would be. */
static is_status question_embedder(inferscale *is)
{
    const uint32_t wait_ms = is->embedder_wait_ms ? is->embedder_wait_ms : IS_EMBED_WAIT_MS;
    load_job job = { .is = is };
    is_status st = is_loader_run(&is->embedder_slot.loader, is_elsewhere(is) ? wait_ms : 0, load_embedder, &job);

    if (st != INFERSCALE_E_BUSY) return st;
    return is_fail(INFERSCALE_E_ENGINE, "%s has not answered for %u ms; check that the embedder is running", is->embedder_spec, wait_ms);
}

/* May a question ask it now? Of those that come when the delay is over the first may; the others are spared for another delay. */
static is_status may_ask(inferscale *is)
{
    is_embedder_slot *s = &is->embedder_slot;
    const double now = is_now_ms();
    is_status st = INFERSCALE_OK;

    if (!is_elsewhere(is)) return INFERSCALE_OK;
    pthread_mutex_lock(&s->lock);
    if (s->retry_ms > now) {
        s->n_spared++;
        st = is_fail(s->status, "%s (asked again in %.0f s)", s->why, (s->retry_ms - now) / 1000);
    } else if (s->retry_ms > 0) {
        s->retry_ms = now + s->delay_ms;
        s->trying = true;
    }
    pthread_mutex_unlock(&s->lock);
    return st;
}

/* Questions that were under way together fail together, and count as one failure. */
static void note_failure(inferscale *is, is_status st)
{
    is_embedder_slot *s = &is->embedder_slot;
    uint32_t delay_ms = 0;
    char why[256];

    if (!is_elsewhere(is) || (st != INFERSCALE_E_ENGINE && st != INFERSCALE_E_DENIED)) return;
    snprintf(why, sizeof why, "%.200s", is_error());
    pthread_mutex_lock(&s->lock);
    s->n_failed++;
    if (s->trying || s->retry_ms == 0) {
        delay_ms = s->delay_ms ? 2 * s->delay_ms : DELAY_MS;
        if (delay_ms > DELAY_MOST_MS) delay_ms = DELAY_MOST_MS;
        s->delay_ms = delay_ms;
        s->retry_ms = is_now_ms() + delay_ms;
        s->trying = false;
        s->status = st;
        memcpy(s->why, why, sizeof s->why);
    }
    pthread_mutex_unlock(&s->lock);
    if (delay_ms) is_log(IS_LOG_WARN, "questions are searched by words only for %u s: %s", delay_ms / 1000, why);
}

void is_handle_embedder_well(inferscale *is)
{
    is_embedder_slot *s = &is->embedder_slot;
    bool was_away;

    if (!is_elsewhere(is)) return;
    pthread_mutex_lock(&s->lock);
    was_away = s->retry_ms > 0;
    s->retry_ms = 0;
    s->delay_ms = 0;
    s->trying = false;
    pthread_mutex_unlock(&s->lock);
    if (was_away) is_log(IS_LOG_INFO, "the embedder %s answers again", is->embedder_spec);
}

bool is_handle_embedder_state(inferscale *is, uint64_t *n_failed, uint64_t *n_spared)
{
    is_embedder_slot *s = &is->embedder_slot;
    bool well;

    pthread_mutex_lock(&s->lock);
    well = s->retry_ms == 0;
    *n_failed = s->n_failed;
    *n_spared = s->n_spared;
    pthread_mutex_unlock(&s->lock);
    return well;
}

/* Opening the embedder, too. */
static is_status question_vectors(inferscale *is, const char *const *texts, size_t n, const volatile int *cancel, float **out)
{
    float *v;
    is_status st;

    IS_TRY(question_embedder(is));
    v = is_malloc(n * is_embedder_dim(is->embedder) * sizeof *v);
    st = v ? is_embedder_embed_until(is->embedder, texts, n, v, cancel) : is_fail(INFERSCALE_E_NOMEM, "out of memory for a vector");
    if (st == INFERSCALE_OK) *out = v;
    else is_free(v);
    return st;
}

is_status is_handle_question_vectors(inferscale *is, const char *const *texts, size_t n, const volatile int *cancel, float **out)
{
    is_status st;

    *out = NULL;
    IS_TRY(may_ask(is));
    if (is_elsewhere(is)) is_outside_begin();
    st = question_vectors(is, texts, n, cancel, out);
    if (is_elsewhere(is)) is_outside_end();
    if (st == INFERSCALE_OK) is_handle_embedder_well(is);
    else note_failure(is, st);
    return st;
}

/* ---- What is loaded ------------------------------------------------------------------------------------------------------ */

const is_profile *is_handle_profile(inferscale *is)
{
    return __atomic_load_n(&is->profile, __ATOMIC_ACQUIRE);
}

is_engine *is_handle_engine_if_loaded(inferscale *is)
{
    return is_handle_profile(is) ? is->engine : NULL;
}

is_embedder *is_handle_embedder_if_loaded(inferscale *is)
{
    return __atomic_load_n(&is->embedder, __ATOMIC_ACQUIRE);
}

