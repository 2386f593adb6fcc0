/* The bank: what is written comes back, only to whom it belongs; what is refused says why and changes nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/mem.h"
#include "support/bank_kit.h"

static is_partition fresh(bank_kit *k, is_partition p)
{
    OK(is_bank_partition_refresh(k->bank, &p));
    return p;
}

static size_t count(bank_kit *k, const is_partition *p, int kinds)
{
    inferscale_list *l = NULL;
    size_t n;

    OK(is_bank_list(k->bank, p, NULL, kinds, 0, 0, &l));
    n = l->n;
    inferscale_list_free(l);
    return n;
}

/* ---- Facts --------------------------------------------------------------------------------------------------------------- */

static void test_a_fact_comes_back_whole(void **state)
{
    bank_kit *k = *state;
    inferscale_scope scope = { .user = "anna", .agent = "cook", .run = "r1", .app = "kitchen" };
    int64_t turn = kit_turn(k, &k->pa, &k->anna, "c", "I must not eat peanuts"), now = is_now_epoch();
    inferscale_fact f = { .text = "Anna is allergic to peanuts \xF0\x9F\xA5\x9C.", .event_time = 1683554160, .source_turn = turn,
                          .valid_from = 1600000000, .valid_to = 1900000000, .expires = 2000000000,
                          .metadata = " { \"a\" : [1, 2], \"b\":\"\xC3\xA4\" } " };
    inferscale_event e;
    inferscale_list *l;
    inferscale_item *i;

    OK(is_bank_add_facts(k->bank, &k->pa, &scope, &f, 1, &e));
    bank_kit_reopen(k, false);
    l = kit_get(k, &k->pa, e.id);
    i = &l->items[0];
    assert_string_equal(i->text, f.text);
    assert_int_equal(i->kind, INFERSCALE_FACTS);
    assert_int_equal(i->version, 1);
    assert_int_equal(i->event_time, 1683554160);
    assert_true(i->write_time >= now && i->write_time <= now + 60);
    assert_int_equal(i->valid_from, 1600000000);
    assert_int_equal(i->valid_to, 1900000000);
    assert_int_equal(i->expires, 2000000000);
    assert_int_equal(i->source_turn, turn);
    assert_string_equal(i->metadata, "{\"a\":[1,2],\"b\":\"\xC3\xA4\"}");
    assert_string_equal(i->user, "anna");
    assert_string_equal(i->agent, "cook");
    assert_string_equal(i->run, "r1");
    assert_string_equal(i->app, "kitchen");
    assert_string_equal(i->speaker, "");
    assert_string_equal(i->conversation, "");
    inferscale_list_free(l);
}

static void test_defaults(void **state)
{
    bank_kit *k = *state;
    int64_t now = is_now_epoch();
    inferscale_list *l = kit_get(k, &k->pa, kit_fact(k, &k->pa, &k->anna, "x"));

    assert_true(l->items[0].event_time >= now && l->items[0].event_time <= now + 60);
    assert_int_equal(l->items[0].valid_from, l->items[0].event_time);
    assert_int_equal(l->items[0].valid_to, 0);
    assert_int_equal(l->items[0].expires, 0);
    assert_int_equal(l->items[0].source_turn, 0);
    assert_string_equal(l->items[0].metadata, "{}");
    inferscale_list_free(l);
    l = kit_get(k, &k->pa, kit_turn(k, &k->pa, &k->anna, NULL, "hello"));
    assert_string_equal(l->items[0].conversation, "default");
    assert_string_equal(l->items[0].speaker, "user");
    assert_string_equal(l->items[0].external_id, "");
    assert_true(l->items[0].event_time >= now);
    inferscale_list_free(l);
}

