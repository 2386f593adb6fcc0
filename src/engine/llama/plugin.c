/* plugin.c - the plug-in's table, and the way out for libllama's log lines. */
#include "engine/llama/internal.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "engine/entry.h"

extern const is_embedder_vtable is_llama_embedder; /* embedder.c */

static _Thread_local char last_error[512];  /* the last error libllama logged in this thread */
static _Thread_local char pending[1024];    /* a line that is not complete yet */
static _Thread_local int pending_level;
static _Thread_local bool (*called_off)(void *); /* what this thread computes is to end: then libllama's errors are no news */
static _Thread_local void *called_off_ctx;

void is_llama_fatal(const char *why)
{
    is_log(IS_LOG_ERROR, "libllama ends the process: %s", why);
}

const char *is_llama_last_error(void) { return last_error; }
void is_llama_clear_error(void) { last_error[0] = 0; }

void is_llama_computes(bool (*off)(void *ctx), void *ctx)
{
    called_off = off;
    called_off_ctx = ctx;
}

/* libllama's lines are written for its developers: its errors are warnings to us (the failing call says what matters), and all
 * else is for debugging; so is what it says, as errors, of work that was called off, as background work is for each question. */
static void take_line(int level, const char *line)
{
    if (!*line) return;
    if (level == GGML_LOG_LEVEL_ERROR) {
        snprintf(last_error, sizeof last_error, "%s", line);
        is_log(called_off && called_off(called_off_ctx) ? IS_LOG_DEBUG : IS_LOG_WARN, "libllama: %s", line);
    } else {
        is_log(IS_LOG_DEBUG, "libllama: %s", line);
    }
}

/* Text comes in pieces; a line ends with a newline. */
static void on_llama_log(enum ggml_log_level level, const char *text, void *user)
{
    size_t len = strlen(pending);

    (void)user;
    if (level != GGML_LOG_LEVEL_CONT) pending_level = level;
    for (; *text; text++) {
        if (*text == '\n' || len + 2 > sizeof pending) {
            pending[len] = 0;
            take_line(pending_level, pending);
            len = 0;
        }
        if (*text != '\n') pending[len++] = *text;
    }
    pending[len] = 0;
}

const is_engine_vtable is_llama_engine = {
    .name = "llama",
    .open = is_llama_open,
    .close = is_llama_close,
    .info = is_llama_info,
    .geometry = is_llama_geometry,
    .chat_format = is_llama_chat,
    .tokenize = is_llama_tokenize,
    .tokens_free = is_llama_tokens_free,
    .token_piece = is_llama_piece,
    .is_eog = is_llama_is_eog,
    .capture = is_llama_capture,
    .begin = is_llama_begin,
    .more = is_llama_more,
    .token = is_llama_token,
    .left = is_llama_left,
    .step = is_llama_step,
    .undo = is_llama_undo,
    .stats = is_llama_stats,
    .sample = is_llama_sample,
    .logits = is_llama_logits,
    .run_tokens = is_llama_run_tokens,
    .finish = is_llama_finish,
};

const is_plugin *inferscale_plugin(const is_host *host)
{
    static is_plugin plugin = { .abi = IS_ENGINE_ABI, .name = "llama", .engine = &is_llama_engine };

    if (!is_plugin_enter(host)) return NULL;
    llama_log_set(on_llama_log, NULL);
    ggml_log_set(on_llama_log, NULL);
    is_shim_catch_aborts();
    llama_backend_init();
    plugin.version = llama_version();
    plugin.embedder = &is_llama_embedder;
    return &plugin;
}
