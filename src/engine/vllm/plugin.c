/* plugin.c - the plug-in's table. */
#include "engine/vllm/internal.h"

#include "engine/entry.h"

const is_engine_vtable is_vllm_engine = {
    .name = "vllm",
    .open = vllm_open,
    .close = vllm_close,
    .info = vllm_info,
    .geometry = vllm_geometry,
    .chat_format = vllm_chat,
    .tokenize = vllm_tokenize,
    .tokens_free = vllm_tokens_free,
    .token_piece = vllm_token_piece,
    .is_eog = vllm_is_eog,
    .capture = vllm_capture,
    .begin = vllm_begin,
    .more = vllm_more,
    .token = vllm_token_fed,
    .left = vllm_left,
    .undo = vllm_undo,
    .finish = vllm_finish_run,
    .stats = vllm_stats,
    .sample = vllm_sample,
    .logits = vllm_logits,
    .likely = vllm_likely,
    .run_tokens = vllm_run_tokens,
    .revoke = vllm_revoke,
    .rest = vllm_rest,
    .upstreams = vllm_upstreams,
    .worker_secret = vllm_worker_secret,
    .worker_rows = vllm_worker_rows,
};

const is_plugin *inferscale_plugin(const is_host *host)
{
    static const is_plugin plugin = { .abi = IS_ENGINE_ABI, .name = "vllm", .version = INFERSCALE_VERSION, .engine = &is_vllm_engine };

    return is_plugin_enter(host) ? &plugin : NULL;
}