static void test_the_same_text_is_there_once(void **state)
{
    bank_kit *k = *state;
    inferscale_fact batch[] = { { .text = "one" }, { .text = "two" }, { .text = "one" } };
    inferscale_event e[3];
    int64_t revision;

    OK(is_bank_add_facts(k->bank, &k->pa, &k->anna, batch, 3, e));
    assert_int_equal(e[0].event, INFERSCALE_EVENT_ADD);
    assert_int_equal(e[1].event, INFERSCALE_EVENT_ADD);
    assert_int_equal(e[2].event, INFERSCALE_EVENT_NONE);
    assert_int_equal(e[2].id, e[0].id);
    revision = fresh(k, k->pa).revision;
    OK(is_bank_add_facts(k->bank, &k->pa, &k->anna, batch, 3, NULL));
    assert_int_equal(count(k, &k->pa, 0), 2);
    assert_int_equal(fresh(k, k->pa).revision, revision); /* nothing was written */
    kit_fact(k, &k->pb, &k->ben, "one"); /* another owner's is another fact */
    kit_fact(k, &k->pa, &k->anna, "One");
}

/* "Already there" must never lose a write: the fact that is there has to be found by the writer and live as long. */
static void test_the_same_text_is_new_where_it_would_be_lost(void **state)
{
    bank_kit *k = *state;
    inferscale_scope cook = { .user = "anna", .agent = "cook" }, coach = { .user = "anna", .agent = "coach" };
    inferscale_fact brief = { .text = "t", .expires = 1000 }, longer = { .text = "t", .expires = 2000 }, ever = { .text = "t" };
    inferscale_fact past = { .text = "u", .event_time = 500, .valid_to = 1000 }, open = { .text = "u", .event_time = 500 };
    inferscale_event e, first;

    kit_fact(k, &k->pa, &cook, "x");
    kit_fact(k, &k->pa, &coach, "x");
    inferscale_fact x = { .text = "x" };
    OK(is_bank_add_facts(k->bank, &k->pa, &k->anna, &x, 1, &e)); /* sees both agents' */
    assert_int_equal(e.event, INFERSCALE_EVENT_NONE);

    OK(is_bank_add_facts(k->bank, &k->pa, &k->anna, &brief, 1, &first));
    OK(is_bank_add_facts(k->bank, &k->pa, &k->anna, &brief, 1, &e)); /* importing again adds nothing, expired or not */
    assert_int_equal(e.event, INFERSCALE_EVENT_NONE);
    assert_int_equal(e.id, first.id);
    OK(is_bank_add_facts(k->bank, &k->pa, &k->anna, &longer, 1, &e));
    assert_int_equal(e.event, INFERSCALE_EVENT_ADD);
    OK(is_bank_add_facts(k->bank, &k->pa, &k->anna, &ever, 1, &e));
    assert_int_equal(e.event, INFERSCALE_EVENT_ADD);
    OK(is_bank_add_facts(k->bank, &k->pa, &k->anna, &longer, 1, &e));
    assert_int_equal(e.event, INFERSCALE_EVENT_NONE);
    OK(is_bank_add_facts(k->bank, &k->pa, &k->anna, &past, 1, &e));
    OK(is_bank_add_facts(k->bank, &k->pa, &k->anna, &open, 1, &e));
    assert_int_equal(e.event, INFERSCALE_EVENT_ADD);

    OK(is_bank_update_fact(k->bank, &k->pa, e.id, &(inferscale_fact){ .text = "changed" }, NULL));
    OK(is_bank_add_facts(k->bank, &k->pa, &k->anna, &open, 1, &e)); /* an old version does not count */
    assert_int_equal(e.event, INFERSCALE_EVENT_ADD);
}

