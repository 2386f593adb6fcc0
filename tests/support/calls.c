#include "support/calls.h"

#include <stdio.h>
#include <string.h>

#include "support/calls_cases.h"
#include "support/calls_kv.h"

const char *const calls_base_texts[CALLS_FACTS] = { "Anna keeps bees in Graz.", "Anna plays the cello.", "Anna was born in May." };

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
    for (int i = 0; i < CALLS_FACTS; i++) f[i] = (inferscale_fact){ .text = calls_base_texts[i], .event_time = 1714521600 + i };
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

int calls_remove_one(const char *path, const struct stat *s, int type, struct FTW *ftw)
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

size_t calls_count_in(calls *c, const inferscale_scope *s, const char *text)
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
    for (int i = 0; i < CALLS_FACTS; i++) assert_true(has(l, calls_base_texts[i]));
    inferscale_list_free(l);
}

inferscale_status calls_ask(calls *c, const inferscale_scope *s)
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
    nftw(c->spare, calls_remove_one, 16, FTW_DEPTH | FTW_PHYS);
    MUST(inferscale_forget_all(c->is, &c->own, NULL));
    MUST(inferscale_ls(c->is, &c->own, 0, 0, 0, &l));
    assert_int_equal(l->n, 0);
    inferscale_list_free(l);
    if (thoroughly) {
        MUST(inferscale_remember(c->is, &c->own, &f, 1, NULL));
        assert_int_equal(calls_count_in(c, &c->own, f.text), 1);
        MUST(inferscale_encode(c->is, &c->own, NULL));
        MUST(inferscale_encode(c->is, &c->base, NULL));
        MUST(calls_ask(c, &c->own));
        MUST(calls_ask(c, &c->base));
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

/* ---- The table ----------------------------------------------------------------------------------------------------------- */

#define CALL(name) "inferscale_" #name

const call_case call_cases[] = {
    { CALL(open), "", closed, run_open, open_to_write },
    { CALL(open), " of a store with a log", left_open, run_open, other_closed },
    { CALL(close), "", dirty, run_close, NULL },
    { CALL(model), "", cold, run_model, NULL },
    { CALL(store), "", NULL, run_store, NULL },
    { CALL(remember), "", NULL, calls_remember_two, calls_two_or_none },
    { CALL(add_turns), "", NULL, calls_run_turns, calls_two_or_none },
    { CALL(update), "", calls_have_two_encoded, calls_run_update, calls_changed_or_not },
    { CALL(forget), "", calls_have_two_encoded, calls_run_forget, calls_first_gone_or_not },
    { CALL(forget_all), "", calls_have_two_encoded, calls_run_forget_all, calls_both_gone_or_not },
    { CALL(supersede), "", calls_have_two_encoded, calls_run_supersede, calls_superseded_or_not },
    { CALL(pin), "", calls_have_two, calls_run_pin, calls_pinned_or_not },
    { CALL(forget_with), " and prove", calls_have_two_encoded, calls_run_forget_with, calls_first_gone_or_not },
    { CALL(recall), "", NULL, calls_run_recall, NULL },
    { CALL(recall), " on a cold handle", cold, calls_run_recall, NULL },
    { CALL(ls), "", NULL, calls_run_ls, NULL },
    { CALL(show), "", NULL, calls_run_show, NULL },
    { CALL(whose), "", NULL, calls_run_whose, NULL },
    { CALL(encode), "", calls_have_two, calls_run_encode, calls_encoded_or_not },
    { CALL(encode_status), "", calls_have_two, calls_run_encode_status, NULL },
    { CALL(encode_wait), "", NULL, calls_run_encode_wait, NULL },
    { CALL(ask), "", NULL, calls_run_ask, NULL },
    { CALL(ask), " on a cold handle", cold, calls_run_ask, NULL },
    { CALL(ask), " from text", NULL, calls_run_ask_text, NULL },
    { CALL(dry_run), "", NULL, calls_run_dry, NULL },
    { CALL(chat_open), "", NULL, calls_run_chat_open, NULL },
    { CALL(chat_say), "", calls_have_chat, calls_run_say, calls_talk_on },
    { CALL(chat_say), " for the second time", calls_have_talked, calls_run_say, calls_talk_on },
    { CALL(chat_close), "", calls_have_talked, calls_run_chat_close, NULL },
    { CALL(complete), "", NULL, calls_run_complete, calls_converse_on },
    { CALL(complete), " on a cold handle", cold, calls_run_complete, NULL },
    { CALL(complete), " for the second turn", calls_have_conversed, calls_run_complete_second, calls_converse_on },
    { CALL(tokenize), "", NULL, calls_run_tokenize, NULL },
    { CALL(embed), "", NULL, calls_run_embed, NULL },
    { CALL(embed_whole), "", NULL, calls_run_embed_whole, NULL },
    { CALL(embed), " on a cold handle", cold, calls_run_embed, NULL },
    { CALL(segment_open), "", NULL, calls_run_segment_open, calls_close_segment },
    { CALL(segment_plane), "", calls_have_segment, calls_run_segment_read, calls_drop_segment },
    { CALL(segment_read), "", calls_have_segment, calls_run_segment_read, calls_drop_segment },
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
    { CALL(fsck), "", NULL, calls_run_fsck, calls_sound },
    { CALL(fsck), " with repair", NULL, calls_run_repair, calls_sound },
    { CALL(gc), "", calls_have_two_encoded, calls_run_gc, calls_sound },
    { CALL(backup), "", NULL, calls_run_backup, calls_backup_is_whole },
    { CALL(restore), "", calls_have_backup, calls_run_restore, calls_restored_or_not },
    { CALL(usage), "", NULL, calls_run_usage, NULL },
    { CALL(rebuild), "", calls_have_two_encoded, calls_run_rebuild, calls_encoded_or_not },
};
const size_t n_call_cases = sizeof call_cases / sizeof *call_cases;

const char *const calls_cannot_fail[] = {
    CALL(answer_free), CALL(error), CALL(fallback_name), CALL(fsck_free), CALL(hash), CALL(kv_close), CALL(kv_forget), CALL(kv_load_close),
    CALL(list_free), CALL(notice), CALL(preview_free), CALL(segment_close), CALL(segment_planes), CALL(segment_token_ids), CALL(segment_tokens),
    CALL(status_meaning), CALL(status_name), CALL(ticket_free), CALL(ticket_text_free), CALL(usage_free),
    CALL(stop_loading), CALL(tokens_free), CALL(vectors_free), CALL(version), NULL,
};
