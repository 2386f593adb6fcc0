/* fuzz_chat.c - the requests of /v1/chat/completions and /v1/completions: any JSON is a request within its bounds, or one fault that
 * names a parameter. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/openai.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(int holds, const char *what)
{
    if (holds) return;
    fprintf(stderr, "does not hold: %s\n", what);
    abort();
}

/* What the library demands of a conversation. */
static void check_messages(const is_oa_ask *a)
{
    size_t i = 0;

    while (i < a->n_messages && strcmp(a->messages[i].role, "system") == 0) i++;
    check(i <= 1, "one system text at most");
    for (size_t turn = 0; i < a->n_messages; i++, turn++) {
        check(strcmp(a->messages[i].role, turn % 2 ? "assistant" : "user") == 0, "user and assistant by turns");
        check(*a->messages[i].content != '\0', "no message is empty");
    }
    check(a->n_messages > 0 && strcmp(a->messages[a->n_messages - 1].role, "user") == 0, "the user has the last word");
}

static void check_ask(const is_oa_ask *a)
{
    const inferscale_complete_options *o = &a->o;

    if (a->form == IS_OA_CHAT) check_messages(a);
    else check(a->n_prompts > 0 && a->n_prompts <= IS_OA_PROMPTS, "there are prompts");
    check(a->n >= 1 && a->n <= IS_OA_N_MAX, "1 to 8 answers");
    check(o->ask.temperature >= 0 && o->ask.temperature <= 2, "temperature");
    check(o->ask.top_p > 0 && o->ask.top_p <= 1 && o->ask.min_p >= 0 && o->ask.min_p <= 1, "top_p, min_p");
    check(o->ask.k >= 1 && o->ask.k <= 1000 && o->n_ids <= 1000, "k, ids");
    check(o->n_stop <= 16 && o->n_bias <= 1024 && o->top_logprobs <= 20, "lists are bounded");
    for (size_t i = 0; i < o->n_stop; i++) check(*o->stop[i] && strlen(o->stop[i]) <= 256, "stop strings");
    for (size_t i = 0; i < o->n_bias; i++) check(o->bias[i].token >= 0 && o->bias[i].token < 1000, "biased tokens");
    for (size_t i = 0; i < o->n_ids; i++) check(o->ids[i] > 0, "ids");
    check(a->call == IS_OA_CALL_NONE || (o->grammar && a->n_tools && a->tools_text), "a forced call has its grammar");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const is_oa_known known = { .k = 10, .n_vocab = 1000, .mode = INFERSCALE_MODE_KV };
    json_t *body = json_loadb((const char *)data, size, JSON_REJECT_DUPLICATES, NULL);

    for (int form = IS_OA_CHAT; json_is_object(body) && form <= IS_OA_TEXT; form++) {
        is_oa_ask a;
        is_oa_fault f;

        if (is_oa_parse(form, body, &known, &a, &f)) check_ask(&a);
        else check(f.status == 400 && *f.message && f.type, "a fault says what is wrong");
        is_oa_ask_free(&a);
    }
    json_decref(body);
    return 0;
}