static void test_bad_facts_are_refused_whole(void **state)
{
    bank_kit *k = *state;
    char *big = malloc(1 << 20), *limit = malloc(65537);
    int64_t bens_turn = kit_turn(k, &k->pb, &k->ben, "c", "hi"), fact = kit_fact(k, &k->pa, &k->anna, "there");
    int64_t revision = fresh(k, k->pa).revision;
    struct { inferscale_fact f; const char *says; } bad[] = {
        { { .text = NULL }, "no text" }, { { .text = "" }, "blank" }, { { .text = " \t\n\xC2\xA0" }, "blank" },
        { { .text = "a\xFF" }, "UTF-8 at byte 1" }, { { .text = big }, "1048575 bytes" },
        { { .text = "x", .metadata = "[1]" }, "JSON object" }, { { .text = "x", .metadata = "{\"a\":}" }, "JSON object" },
        { { .text = "x", .metadata = "{\"a\":\"\xFF\"}" }, "UTF-8" }, { { .text = "x", .metadata = big }, "bytes" },
        { { .text = "x", .metadata = "null" }, "JSON object" }, { { .text = "x", .valid_from = 10, .valid_to = 9 }, "valid" },
        { { .text = "x", .source_turn = bens_turn }, "not a turn of this memory" }, { { .text = "x", .source_turn = fact }, "not a turn" },
        { { .text = "x", .source_turn = 999 }, "not a turn" }, { { .text = "x", .source_turn = -1 }, "no id" },
    };

    memset(big, 'a', 1 << 20);
    big[(1 << 20) - 1] = 0;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        inferscale_fact batch[3] = { { .text = "good" }, bad[i].f, { .text = "also good" } };
        inferscale_event e[3] = { { .id = 7, .event = 7 }, { .id = 7, .event = 7 }, { .id = 7, .event = 7 } };

        FAILS(E_INVALID, is_bank_add_facts(k->bank, &k->pa, &k->anna, batch, 3, e));
        if (!strstr(is_error(), bad[i].says) || !strstr(is_error(), "fact 2")) fail_msg("case %zu: %s", i, is_error());
        for (int j = 0; j < 3; j++) assert_true(e[j].id == 0 && e[j].event == 0);
        FAILS(E_INVALID, is_bank_update_fact(k->bank, &k->pa, fact, &bad[i].f, NULL));
    }
    assert_int_equal(count(k, &k->pa, 0), 1);
    assert_int_equal(fresh(k, k->pa).revision, revision);
    memset(limit, 'b', 65536);
    limit[65536] = 0;
    kit_fact(k, &k->pa, &k->anna, limit); /* just fits */
    free(big);
    free(limit);
}

static void test_update_makes_a_version(void **state)
{
    bank_kit *k = *state;
    inferscale_fact v1 = { .text = "lives in Bonn", .event_time = 100, .metadata = "{\"k\":1}" }, v2 = { .text = "lives in Ulm", .event_time = 200 };
    inferscale_fact v3 = { .text = "lives in Ulm", .metadata = "{}" };
    inferscale_event e;
    inferscale_list *l = NULL;
    int64_t epoch = k->pa.epoch, turn = kit_turn(k, &k->pa, &k->anna, "c", "t");

    OK(is_bank_add_facts(k->bank, &k->pa, &k->anna, &v1, 1, &e));
    assert_int_equal(fresh(k, k->pa).epoch, epoch); /* adding makes nothing stale */
    OK(is_bank_update_fact(k->bank, &k->pa, e.id, &v2, NULL));
    assert_int_equal(fresh(k, k->pa).epoch, epoch + 1);
    OK(is_bank_update_fact(k->bank, &k->pa, e.id, &v3, NULL));
    OK(is_bank_history(k->bank, &k->pa, e.id, &l));
    assert_int_equal(l->n, 3);
    assert_string_equal(l->items[0].text, "lives in Bonn");
    assert_string_equal(l->items[1].text, "lives in Ulm");
    assert_string_equal(l->items[1].metadata, "{\"k\":1}"); /* kept */
    assert_string_equal(l->items[2].metadata, "{}");        /* replaced */
    assert_int_equal(l->items[0].event_time, 100);
    for (int i = 0; i < 3; i++) assert_int_equal(l->items[i].version, i + 1);
    inferscale_list_free(l);
    assert_int_equal(kit_version(k, &k->pa, e.id), 3);
    assert_int_equal(count(k, &k->pa, INFERSCALE_FACTS), 1);
    FAILS(E_NOTFOUND, is_bank_update_fact(k->bank, &k->pb, e.id, &v2, NULL));
    FAILS(E_NOTFOUND, is_bank_update_fact(k->bank, &k->pa, turn, &v2, NULL));
    FAILS(E_NOTFOUND, is_bank_update_fact(k->bank, &k->pa, 999, &v2, NULL));
    FAILS(E_NOTFOUND, is_bank_history(k->bank, &k->pb, e.id, &l));
    assert_null(l);
}

