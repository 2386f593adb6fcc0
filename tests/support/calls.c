#include "support/calls.h"

#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "support/calls_kv.h"

static const char *const base_texts[CALLS_FACTS] = { "Anna keeps bees in Graz.", "Anna plays the cello.", "Anna was born in May." };

#define MUST(expr)                                                                                                             \
    do {                                                                                                                       \
        if ((expr) != INFERSCALE_OK) fail_msg("%s: %s", #expr, inferscale_error());                                            \
    } while (0)

/* ---- The store ----------------------------------------------------------------------------------------------------------- */

inferscale_status calls_open(calls *c)
{
    inferscale_options o = INFERSCALE_OPTIONS_INIT;

    o.home = c->home;
    o.engine = "mock";
    o.plugin_dir = c->plugins;
    o.policy = "facts:2";
    return inferscale_open(&c->is, &o);
}

static void reopen(calls *c)
{
    inferscale_close(c->is);
    c->is = NULL;
    MUST(calls_open(c));
}

static _Thread_local char *found_segment;

static int find_segment(const char *path, const struct stat *s, int type, struct FTW *ftw)
{
    size_t n = strlen(path);

    (void)s;
    (void)ftw;
    if (type != FTW_F || n < 5 || strcmp(path + n - 4, ".seg")) return 0;
    snprintf(found_segment, sizeof((calls *)0)->segment, "%s", path);
    return 1;
}

void calls_begin(calls *c, const char *folder, const char *plugins)
{
    inferscale_fact f[CALLS_FACTS] = { { 0 } };
    inferscale_event e[CALLS_FACTS];
    inferscale_turn t[2] = { { .text = "Where do you keep your bees?" }, { .text = "On the roof, in Graz.", .speaker = "anna" } };
    int64_t ids[2];

    memset(c, 0, sizeof *c);
    c->base = (inferscale_scope){ .user = "anna" };
    c->own = (inferscale_scope){ .user = "loop" };
    snprintf(c->plugins, sizeof c->plugins, "%s", plugins);
    snprintf(c->home, sizeof c->home, "%s/store", folder);
    snprintf(c->spare, sizeof c->spare, "%s/spare", folder);
    MUST(calls_open(c));
    for (int i = 0; i < CALLS_FACTS; i++) f[i] = (inferscale_fact){ .text = base_texts[i], .event_time = 1714521600 + i };
    MUST(inferscale_remember(c->is, &c->base, f, CALLS_FACTS, e));
    MUST(inferscale_add_turns(c->is, &c->base, t, 2, ids));
    MUST(inferscale_encode(c->is, &c->base, NULL));
    for (int i = 0; i < CALLS_FACTS; i++) c->facts[i] = e[i].id;
    c->turn = ids[1];
    found_segment = c->segment;
    assert_int_equal(nftw(c->home, find_segment, 16, FTW_PHYS), 1);
}

void calls_end(calls *c)
{
    inferscale_close(c->is);
    c->is = NULL;
}

static int remove_one(const char *path, const struct stat *s, int type, struct FTW *ftw)
{
    (void)s;
    (void)type;
    (void)ftw;
    return remove(path);
}

static bool has(const inferscale_list *l, const char *text)
{
    for (size_t i = 0; i < l->n; i++)
        if (!strcmp(l->items[i].text, text)) return true;
    return false;
}

static size_t count_in(calls *c, const inferscale_scope *s, const char *text)
{
    inferscale_list *l = NULL;
    size_t n = 0;

    MUST(inferscale_ls(c->is, s, 0, 0, 0, &l));
    for (size_t i = 0; i < l->n; i++) n += !strcmp(l->items[i].text, text);
    inferscale_list_free(l);
    return n;
}

static void expect_base(calls *c)
{
    inferscale_list *l = NULL;

    MUST(inferscale_ls(c->is, &c->base, 0, 0, 0, &l));
    assert_int_equal(l->n, CALLS_FACTS + 2);
    for (int i = 0; i < CALLS_FACTS; i++) assert_true(has(l, base_texts[i]));
    inferscale_list_free(l);
}

static inferscale_status ask(calls *c, const inferscale_scope *s)
{
    inferscale_ask_options o = INFERSCALE_ASK_OPTIONS_INIT;
    inferscale_answer *a = NULL;
    inferscale_status st;

    o.max_tokens = 12;
    st = inferscale_ask(c->is, s, "Where does Anna keep bees?", &o, &a);
    if (st != INFERSCALE_OK) assert_null(a);
    else assert_true(a->text[0] && a->n_facts > 0 && (a->mode == INFERSCALE_MODE_KV || a->fallback[0]));
    inferscale_answer_free(a);
    return st;
}

void calls_expect_works(calls *c, bool thoroughly)
{
    inferscale_fact f = { .text = "And life goes on." };
    inferscale_list *l = NULL;

    if (!c->is) MUST(calls_open(c));
    expect_base(c);
    nftw(c->spare, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    MUST(inferscale_forget_all(c->is, &c->own, NULL));
    MUST(inferscale_ls(c->is, &c->own, 0, 0, 0, &l));
    assert_int_equal(l->n, 0);
    inferscale_list_free(l);
    if (thoroughly) {
        MUST(inferscale_remember(c->is, &c->own, &f, 1, NULL));
        assert_int_equal(count_in(c, &c->own, f.text), 1);
        MUST(inferscale_encode(c->is, &c->own, NULL));
        MUST(inferscale_encode(c->is, &c->base, NULL));
        MUST(ask(c, &c->own));
        MUST(ask(c, &c->base));
        MUST(inferscale_forget_all(c->is, &c->own, NULL));
    }
    if (c->cold) reopen(c);
    c->cold = false;
}

/* ---- Open, close, load --------------------------------------------------------------------------------------------------- */

static void closed(calls *c)
{
    inferscale_close(c->is);
    c->is = NULL;
}

static void cold(calls *c)
{
    reopen(c);
}

static inferscale_status run_open(calls *c)
{
    inferscale_status st = calls_open(c);

    if (st != INFERSCALE_OK) assert_null(c->is);
    return st;
}

/* On a full disk a store is opened for reading, and says so. */
static void open_to_write(calls *c, inferscale_status st)
{
    (void)st;
    if (*inferscale_notice(c->is)) reopen(c);
}

static void dirty(calls *c) /* a log that is not in the file yet */
{
    inferscale_fact f = { .text = "Something in the log." };

    MUST(inferscale_remember(c->is, &c->own, &f, 1, NULL));
}

static void left_open(calls *c) /* by somebody else, so that the log is there to be read at the next open */
{
    dirty(c);
    c->aside = c->is;
    c->is = NULL;
}

static void other_closed(calls *c, inferscale_status st)
{
    inferscale_close(c->aside);
    c->aside = NULL;
    open_to_write(c, st);
}

static inferscale_status run_close(calls *c)
{
    inferscale_close(c->is);
    c->is = NULL;
    return INFERSCALE_OK;
}

static inferscale_status run_model(calls *c)
{
    inferscale_model_info info;
    inferscale_status st = inferscale_model(c->is, &info);

    if (st == INFERSCALE_OK) assert_true(info.can_inject && info.n_ctx > 0);
    return st;
}

static inferscale_status run_store(calls *c)
{
    inferscale_store_info info;
    inferscale_status st = inferscale_store(c->is, 1, &info);

    if (st == INFERSCALE_OK) assert_true(info.n_facts == CALLS_FACTS && info.sqlite_ok);
    return st;
}

/* ---- Write --------------------------------------------------------------------------------------------------------------- */

static const char *const own_texts[2] = { "The first of two.", "The second of two." };

static inferscale_status remember_two(calls *c)
{
    inferscale_fact f[2] = { { .text = own_texts[0], .metadata = "{\"a\":1}" }, { .text = own_texts[1], .expires = 4102444800 } };
    inferscale_event e[2];
    inferscale_status st = inferscale_remember(c->is, &c->own, f, 2, e);

    for (int i = 0; st == INFERSCALE_OK && i < 2; i++) c->ids[i] = e[i].id;
    return st;
}

static void two_or_none(calls *c, inferscale_status st)
{
    size_t a = count_in(c, &c->own, own_texts[0]), b = count_in(c, &c->own, own_texts[1]);

    assert_true(a == b && a <= 1);
    if (st == INFERSCALE_OK) assert_int_equal(a, 1);
}

static void have_two(calls *c)
{
    MUST(remember_two(c));
}

static void have_two_encoded(calls *c)
{
    have_two(c);
    MUST(inferscale_encode(c->is, &c->own, NULL));
}

static inferscale_status run_turns(calls *c)
{
    inferscale_turn t[2] = { { .text = own_texts[0], .conversation = "talk", .external_id = "x1" }, { .text = own_texts[1], .conversation = "talk" } };

    return inferscale_add_turns(c->is, &c->own, t, 2, c->ids);
}

static inferscale_status run_update(calls *c)
{
    inferscale_fact f = { .text = "The first, changed." };

    return inferscale_update(c->is, &c->own, c->ids[0], &f);
}

static void changed_or_not(calls *c, inferscale_status st)
{
    size_t old = count_in(c, &c->own, own_texts[0]), new = count_in(c, &c->own, "The first, changed.");

    assert_int_equal(old + new, 1);
    if (st == INFERSCALE_OK) assert_int_equal(new, 1);
    assert_int_equal(count_in(c, &c->own, own_texts[1]), 1);
}

/* On failure *n may say what was forgotten before a file would not go. */
static inferscale_status run_forget(calls *c)
{
    size_t n = 9;
    inferscale_status st = inferscale_forget(c->is, &c->own, c->ids, 1, &n);

    if (st == INFERSCALE_OK) assert_int_equal(n, 1);
    else assert_true(n <= 1);
    return st;
}

static void first_gone_or_not(calls *c, inferscale_status st)
{
    if (st == INFERSCALE_OK) assert_int_equal(count_in(c, &c->own, own_texts[0]), 0);
    assert_int_equal(count_in(c, &c->own, own_texts[1]), 1);
    MUST(inferscale_forget(c->is, &c->own, c->ids, 1, NULL)); /* what failed can be done again */
    assert_int_equal(count_in(c, &c->own, own_texts[0]), 0);
}

static inferscale_status run_forget_all(calls *c)
{
    return inferscale_forget_all(c->is, &c->own, NULL);
}

static void both_gone_or_not(calls *c, inferscale_status st)
{
    size_t a = count_in(c, &c->own, own_texts[0]), b = count_in(c, &c->own, own_texts[1]);

    assert_true(a == b && a <= 1);
    if (st == INFERSCALE_OK) assert_int_equal(a, 0);
}

static inferscale_status run_supersede(calls *c)
{
    inferscale_fact f = { .text = "The first, changed." };
    int64_t id = 0;
    inferscale_status st = inferscale_supersede(c->is, &c->own, c->ids[0], &f, &id);

    if (st == INFERSCALE_OK) assert_true(id > 0);
    c->ids[3] = id; /* on failure: 0, or what is there and was not cleaned up after */
    return st;
}

/* Both stay; which one is in force changes wholly or not at all. */
static void superseded_or_not(calls *c, inferscale_status st)
{
    size_t new = count_in(c, &c->own, "The first, changed.");
    inferscale_list *l = NULL;

    assert_int_equal(count_in(c, &c->own, own_texts[0]), 1);
    MUST(inferscale_show(c->is, &c->own, c->ids[0], &l));
    assert_true(new <= 1 && (l->items[l->n - 1].superseded_by != 0) == (new == 1));
    inferscale_list_free(l);
    if (st == INFERSCALE_OK || c->ids[3]) assert_int_equal(new, 1);
}

static inferscale_status run_pin(calls *c)
{
    return inferscale_pin(c->is, &c->own, c->ids[0], 1);
}

static void pinned_or_not(calls *c, inferscale_status st)
{
    inferscale_list *l = NULL;

    MUST(inferscale_show(c->is, &c->own, c->ids[0], &l));
    if (st == INFERSCALE_OK) assert_int_equal(l->items[l->n - 1].pinned, 1);
    inferscale_list_free(l);
}

static inferscale_status run_forget_with(calls *c)
{
    inferscale_forget_options o = INFERSCALE_FORGET_OPTIONS_INIT;
    inferscale_forget_report r;
    inferscale_status st;

    o.prove = 1;
    o.wait_ms = 200;
    st = inferscale_forget_with(c->is, &c->own, c->ids, 1, &o, &r);
    if (st == INFERSCALE_OK) assert_true(r.forgotten == 1 && r.proven && r.traces == 0);
    return st;
}

/* ---- Find ---------------------------------------------------------------------------------------------------------------- */

static inferscale_status run_recall(calls *c)
{
    inferscale_recall_options o = INFERSCALE_RECALL_OPTIONS_INIT;
    inferscale_list *l = NULL;
    inferscale_status st;

    o.k = 2;
    o.metadata = "{}";
    st = inferscale_recall(c->is, &c->base, "Who keeps bees?", &o, &l);
    if (st != INFERSCALE_OK) assert_null(l);
    else assert_string_equal(l->items[0].text, base_texts[0]);
    inferscale_list_free(l);
    return st;
}

static inferscale_status run_ls(calls *c)
{
    inferscale_list *l = NULL;
    inferscale_status st = inferscale_ls(c->is, &c->base, 0, 0, 0, &l);

    if (st != INFERSCALE_OK) assert_null(l);
    else assert_int_equal(l->n, CALLS_FACTS + 2);
    inferscale_list_free(l);
    return st;
}

static inferscale_status run_show(calls *c)
{
    inferscale_list *l = NULL;
    inferscale_status st = inferscale_show(c->is, &c->base, c->facts[1], &l);

    if (st != INFERSCALE_OK) assert_null(l);
    else assert_true(l->n == 1 && !strcmp(l->items[0].text, base_texts[1]));
    inferscale_list_free(l);
    return st;
}

static inferscale_status run_whose(calls *c)
{
    inferscale_owner o;
    inferscale_status st = inferscale_whose(c->is, c->facts[1], &o);

    if (st != INFERSCALE_OK) assert_true(!*o.user && !*o.tenant);
    else assert_true(!strcmp(o.user, "anna") && !*o.tenant && !*o.agent && !*o.run && !*o.app);
    return st;
}

/* ---- Encode, ask --------------------------------------------------------------------------------------------------------- */

static inferscale_status run_encode(calls *c)
{
    return inferscale_encode(c->is, &c->own, NULL);
}

static void encoded_or_not(calls *c, inferscale_status st)
{
    inferscale_list *l = NULL;

    if (st != INFERSCALE_OK) MUST(inferscale_encode(c->is, &c->own, NULL));
    MUST(inferscale_ls(c->is, &c->own, INFERSCALE_FACTS, 0, 0, &l));
    assert_int_equal(l->n, 2);
    for (size_t i = 0; i < 2; i++) assert_true(l->items[i].kv_ready);
    inferscale_list_free(l);
}

static inferscale_status run_encode_status(calls *c)
{
    inferscale_encoder_state s = INFERSCALE_ENCODER_STATE_INIT;
    inferscale_status st = inferscale_encode_status(c->is, &c->own, &s);

    if (st == INFERSCALE_OK) assert_int_equal(s.n_unencoded, 2);
    return st;
}

static inferscale_status run_encode_wait(calls *c) /* no background encoder in this handle: says so, whatever fails */
{
    return inferscale_encode_wait(c->is, &c->base, 0) == INFERSCALE_OK ? INFERSCALE_E_INTERNAL : INFERSCALE_OK;
}

static inferscale_status run_ask(calls *c)
{
    return ask(c, &c->base);
}

static inferscale_status run_ask_text(calls *c)
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

static inferscale_status run_dry(calls *c)
{
    inferscale_preview *p = NULL;
    inferscale_status st = inferscale_dry_run(c->is, &c->base, "Where does Anna keep bees?", NULL, &p);

    assert_true((st == INFERSCALE_OK) == (p != NULL));
    inferscale_preview_free(p);
    return st;
}

static inferscale_status run_chat_open(calls *c)
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

static void have_chat(calls *c)
{
    MUST(inferscale_chat_open(c->is, &c->base, &c->chat));
}

static void have_talked(calls *c)
{
    have_chat(c);
    MUST(say(c, "Where are the bees?"));
}

static inferscale_status run_say(calls *c)
{
    return say(c, "What does Anna play?");
}

static void talk_on(calls *c, inferscale_status st)
{
    (void)st;
    MUST(say(c, "And when was she born?")); /* whatever happened, the conversation can go on */
    inferscale_chat_close(c->chat);
    c->chat = NULL;
}

static inferscale_status run_chat_close(calls *c)
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

static void have_conversed(calls *c)
{
    MUST(converse(c, 1));
}

static inferscale_status run_complete(calls *c)
{
    return converse(c, 1);
}

static inferscale_status run_complete_second(calls *c)
{
    return converse(c, 3);
}

static void converse_on(calls *c, inferscale_status st)
{
    (void)st;
    MUST(converse(c, 3));
}

static inferscale_status run_tokenize(calls *c)
{
    int32_t *ids = NULL;
    size_t n = 0;
    inferscale_status st = inferscale_tokenize(c->is, "Where are the bees?", &ids, &n);

    assert_true((st == INFERSCALE_OK) == (ids != NULL) && (st == INFERSCALE_OK) == (n > 0));
    inferscale_tokens_free(ids);
    return st;
}

static inferscale_status run_embed(calls *c)
{
    const char *const texts[] = { "bees", "a cello" };
    float *vectors = NULL;
    uint32_t dim = 0;
    inferscale_status st = inferscale_embed(c->is, texts, 2, &vectors, &dim);

    assert_true((st == INFERSCALE_OK) == (vectors != NULL) && (st == INFERSCALE_OK) == (dim > 0));
    inferscale_vectors_free(vectors);
    return st;
}

static inferscale_status run_embed_whole(calls *c)
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

/* ---- Segments ------------------------------------------------------------------------------------------------------------ */

static void close_segment(calls *c, inferscale_status st)
{
    if (st != INFERSCALE_OK) assert_null(c->seg);
    inferscale_segment_close(c->seg);
    c->seg = NULL;
}

static void have_segment(calls *c)
{
    MUST(inferscale_segment_open(c->segment, &c->seg));
}

static inferscale_status run_segment_open(calls *c)
{
    return inferscale_segment_open(c->segment, &c->seg);
}

static inferscale_status run_segment_read(calls *c)
{
    inferscale_plane p;
    float *rows;
    uint32_t n = inferscale_segment_tokens(c->seg);
    inferscale_status st;

    if (inferscale_segment_plane(c->seg, 0, &p) != INFERSCALE_OK || !inferscale_segment_token_ids(c->seg)) return INFERSCALE_E_INTERNAL;
    rows = calloc((size_t)n * p.n_heads * p.head_dim, sizeof *rows);
    if (!rows) abort();
    st = inferscale_segment_read(c->seg, 0, 0, n, 0, p.n_heads, 5, INFERSCALE_F32, rows, (size_t)p.n_heads * p.head_dim, p.head_dim);
    free(rows);
    return st;
}

static void drop_segment(calls *c, inferscale_status st)
{
    (void)st;
    close_segment(c, INFERSCALE_OK);
}

/* ---- Looking after a store ----------------------------------------------------------------------------------------------- */

static inferscale_status run_fsck(calls *c)
{
    inferscale_fsck_report *r = NULL;
    inferscale_status st = inferscale_fsck(c->is, NULL, &r);

    if (st != INFERSCALE_OK) assert_null(r);
    else assert_true(r->n_segments >= CALLS_FACTS);
    inferscale_fsck_free(r);
    return st;
}

static inferscale_status run_repair(calls *c)
{
    inferscale_fsck_options o = INFERSCALE_FSCK_OPTIONS_INIT;
    inferscale_fsck_report *r = NULL;
    inferscale_status st;

    o.repair = 1;
    st = inferscale_fsck(c->is, &o, &r);
    if (st != INFERSCALE_OK) assert_null(r);
    inferscale_fsck_free(r);
    return st;
}

/* A repair under faults may give up segments that could not be read, never what is remembered; then they are made again. */
static void sound(calls *c, inferscale_status st)
{
    inferscale_fsck_report *r = NULL;

    (void)st;
    MUST(inferscale_encode(c->is, &c->base, NULL));
    MUST(inferscale_fsck(c->is, NULL, &r));
    if (!r->ok) fail_msg("fsck: %s: %s", r->problems[0].kind, r->problems[0].what);
    inferscale_fsck_free(r);
}

static inferscale_status run_gc(calls *c)
{
    inferscale_gc_options o = INFERSCALE_GC_OPTIONS_INIT;

    o.compact = 1;
    o.max_bytes = UINT64_C(1) << 30;
    return inferscale_gc(c->is, &o);
}

static inferscale_status run_backup(calls *c)
{
    return inferscale_backup(c->is, c->spare, NULL);
}

/* A backup that failed can be done again in the same folder, and what it then says is whole is whole. */
static void backup_is_whole(calls *c, inferscale_status st)
{
    inferscale_restore_options o = INFERSCALE_RESTORE_OPTIONS_INIT;

    o.verify_only = 1;
    /* one that failed last of all, as its name was synced, is whole already, and is not written over */
    if (st != INFERSCALE_OK && inferscale_restore(c->spare, NULL, &o) != INFERSCALE_OK) MUST(inferscale_backup(c->is, c->spare, NULL));
    MUST(inferscale_restore(c->spare, NULL, &o));
    assert_int_equal(o.bad_files, 0);
}

static void have_backup(calls *c)
{
    MUST(inferscale_backup(c->is, c->spare, NULL));
}

static const char *restored(const calls *c)
{
    static char path[700];

    snprintf(path, sizeof path, "%s-restored", c->spare);
    return path;
}

static inferscale_status run_restore(calls *c)
{
    return inferscale_restore(c->spare, restored(c), NULL);
}

/* Whole, or refused and possible once what it left is gone. */
static void restored_or_not(calls *c, inferscale_status st)
{
    inferscale_options o = INFERSCALE_OPTIONS_INIT;
    inferscale *other = NULL;
    inferscale_list *l = NULL;

    if (st != INFERSCALE_OK) {
        nftw(restored(c), remove_one, 16, FTW_DEPTH | FTW_PHYS);
        MUST(inferscale_restore(c->spare, restored(c), NULL));
    }
    o.home = restored(c);
    o.engine = "mock";
    o.plugin_dir = c->plugins;
    MUST(inferscale_open(&other, &o));
    MUST(inferscale_ls(other, &c->base, 0, 0, 0, &l));
    assert_int_equal(l->n, CALLS_FACTS + 2);
    inferscale_list_free(l);
    inferscale_close(other);
    nftw(restored(c), remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static inferscale_status run_usage(calls *c)
{
    inferscale_usage_report *r = NULL;
    inferscale_status st = inferscale_usage(c->is, NULL, &r);

    if (st != INFERSCALE_OK) assert_null(r);
    else assert_true(r->n > 0 && r->vault_files >= CALLS_FACTS);
    inferscale_usage_free(r);
    return st;
}

static inferscale_status run_rebuild(calls *c)
{
    return inferscale_rebuild(c->is, &c->own, NULL);
}

/* ---- The table ----------------------------------------------------------------------------------------------------------- */

#define CALL(name) "inferscale_" #name

const call_case call_cases[] = {
    { CALL(open), "", closed, run_open, open_to_write },
    { CALL(open), " of a store with a log", left_open, run_open, other_closed },
    { CALL(close), "", dirty, run_close, NULL },
    { CALL(model), "", cold, run_model, NULL },
    { CALL(store), "", NULL, run_store, NULL },
    { CALL(remember), "", NULL, remember_two, two_or_none },
    { CALL(add_turns), "", NULL, run_turns, two_or_none },
    { CALL(update), "", have_two_encoded, run_update, changed_or_not },
    { CALL(forget), "", have_two_encoded, run_forget, first_gone_or_not },
    { CALL(forget_all), "", have_two_encoded, run_forget_all, both_gone_or_not },
    { CALL(supersede), "", have_two_encoded, run_supersede, superseded_or_not },
    { CALL(pin), "", have_two, run_pin, pinned_or_not },
    { CALL(forget_with), " and prove", have_two_encoded, run_forget_with, first_gone_or_not },
    { CALL(recall), "", NULL, run_recall, NULL },
    { CALL(recall), " on a cold handle", cold, run_recall, NULL },
    { CALL(ls), "", NULL, run_ls, NULL },
    { CALL(show), "", NULL, run_show, NULL },
    { CALL(whose), "", NULL, run_whose, NULL },
    { CALL(encode), "", have_two, run_encode, encoded_or_not },
    { CALL(encode_status), "", have_two, run_encode_status, NULL },
    { CALL(encode_wait), "", NULL, run_encode_wait, NULL },
    { CALL(ask), "", NULL, run_ask, NULL },
    { CALL(ask), " on a cold handle", cold, run_ask, NULL },
    { CALL(ask), " from text", NULL, run_ask_text, NULL },
    { CALL(dry_run), "", NULL, run_dry, NULL },
    { CALL(chat_open), "", NULL, run_chat_open, NULL },
    { CALL(chat_say), "", have_chat, run_say, talk_on },
    { CALL(chat_say), " for the second time", have_talked, run_say, talk_on },
    { CALL(chat_close), "", have_talked, run_chat_close, NULL },
    { CALL(complete), "", NULL, run_complete, converse_on },
    { CALL(complete), " on a cold handle", cold, run_complete, NULL },
    { CALL(complete), " for the second turn", have_conversed, run_complete_second, converse_on },
    { CALL(tokenize), "", NULL, run_tokenize, NULL },
    { CALL(embed), "", NULL, run_embed, NULL },
    { CALL(embed_whole), "", NULL, run_embed_whole, NULL },
    { CALL(embed), " on a cold handle", cold, run_embed, NULL },
    { CALL(segment_open), "", NULL, run_segment_open, close_segment },
    { CALL(segment_plane), "", have_segment, run_segment_read, drop_segment },
    { CALL(segment_read), "", have_segment, run_segment_read, drop_segment },
    { CALL(kv_open), "", NULL, calls_run_kv_open, calls_close_kv },
    { CALL(kv_geometry), "", calls_have_kv, calls_run_kv_geometry, calls_close_kv },
    { CALL(kv_match), "", calls_have_kv, calls_run_kv_match, calls_close_kv },
    { CALL(kv_write), "", calls_have_kv, calls_run_kv_write, calls_kv_written_or_not },
    { CALL(kv_write), " over another", calls_have_kv_file, calls_run_kv_write, calls_kv_written_or_not },
    { CALL(kv_check), "", calls_have_kv_file, calls_run_kv_check, calls_close_kv },
    { CALL(kv_load_open), "", calls_have_kv_file, calls_run_kv_load_open, calls_close_kv },
    { CALL(kv_load_open), " from memory", calls_have_kv_load, calls_run_kv_load_open_again, calls_close_kv },
    { CALL(kv_load_read), "", calls_have_kv_load, calls_run_kv_load_read, calls_close_kv },
    { CALL(ticket_write), "", NULL, calls_run_ticket_write, calls_close_kv },
    { CALL(ticket_read), "", calls_have_ticket, calls_run_ticket_read, calls_close_kv },
    { CALL(fsck), "", NULL, run_fsck, sound },
    { CALL(fsck), " with repair", NULL, run_repair, sound },
    { CALL(gc), "", have_two_encoded, run_gc, sound },
    { CALL(backup), "", NULL, run_backup, backup_is_whole },
    { CALL(restore), "", have_backup, run_restore, restored_or_not },
    { CALL(usage), "", NULL, run_usage, NULL },
    { CALL(rebuild), "", have_two_encoded, run_rebuild, encoded_or_not },
};
const size_t n_call_cases = sizeof call_cases / sizeof *call_cases;

const char *const calls_cannot_fail[] = {
    CALL(answer_free), CALL(error), CALL(fallback_name), CALL(fsck_free), CALL(hash), CALL(kv_close), CALL(kv_load_close),
    CALL(list_free), CALL(notice), CALL(preview_free), CALL(segment_close), CALL(segment_planes), CALL(segment_token_ids), CALL(segment_tokens),
    CALL(status_meaning), CALL(status_name), CALL(ticket_free), CALL(ticket_text_free), CALL(usage_free),
    CALL(stop_loading), CALL(tokens_free), CALL(vectors_free), CALL(version), NULL,
};
