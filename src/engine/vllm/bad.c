/* bad.c - what servers say of stored rows that they could not use: which, and why. */
#include "engine/vllm/internal.h"

#include <stdio.h>
#include <string.h>

void vllm_bad_take(vllm *e, const json_t *said, is_run_stats *out)
{
    const json_t *list = json_object_get(said, "bad"), *one;
    size_t i;

    json_array_foreach(list, i, one) {
        const char *reason = json_string_value(json_object_get(one, "reason")), *hex = json_string_value(json_object_get(one, "name"));
        uint8_t name[IS_HASH_BYTES];

        if (i == 4 * IS_BAD_MAX) return; /* no more than a prompt's worth from anybody */
        if (!hex || strlen(hex) != 2 * sizeof name || !is_unhex(hex, sizeof name, name)) continue;
        if (json_integer_value(json_object_get(one, "where")) != 0) {
            vllm_heads_doubt(e, name);
        } else if (out && out->n_bad < IS_BAD_MAX) {
            memcpy(out->bad[out->n_bad].name, name, sizeof name);
            snprintf(out->bad[out->n_bad++].reason, sizeof out->bad[0].reason, "%.23s", reason ? reason : "failed");
        }
    }
}

const char *vllm_reason_says(const char *code)
{
    static const struct { const char *code, *says; } known[] = {
        { "unsigned", "the server does not trust this store's tickets" },
        { "expired", "the ticket was too old when the server came to it" },
        { "prompt", "the server had another prompt than the ticket's" },
        { "model", "the server has another model than the rows are of" },
        { "epoch", "this memory was changed meanwhile" },
        { "missing", "a segment was not there for the server" },
        { "torn", "a segment was torn or damaged" },
        { "tokens", "a segment held other tokens" },
        { "fetch", "a segment could not be fetched from the gateway" },
        { "gap", "the server's cache had less of the prompt than the rows continue" },
        { "layout", "the server's layers keep rows in a form that is not known" },
        { "window", "the model's sliding window is kept in a form that is not known" },
        { "mla", "the model's latent rows cannot be injected there" },
        { "failed", "the server failed to load the rows" },
        { "disabled", "injection is switched off on the server" },
    };

    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(code, known[i].code) == 0) return known[i].says;
    return "the server gives a reason that is not known here; its log says more";
}