/* ---- Partitions ---------------------------------------------------------------------------------------------------------- */

static void test_partitions_are_apart(void **state)
{
    bank_kit *k = *state;
    inferscale_scope scopes[] = { { .user = "a" }, { .agent = "a" }, { .run = "a" }, { .app = "a" }, { .tenant = "t", .user = "a" },
                                  { .tenant = "a", .user = "t" }, { .user = "A" } };
    enum { N = sizeof scopes / sizeof *scopes };
    is_partition p[N], again;

    for (int i = 0; i < N; i++) {
        FAILS(E_NOTFOUND, is_bank_partition(k->bank, &scopes[i], false, &p[i]));
        OK(is_bank_partition(k->bank, &scopes[i], true, &p[i]));
        for (int j = 0; j < i; j++) {
            assert_int_not_equal(p[i].id, p[j].id);
            assert_memory_not_equal(p[i].key, p[j].key, IS_KEY_BYTES);
        }
        kit_fact(k, &p[i], &scopes[i], "same");
    }
    bank_kit_reopen(k, false);
    for (int i = 0; i < N; i++) {
        OK(is_bank_partition(k->bank, &scopes[i], true, &again));
        assert_int_equal(again.id, p[i].id);
        assert_memory_equal(again.key, p[i].key, IS_KEY_BYTES);
        assert_int_equal(count(k, &p[i], 0), 1);
    }
    /* user decides, the others are attributes */
    OK(is_bank_partition(k->bank, &(inferscale_scope){ .user = "a", .agent = "x", .run = "y", .app = "z" }, false, &again));
    assert_int_equal(again.id, p[0].id);
}

static void test_bad_scopes(void **state)
{
    bank_kit *k = *state;
    char name[514];
    is_partition p;

    memset(name, 'n', 513);
    name[513] = 0;
    FAILS(E_INVALID, is_bank_partition(k->bank, NULL, true, &p));
    FAILS(E_INVALID, is_bank_partition(k->bank, &(inferscale_scope){ .tenant = "t" }, true, &p));
    FAILS(E_INVALID, is_bank_partition(k->bank, &(inferscale_scope){ .user = "" }, true, &p));
    FAILS(E_INVALID, is_bank_partition(k->bank, &(inferscale_scope){ .user = name }, true, &p));
    FAILS(E_INVALID, is_bank_partition(k->bank, &(inferscale_scope){ .user = "u", .app = name }, true, &p));
    FAILS(E_INVALID, is_bank_partition(k->bank, &(inferscale_scope){ .user = "u", .tenant = "\xC0\xAF" }, true, &p));
    name[512] = 0;
    OK(is_bank_partition(k->bank, &(inferscale_scope){ .user = name }, true, &p));
    OK(is_bank_partition(k->bank, &(inferscale_scope){ .user = "Robert'); DROP TABLE items;--" }, true, &p));
    assert_int_equal(count(k, &p, 0), 0);
    p.id = 999;
    FAILS(E_NOTFOUND, is_bank_partition_refresh(k->bank, &p));
    FAILS(E_NOTFOUND, is_bank_add_facts(k->bank, &p, &k->anna, &(inferscale_fact){ .text = "x" }, 1, NULL));
}

/* ---- Turns --------------------------------------------------------------------------------------------------------------- */

