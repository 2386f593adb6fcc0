/* Cases of calls.c: finding, encoding, asking, conversations, tokens and vectors. */
#include "support/calls_cases.h"

#include <stdlib.h>
#include <string.h>

/* ---- Find ---------------------------------------------------------------------------------------------------------------- */

inferscale_status calls_run_recall(calls *c)
{
    inferscale_recall_options o = INFERSCALE_RECALL_OPTIONS_INIT;
    inferscale_list *l = NULL;
    inferscale_status st;

    o.k = 2;
    o.metadata = "{}";
    st = inferscale_recall(c->is, &c->base, "Who keeps bees?", &o, &l);
    if (st != INFERSCALE_OK) assert_null(l);
    else assert_string_equal(l->items[0].text, calls_base_texts[0]);
    inferscale_list_free(l);
    return st;
}

inferscale_status calls_run_ls(calls *c)
{
    inferscale_list *l = NULL;
    inferscale_status st = inferscale_ls(c->is, &c->base, 0, 0, 0, &l);

    if (st != INFERSCALE_OK) assert_null(l);
    else assert_int_equal(l->n, CALLS_FACTS + 2);
    inferscale_list_free(l);
    return st;
}

inferscale_status calls_run_show(calls *c)
{
    inferscale_list *l = NULL;
    inferscale_status st = inferscale_show(c->is, &c->base, c->facts[1], &l);

    if (st != INFERSCALE_OK) assert_null(l);
    else assert_true(l->n == 1 && !strcmp(l->items[0].text, calls_base_texts[1]));
    inferscale_list_free(l);
    return st;
}

inferscale_status calls_run_whose(calls *c)
{
    inferscale_owner o;
    inferscale_status st = inferscale_whose(c->is, c->facts[1], &o);

    if (st != INFERSCALE_OK) assert_true(!*o.user && !*o.tenant);
    else assert_true(!strcmp(o.user, "anna") && !*o.tenant && !*o.agent && !*o.run && !*o.app);
    return st;
}

/* ---- Encode, ask --------------------------------------------------------------------------------------------------------- */

inferscale_status calls_run_encode(calls *c)
{
    return inferscale_encode(c->is, &c->own, NULL);
}

void calls_encoded_or_not(calls *c, inferscale_status st)
{
    inferscale_list *l = NULL;

    if (st != INFERSCALE_OK) MUST(inferscale_encode(c->is, &c->own, NULL));
    MUST(inferscale_ls(c->is, &c->own, INFERSCALE_FACTS, 0, 0, &l));
    assert_int_equal(l->n, 2);
    for (size_t i = 0; i < 2; i++) assert_true(l->items[i].kv_ready);
    inferscale_list_free(l);
}

inferscale_status calls_run_encode_status(calls *c)
{
    inferscale_encoder_state s = INFERSCALE_ENCODER_STATE_INIT;
    inferscale_status st = inferscale_encode_status(c->is, &c->own, &s);

    if (st == INFERSCALE_OK) assert_int_equal(s.n_unencoded, 2);
    return st;
}

inferscale_status calls_run_encode_wait(calls *c) /* no background encoder in this handle: says so, whatever fails */
{
    return inferscale_encode_wait(c->is, &c->base, 0) == INFERSCALE_OK ? INFERSCALE_E_INTERNAL : INFERSCALE_OK;
}

inferscale_status calls_run_ask(calls *c)
{
    return calls_ask(c, &c->base);
}

inferscale_status calls_run_ask_text(calls *c)
{
    inferscale_ask_options o = INFERSCALE_ASK_OPTIONS_INIT;
    inferscale_answer *a = NULL;
    inferscale_status st;

    o.mode = INFERSCALE_MODE_TEXT;
    o.max_tokens = 4;
    o.temperature = 0.7;
    st = inferscale_ask(c->is, &c->base, "Where does Anna keep bees?", &o, &a);
    if (st == INFERSCALE_OK) assert_int_equal(a->tokens_injected, 0);
    inferscale_answer_free(a);
    return st;
}

inferscale_status calls_run_dry(calls *c)
{
    inferscale_preview *p = NULL;
    inferscale_status st = inferscale_dry_run(c->is, &c->base, "Where does Anna keep bees?", NULL, &p);

    assert_true((st == INFERSCALE_OK) == (p != NULL));
    inferscale_preview_free(p);
    return st;
}

