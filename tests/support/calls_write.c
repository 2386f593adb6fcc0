/* Cases of calls.c: what is written, changed and forgotten is done wholly or not at all. */
#include "support/calls_cases.h"

#include <string.h>

static const char *const own_texts[2] = { "The first of two.", "The second of two." };

inferscale_status calls_remember_two(calls *c)
{
    inferscale_fact f[2] = { { .text = own_texts[0], .metadata = "{\"a\":1}" }, { .text = own_texts[1], .expires = 4102444800 } };
    inferscale_event e[2];
    inferscale_status st = inferscale_remember(c->is, &c->own, f, 2, e);

    for (int i = 0; st == INFERSCALE_OK && i < 2; i++) c->ids[i] = e[i].id;
    return st;
}

void calls_two_or_none(calls *c, inferscale_status st)
{
    size_t a = calls_count_in(c, &c->own, own_texts[0]), b = calls_count_in(c, &c->own, own_texts[1]);

    assert_true(a == b && a <= 1);
    if (st == INFERSCALE_OK) assert_int_equal(a, 1);
}

void calls_have_two(calls *c)
{
    MUST(calls_remember_two(c));
}

void calls_have_two_encoded(calls *c)
{
    calls_have_two(c);
    MUST(inferscale_encode(c->is, &c->own, NULL));
}

inferscale_status calls_run_turns(calls *c)
{
    inferscale_turn t[2] = { { .text = own_texts[0], .conversation = "talk", .external_id = "x1" }, { .text = own_texts[1], .conversation = "talk" } };

    return inferscale_add_turns(c->is, &c->own, t, 2, c->ids);
}

inferscale_status calls_run_update(calls *c)
{
    inferscale_fact f = { .text = "The first, changed." };

    return inferscale_update(c->is, &c->own, c->ids[0], &f);
}

void calls_changed_or_not(calls *c, inferscale_status st)
{
    size_t old = calls_count_in(c, &c->own, own_texts[0]), new = calls_count_in(c, &c->own, "The first, changed.");

    assert_int_equal(old + new, 1);
    if (st == INFERSCALE_OK) assert_int_equal(new, 1);
    assert_int_equal(calls_count_in(c, &c->own, own_texts[1]), 1);
}

/* On failure *n may say what was forgotten before a file would not go. */
inferscale_status calls_run_forget(calls *c)
{
    size_t n = 9;
    inferscale_status st = inferscale_forget(c->is, &c->own, c->ids, 1, &n);

    if (st == INFERSCALE_OK) assert_int_equal(n, 1);
    else assert_true(n <= 1);
    return st;
}

void calls_first_gone_or_not(calls *c, inferscale_status st)
{
    if (st == INFERSCALE_OK) assert_int_equal(calls_count_in(c, &c->own, own_texts[0]), 0);
    assert_int_equal(calls_count_in(c, &c->own, own_texts[1]), 1);
    MUST(inferscale_forget(c->is, &c->own, c->ids, 1, NULL)); /* what failed can be done again */
    assert_int_equal(calls_count_in(c, &c->own, own_texts[0]), 0);
}

inferscale_status calls_run_forget_all(calls *c)
{
    return inferscale_forget_all(c->is, &c->own, NULL);
}

void calls_both_gone_or_not(calls *c, inferscale_status st)
{
    size_t a = calls_count_in(c, &c->own, own_texts[0]), b = calls_count_in(c, &c->own, own_texts[1]);

    assert_true(a == b && a <= 1);
    if (st == INFERSCALE_OK) assert_int_equal(a, 0);
}

inferscale_status calls_run_supersede(calls *c)
{
    inferscale_fact f = { .text = "The first, changed." };
    int64_t id = 0;
    inferscale_status st = inferscale_supersede(c->is, &c->own, c->ids[0], &f, &id);

    if (st == INFERSCALE_OK) assert_true(id > 0);
    c->ids[3] = id; /* on failure: 0, or what is there and was not cleaned up after */
    return st;
}

/* Both stay; which one is in force changes wholly or not at all. */
void calls_superseded_or_not(calls *c, inferscale_status st)
{
    size_t new = calls_count_in(c, &c->own, "The first, changed.");
    inferscale_list *l = NULL;

    assert_int_equal(calls_count_in(c, &c->own, own_texts[0]), 1);
    MUST(inferscale_show(c->is, &c->own, c->ids[0], &l));
    assert_true(new <= 1 && (l->items[l->n - 1].superseded_by != 0) == (new == 1));
    inferscale_list_free(l);
    if (st == INFERSCALE_OK || c->ids[3]) assert_int_equal(new, 1);
}

inferscale_status calls_run_pin(calls *c)
{
    return inferscale_pin(c->is, &c->own, c->ids[0], 1);
}

void calls_pinned_or_not(calls *c, inferscale_status st)
{
    inferscale_list *l = NULL;

    MUST(inferscale_show(c->is, &c->own, c->ids[0], &l));
    if (st == INFERSCALE_OK) assert_int_equal(l->items[l->n - 1].pinned, 1);
    inferscale_list_free(l);
}

inferscale_status calls_run_forget_with(calls *c)
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