struct seen { int n; int64_t ids[16]; char prev[16][32]; is_bank *call; };
static is_status each_item(void *ctx, const inferscale_item *item, const char *prev_speaker, const char *prev_text)
{
    struct seen *s = ctx;
    inferscale_list *l = NULL;

    if (s->call) return is_bank_get(s->call, &(is_partition){ .id = 1 }, &item->id, 1, &l);
    assert_true(s->n < 16);
    s->ids[s->n] = item->id;
    snprintf(s->prev[s->n++], 32, "%s:%s", prev_speaker, prev_text);
    return s->n == 8 ? is_fail(INFERSCALE_E_CANCELLED, "eight are enough") : INFERSCALE_OK;
}

static void test_turns_and_what_stood_before(void **state)
{
    bank_kit *k = *state;
    inferscale_turn turns[] = { { .conversation = "c1", .speaker = "Anna", .text = "a1" }, { .conversation = "c2", .text = "b1" },
                                { .conversation = "c1", .speaker = "Bot", .text = "a2" }, { .conversation = "c1", .text = "a3" },
                                { .conversation = "c2", .text = "b2" } };
    int64_t ids[5], bens = kit_turn(k, &k->pb, &k->ben, "c1", "secret"), fact;
    struct seen all = { 0 }, later = { 0 }, inside = { .call = k->bank };
    inferscale_list *l = NULL;

    fact = kit_fact(k, &k->pa, &k->anna, "f");
    OK(is_bank_add_turns(k->bank, &k->pa, &k->anna, turns, 5, ids));
    for (int i = 1; i < 5; i++) assert_true(ids[i] > ids[i - 1]);
    OK(is_bank_turns_before(k->bank, &k->pa, ids[3], 5, &l));
    assert_int_equal(l->n, 2);
    assert_string_equal(l->items[0].text, "a1"); /* oldest first, this conversation only */
    assert_string_equal(l->items[0].speaker, "Anna");
    assert_string_equal(l->items[1].text, "a2");
    inferscale_list_free(l);
    OK(is_bank_turns_before(k->bank, &k->pa, ids[3], 1, &l));
    assert_int_equal(l->n, 1);
    assert_string_equal(l->items[0].text, "a2");
    inferscale_list_free(l);
    OK(is_bank_turns_before(k->bank, &k->pa, ids[3], 0, &l));
    assert_int_equal(l->n, 0);
    inferscale_list_free(l);
    OK(is_bank_turns_before(k->bank, &k->pa, bens, 5, &l)); /* not in this partition */
    assert_int_equal(l->n, 0);
    inferscale_list_free(l);

    OK(is_bank_each(k->bank, &k->pa, 0, each_item, &all));
    assert_int_equal(all.n, 6);
    assert_int_equal(all.ids[0], fact);
    static const char *const want[] = { ":", ":", ":", "Anna:a1", "Bot:a2", "user:b1" };
    for (int i = 0; i < 6; i++) assert_string_equal(all.prev[i], want[i]);
    OK(is_bank_each(k->bank, &k->pa, ids[2], each_item, &later)); /* what stood before counts also where it was read earlier */
    assert_int_equal(later.n, 2);
    assert_string_equal(later.prev[0], "Bot:a2");
    FAILS(E_INTERNAL, is_bank_each(k->bank, &k->pa, 0, each_item, &inside)); /* an error, not a deadlock */
    for (int i = 0; i < 8; i++) kit_turn(k, &k->pa, &k->anna, "c3", "more");
    memset(&all, 0, sizeof all);
    FAILS(E_CANCELLED, is_bank_each(k->bank, &k->pa, 0, each_item, &all));
    assert_string_equal(is_error(), "eight are enough");
    assert_int_equal(all.n, 8);
}

static void test_named_turns_are_added_once(void **state)
{
    bank_kit *k = *state;
    inferscale_turn t[] = { { .conversation = "c", .text = "a", .external_id = "m1" }, { .conversation = "c", .text = "a" } };
    int64_t first[2], second[2];

    OK(is_bank_add_turns(k->bank, &k->pa, &k->anna, t, 2, first));
    OK(is_bank_add_turns(k->bank, &k->pa, &k->anna, t, 2, second));
    assert_int_equal(second[0], first[0]);     /* the application said that it is the same */
    assert_int_not_equal(second[1], first[1]); /* people do repeat themselves */
    t[0].text = "corrected";
    OK(is_bank_add_turns(k->bank, &k->pa, &k->anna, t, 1, second));
    assert_int_not_equal(second[0], first[0]);
}