inferscale_status calls_run_chat_open(calls *c)
{
    inferscale_chat *chat = NULL;
    inferscale_status st = inferscale_chat_open(c->is, &c->base, &chat);

    if (st != INFERSCALE_OK) assert_null(chat);
    inferscale_chat_close(chat);
    return st;
}

static inferscale_status say(calls *c, const char *text)
{
    inferscale_ask_options o = INFERSCALE_ASK_OPTIONS_INIT;
    inferscale_answer *a = NULL;
    inferscale_status st;

    o.max_tokens = 6;
    o.k = 2;
    st = inferscale_chat_say(c->chat, text, &o, &a);
    if (st != INFERSCALE_OK) assert_null(a);
    inferscale_answer_free(a);
    return st;
}

void calls_have_chat(calls *c)
{
    MUST(inferscale_chat_open(c->is, &c->base, &c->chat));
}

void calls_have_talked(calls *c)
{
    calls_have_chat(c);
    MUST(say(c, "Where are the bees?"));
}

inferscale_status calls_run_say(calls *c)
{
    return say(c, "What does Anna play?");
}

void calls_talk_on(calls *c, inferscale_status st)
{
    (void)st;
    MUST(say(c, "And when was she born?")); /* whatever happened, the conversation can go on */
    inferscale_chat_close(c->chat);
    c->chat = NULL;
}

inferscale_status calls_run_chat_close(calls *c)
{
    inferscale_chat_close(c->chat);
    c->chat = NULL;
    return INFERSCALE_OK;
}

/* A conversation that is sent whole; its second turn goes on where the engine or the bank has the first. */
static inferscale_status converse(calls *c, size_t n)
{
    const inferscale_message m[3] = { { "user", "Where are the bees?" }, { "assistant", "In Graz." }, { "user", "What does Anna play?" } };
    inferscale_complete_options o = INFERSCALE_COMPLETE_OPTIONS_INIT;
    const char *const stop[] = { "no such thing" };
    const inferscale_bias bias = { 100, -1 };
    inferscale_answer *a = NULL;
    inferscale_status st;

    o.ask.max_tokens = 6;
    o.ask.k = 2;
    o.stop = stop;
    o.n_stop = 1;
    o.bias = &bias;
    o.n_bias = 1;
    o.logprobs = 1;
    o.top_logprobs = 2;
    st = inferscale_complete(c->is, &c->base, m, n, &o, &a);
    if (st != INFERSCALE_OK) assert_null(a);
    else assert_true(a->n_facts > 0 && a->n_tokens == 6 && a->tokens[0].n_top == 2 && a->n_placed_kept + a->n_placed_lost == n / 2);
    inferscale_answer_free(a);
    return st;
}

void calls_have_conversed(calls *c)
{
    MUST(converse(c, 1));
}

inferscale_status calls_run_complete(calls *c)
{
    return converse(c, 1);
}

inferscale_status calls_run_complete_second(calls *c)
{
    return converse(c, 3);
}

void calls_converse_on(calls *c, inferscale_status st)
{
    (void)st;
    MUST(converse(c, 3));
}

inferscale_status calls_run_tokenize(calls *c)
{
    int32_t *ids = NULL;
    size_t n = 0;
    inferscale_status st = inferscale_tokenize(c->is, "Where are the bees?", &ids, &n);

    assert_true((st == INFERSCALE_OK) == (ids != NULL) && (st == INFERSCALE_OK) == (n > 0));
    inferscale_tokens_free(ids);
    return st;
}

inferscale_status calls_run_embed(calls *c)
{
    const char *const texts[] = { "bees", "a cello" };
    float *vectors = NULL;
    uint32_t dim = 0;
    inferscale_status st = inferscale_embed(c->is, texts, 2, &vectors, &dim);

    assert_true((st == INFERSCALE_OK) == (vectors != NULL) && (st == INFERSCALE_OK) == (dim > 0));
    inferscale_vectors_free(vectors);
    return st;
}

inferscale_status calls_run_embed_whole(calls *c)
{
    const char *const texts[] = { "bees", "a cello" };
    float *vectors = NULL;
    uint32_t dim = 0;
    uint64_t n_tokens = 0;
    int cut[2] = { 7, 7 };
    inferscale_status st = inferscale_embed_whole(c->is, texts, 2, 1, cut, &vectors, &dim, &n_tokens);

    assert_true((st == INFERSCALE_OK) == (vectors != NULL) && (st == INFERSCALE_OK) == (dim > 0));
    if (st == INFERSCALE_OK) assert_true(n_tokens == 3 && !cut[0] && !cut[1]);
    inferscale_vectors_free(vectors);
    return st;
}
