/* demo_text.c - text is timed with its own best setting: a model is loaded with the flash attention
 * that is faster for injected memory, which may slow text down. So text is tried on a second handle
 * that reads the same store, with the other setting. */
#include <string.h>

#include "cli/demo.h"

enum { TRIALS = 2 };

/* The shortest time to the first token of text, after one that warms up. */
static inferscale_status try_text(const demo_text *t, inferscale *is, double *ms)
{
    inferscale_ask_options o = INFERSCALE_ASK_OPTIONS_INIT;

    o.mode = INFERSCALE_MODE_TEXT;
    o.k = (uint32_t)t->k;
    o.max_tokens = 1;
    o.cancel = cli_interrupt();
    *ms = 0;
    for (int i = 0; i <= TRIALS; i++) {
        inferscale_answer *answer = NULL;
        inferscale_status st = inferscale_ask(is, t->scope, t->question, &o, &answer);

        if (st != INFERSCALE_OK) return st;
        if (i == 1 || (i > 1 && answer->ttft_ms < *ms)) *ms = answer->ttft_ms;
        inferscale_answer_free(answer);
    }
    return INFERSCALE_OK;
}

static inferscale_status open_other(demo_text *t, const inferscale_options *store, const char *home,
                                    bool fa)
{
    inferscale_options o = *store;

    o.home = home;
    o.read_only = 1;
    o.start_empty = 0;
    o.flash_attention = fa ? INFERSCALE_FA_ON : INFERSCALE_FA_OFF;
    return inferscale_open(&t->own, &o);
}

inferscale_status demo_text_open(inferscale *is, const inferscale_options *store, const char *home,
                                 demo_text *t)
{
    const bool remote = store->engine && strcmp(store->engine, "vllm") == 0;
    inferscale_model_info info;
    double ms[2] = { 0, 0 };
    inferscale_status st = inferscale_model(is, &info);

    t->is = is;
    if (st != INFERSCALE_OK) return st;
    t->kv_fa = t->fa = info.flash_attention;
    if (remote || store->flash_attention != INFERSCALE_FA_AUTO) return INFERSCALE_OK;
    st = open_other(t, store, home, !t->kv_fa);
    if (st == INFERSCALE_OK) st = inferscale_model(t->own, &info);
    if (st == INFERSCALE_OK && !info.flash_attention == !t->kv_fa) return st; /* it has no other */
    if (st == INFERSCALE_OK) st = try_text(t, is, &ms[t->kv_fa]);
    if (st == INFERSCALE_OK) st = try_text(t, t->own, &ms[!t->kv_fa]);
    if (st != INFERSCALE_OK) return st;
    t->tried = true;
    if (ms[!t->kv_fa] >= ms[t->kv_fa]) return INFERSCALE_OK;
    t->is = t->own;
    t->fa = !t->kv_fa;
    return INFERSCALE_OK;
}

void demo_text_close(demo_text *t)
{
    inferscale_close(t->own);
    t->own = t->is = NULL;
}