static void test_facts_before(void **state)
{
    bank_kit *k = *state;
    int64_t ids[5];
    inferscale_list *l = NULL;

    for (int i = 0; i < 5; i++) {
        char text[8] = { 'f', (char)('0' + i) };

        ids[i] = kit_fact(k, &k->pa, &k->anna, text);
        kit_fact(k, &k->pb, &k->ben, text);
        kit_turn(k, &k->pa, &k->anna, "c", "between");
    }
    OK(is_bank_facts_before(k->bank, &k->pa, ids[4], 3, &l));
    assert_int_equal(l->n, 3);
    for (int i = 0; i < 3; i++) assert_int_equal(l->items[i].id, ids[i + 1]);
    inferscale_list_free(l);
    OK(is_bank_facts_before(k->bank, &k->pa, ids[0], 3, &l));
    assert_int_equal(l->n, 0);
    inferscale_list_free(l);
    OK(is_bank_facts_before(k->bank, &k->pb, ids[4], 3, &l)); /* an id of another partition */
    assert_int_equal(l->n, 0);
    inferscale_list_free(l);
}

static void test_bad_turns(void **state)
{
    bank_kit *k = *state;
    char name[514];
    int64_t id = 5;

    memset(name, 'n', 513);
    name[513] = 0;
    FAILS(E_INVALID, is_bank_add_turns(k->bank, &k->pa, &k->anna, &(inferscale_turn){ .text = NULL }, 1, &id));
    assert_int_equal(id, 0);
    FAILS(E_INVALID, is_bank_add_turns(k->bank, &k->pa, &k->anna, &(inferscale_turn){ .text = " " }, 1, NULL));
    FAILS(E_INVALID, is_bank_add_turns(k->bank, &k->pa, &k->anna, &(inferscale_turn){ .text = "x", .speaker = name }, 1, NULL));
    FAILS(E_INVALID, is_bank_add_turns(k->bank, &k->pa, &k->anna, &(inferscale_turn){ .text = "x", .conversation = "\xFF" }, 1, NULL));
    FAILS(E_INVALID, is_bank_add_turns(k->bank, &k->pa, &k->anna, &(inferscale_turn){ .text = "x", .external_id = name }, 1, NULL));
    assert_int_equal(count(k, &k->pa, 0), 0);
    OK(is_bank_add_turns(k->bank, &k->pa, &k->anna, NULL, 0, NULL));
    OK(is_bank_add_facts(k->bank, &k->pa, &k->anna, NULL, 0, NULL));
}

/* ---- Lists and filters --------------------------------------------------------------------------------------------------- */

static void test_lists(void **state)
{
    bank_kit *k = *state;
    inferscale_scope cook = { .user = "anna", .agent = "cook", .run = "r1" }, filter = { .agent = "cook" }, other = { .run = "r2" };
    inferscale_list *l = NULL;
    int64_t after = 0, ids[4];
    size_t n = 0;

    for (int i = 0; i < 25; i++) {
        char text[32];

        snprintf(text, sizeof text, "fact %d", i);
        kit_fact(k, &k->pa, i % 5 ? &k->anna : &cook, text);
        kit_turn(k, &k->pa, &k->anna, "c", text);
        kit_fact(k, &k->pb, &k->ben, text);
    }
    do { /* pages */
        OK(is_bank_list(k->bank, &k->pa, NULL, 0, after, 7, &l));
        for (size_t i = 0; i < l->n; i++) {
            assert_true(l->items[i].id > after);
            after = l->items[i].id;
        }
        n += l->n;
        assert_true(l->n == 7 || n == 50);
        inferscale_list_free(l);
    } while (n < 50);
    assert_int_equal(count(k, &k->pa, INFERSCALE_FACTS), 25);
    assert_int_equal(count(k, &k->pa, INFERSCALE_TURNS), 25);
    OK(is_bank_list(k->bank, &k->pa, &filter, INFERSCALE_FACTS, 0, 0, &l));
    assert_int_equal(l->n, 5);
    ids[0] = l->items[4].id, ids[1] = 99999, ids[2] = l->items[0].id, ids[3] = ids[2] + 2; /* the last one is ben's */
    inferscale_list_free(l);
    OK(is_bank_list(k->bank, &k->pa, &other, 0, 0, 0, &l));
    assert_int_equal(l->n, 0);
    inferscale_list_free(l);
    OK(is_bank_get(k->bank, &k->pa, ids, 4, &l)); /* in the order given, others left out */
    assert_int_equal(l->n, 2);
    assert_int_equal(l->items[0].id, ids[0]);
    assert_int_equal(l->items[1].id, ids[2]);
    inferscale_list_free(l);
}

static void test_metadata_filter(void **state)
{
    bank_kit *k = *state;
    inferscale_fact f = { .text = "x", .metadata = "{\"s\":\"a\",\"i\":1,\"r\":2.0,\"t\":true,\"n\":null,\"l\":[1,\"2\"],\"o\":{\"p\":1},\"q\\\"k\":5}" };
    static const struct { const char *filter; bool want; } cases[] = {
        { "{}", true }, { NULL, true }, { "{\"s\":\"a\"}", true }, { "{\"s\":\"b\"}", false }, { "{\"s\":\"a\",\"i\":1}", true },
        { "{\"s\":\"a\",\"i\":2}", false }, { "{\"i\":1.0}", true }, { "{\"i\":\"1\"}", false }, { "{\"i\":true}", false },
        { "{\"r\":2}", true }, { "{\"t\":true}", true }, { "{\"t\":false}", false }, { "{\"t\":1}", false }, { "{\"n\":null}", true },
        { "{\"n\":0}", false }, { "{\"absent\":null}", false }, { "{ \"l\": [1, \"2\"] }", true }, { "{\"l\":[1]}", false },
        { "{\"o\":{\"p\":1}}", true }, { "{\"o\":{}}", false }, { "{\"q\\\"k\":5}", true }, { "{\"S\":\"a\"}", false },
    };
    inferscale_event e;
    int64_t ids[3], turn = kit_turn(k, &k->pa, &k->anna, "c", "t");
    bool keep[3];

    OK(is_bank_add_facts(k->bank, &k->pa, &k->anna, &f, 1, &e));
    ids[0] = e.id, ids[1] = turn, ids[2] = 999;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        memset(keep, true, sizeof keep);
        OK(is_bank_match_metadata(k->bank, &k->pa, cases[i].filter, ids, 3, keep));
        if (keep[0] != cases[i].want) fail_msg("%s gave %d", cases[i].filter, keep[0]);
        assert_int_equal(keep[1], i < 2); /* a turn has no metadata */
        assert_false(keep[2]);
        OK(is_bank_match_metadata(k->bank, &k->pb, cases[i].filter, ids, 3, keep));
        assert_false(keep[0]); /* not ben's */
    }
    FAILS(E_INVALID, is_bank_match_metadata(k->bank, &k->pa, "[]", ids, 3, keep));
    FAILS(E_INVALID, is_bank_match_metadata(k->bank, &k->pa, "{", ids, 3, keep));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, bank_kit_setup, bank_kit_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_a_fact_comes_back_whole),
        TEST(test_defaults),
        TEST(test_the_same_text_is_there_once),
        TEST(test_the_same_text_is_new_where_it_would_be_lost),
        TEST(test_bad_facts_are_refused_whole),
        TEST(test_update_makes_a_version),
        TEST(test_partitions_are_apart),
        TEST(test_bad_scopes),
        TEST(test_turns_and_what_stood_before),
        TEST(test_named_turns_are_added_once),
        TEST(test_facts_before),
        TEST(test_bad_turns),
        TEST(test_lists),
        TEST(test_metadata_filter),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
