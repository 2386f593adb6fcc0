/* Pages on the mock engine: facts encoded together are laid out as the policy says, one that joins costs its own tokens, one that goes
 * encodes again what held it and nothing else, what is over is seen no more, and what was interrupted goes on. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "support/encode_kit.h"

/* A page's leads need not have a place of their own yet. When they get one, it is not on the page that they lead: no fact sees its own
 * text before it. */
static void no_fact_joins_a_page_that_it_leads(void **state)
{
    static const char *const policies[] = { "page:6+3@topic", "page:4+1@topic", "page:5+2", "page:6+2@time" };
    size_t n_led = 0;

    (void)state;
    for (size_t round = 0; round < 24; round++) {
        lab *l = ek_open("mock", NULL, NULL, NULL);
        is_policy policy = ek_policy(policies[round % 4]);
        const is_encoder enc = ek_encoder(l);
        int64_t ids[FACTS];

        ek_remember(l, 0, FACTS, ids); /* all are there to be found, a few at a time are encoded */
        for (int done = 0, n; done < FACTS; done += n) {
            n = 1 + (int)scratch_below(&ek_rng, round < 12 ? 3 : 9);
            if (n > FACTS - done) n = FACTS - done;
            ek_encode(l, &policy, ids + done, (size_t)n, 0);
        }
        for (int f = 0; f < FACTS; f++) {
            is_page page;

            KIT_OK(is_bank_page_of(enc.bank, &l->partition, enc.profile->fingerprint, policy.name, ids[f], 1, &page));
            for (size_t i = 0; i < page.n; i++)
                for (size_t j = i + 1; j < page.n; j++) assert_true(page.facts[i].dep.item_id != page.facts[j].dep.item_id);
            n_led += page.n_lead;
            is_page_free(&page);
            ek_check_fact(l, &policy, ids[f]);
        }
        lab_close(l);
    }
    assert_true(n_led > 0);
}

static void one_that_joins_costs_its_own_tokens(void **state)
{
    lab *l = ek_open("mock", NULL, NULL, NULL);
    is_policy policy = ek_policy("page:12+4@time");
    const is_encoder enc = ek_encoder(l);
    int64_t ids[FACTS];
    is_encode_job job;
    is_page page;

    (void)state;
    ek_remember(l, 0, 20, ids);
    ek_encode(l, &policy, ids, 20, 0);
    KIT_OK(is_bank_lane(enc.bank, &l->partition, enc.profile->fingerprint, policy.name, 0, &page));
    assert_true(page.open && page.n_lead == 4 && page.n == 12);
    is_page_free(&page);
    ek_remember(l, 20, 1, ids);
    job = ek_encode(l, &policy, ids + 20, 1, 0);
    assert_true(job.tokens_computed - job.tokens_stored <= enc.profile->header.n);
    ek_remember(l, 21, 1, ids);
    job = ek_encode(l, &policy, ids + 21, 1, 0);
    assert_int_equal(job.tokens_computed, job.tokens_stored); /* the header is still there */
    lab_close(l);
}

static void pages_are_as_laid_out(void **state)
{
    lab *l = ek_open("mock", NULL, NULL, NULL);
    is_policy policy = ek_policy("page:8+3");
    const is_encoder enc = ek_encoder(l);
    int64_t ids[FACTS];
    is_encode_job job;
    bool seen[FACTS] = { false };
    size_t n_leads = 0;

    (void)state;
    ek_remember(l, 0, FACTS, ids);
    job = ek_encode(l, &policy, ids, FACTS, 0);
    assert_true((double)job.tokens_computed <= 1.5 * (double)job.tokens_stored);
    for (int f = 0; f < FACTS; f++) {
        is_page page;
        is_segment_row row;

        KIT_OK(is_bank_page_of(enc.bank, &l->partition, enc.profile->fingerprint, policy.name, ids[f], 1, &page));
        assert_true(page.n - page.n_lead <= 8 && page.n_lead <= 3);
        for (size_t i = 0; i < page.n; i++) {
            assert_true((i < page.n_lead) == page.facts[i].lead);
            if (!page.facts[i].lead && page.facts[i].dep.item_id == ids[f]) {
                assert_false(seen[f]);
                seen[f] = true;
            }
        }
        /* rows of leads are kept while a page is open, and no longer */
        for (size_t i = 0; i < page.n_lead; i++) {
            is_segment_row *rows = NULL;
            size_t n = 0;

            KIT_OK(is_bank_segments(enc.bank, &l->partition, enc.profile->fingerprint, "page:8+3#lead", page.facts[i].dep.item_id, &rows, &n));
            assert_int_equal(n, page.open);
            n_leads += n;
            if (n) assert_true(rows[0].lead);
            is_free(rows);
        }
        assert_true(ek_has_row(l, &policy, ids[f], &row) && !row.lead);
        is_page_free(&page);
    }
    assert_true(n_leads > 0); /* 45 = 5 pages of 8 and an open one of 5 */
    lab_close(l);
}

/* What a fact's absence touches: the facts that stood behind it, and those of pages that it led. */
static void a_fact_taken_out_reencodes_what_held_it(void **state)
{
    (void)state;
    for (int round = 0; round < 12; round++) {
        lab *l = ek_open("mock", NULL, NULL, NULL);
        is_policy policy = ek_policy(round % 3 == 0 ? "page:6+2@time" : round % 3 == 1 ? "page:8+3" : "page:5+4@topic");
        const is_encoder enc = ek_encoder(l);
        int64_t ids[FACTS], victim;
        uint8_t names[FACTS][IS_HASH_BYTES];
        bool held[FACTS];
        size_t n_held = 0;
        is_names stale = { 0 };
        is_encode_job job;

        ek_remember(l, 0, FACTS, ids);
        ek_encode(l, &policy, ids, FACTS, 0);
        victim = ids[scratch_below(&ek_rng, FACTS)];
        for (int f = 0; f < FACTS; f++) {
            int64_t deps[512];
            size_t n = ek_deps(l, policy.name, ids[f], deps, 512);
            is_segment_row row;

            held[f] = false;
            for (size_t i = 0; i < n; i++) held[f] = held[f] || deps[i] == victim;
            n_held += held[f] && ids[f] != victim;
            assert_true(ek_has_row(l, &policy, ids[f], &row));
            memcpy(names[f], row.name, IS_HASH_BYTES);
        }
        if (round % 2) KIT_OK(is_bank_forget(enc.bank, &l->partition, &victim, 1, NULL, NULL, &stale));
        else KIT_OK(is_bank_update_fact(enc.bank, &l->partition, victim, &(inferscale_fact){ .text = "Nobody is here now." }, &stale));
        for (size_t i = 0; i < stale.n; i++) KIT_OK(is_vault_remove(enc.vault, stale.names[i]));
        is_names_free(&stale);
        KIT_OK(is_bank_partition_refresh(enc.bank, &l->partition));
        for (int f = 0; f < FACTS; f++) {
            is_segment_row row;

            assert_int_equal(ek_has_row(l, &policy, ids[f], &row), !held[f]);
        }
        job = ek_encode(l, &policy, ids, FACTS, 0);
        assert_int_equal(job.facts, n_held + (round % 2 ? 0 : 1));
        for (int f = 0; f < FACTS; f++) {
            is_segment_row row;

            if (ids[f] == victim && round % 2) continue;
            assert_true(ek_has_row(l, &policy, ids[f], &row));
            if (!held[f]) assert_memory_equal(row.name, names[f], IS_HASH_BYTES);
            else assert_memory_not_equal(row.name, names[f], IS_HASH_BYTES);
            ek_check_fact(l, &policy, ids[f]);
        }
        lab_close(l);
    }
}

/* What was superseded stays in the record with its own rows, and nothing that is encoded from then on sees it. */
static void what_is_over_is_seen_no_more(void **state)
{
    (void)state;
    for (int round = 0; round < 4; round++) {
        lab *l = ek_open("mock", NULL, NULL, NULL);
        is_policy policy = ek_policy(round % 2 ? "page:30+3@time" : "page:8+3@time");
        const is_encoder enc = ek_encoder(l);
        int64_t ids[FACTS], victim, heir;
        is_names stale = { 0 };
        is_segment_row row;

        ek_remember(l, 0, 30, ids);
        ek_encode(l, &policy, ids, 30, 0);
        victim = ids[scratch_below(&ek_rng, 30)];
        KIT_OK(is_bank_supersede(enc.bank, &l->partition, &l->scope, victim, &(inferscale_fact){ .text = "It is all different." }, &heir, &stale));
        for (size_t i = 0; i < stale.n; i++) KIT_OK(is_vault_remove(enc.vault, stale.names[i]));
        is_names_free(&stale);
        ek_remember(l, 30, 5, ids);
        ek_encode(l, &policy, ids, 35, 0);
        ek_encode(l, &policy, &heir, 1, 0);
        for (int f = 0; f < 35; f++) {
            int64_t deps[512];
            size_t n = ek_deps(l, policy.name, ids[f], deps, 512);

            if (ids[f] == victim) continue;
            ek_check_fact(l, &policy, ids[f]);
            for (size_t i = 0; i < n; i++) assert_true(deps[i] != victim);
        }
        ek_check_fact(l, &policy, heir);
        assert_true(ek_has_row(l, &policy, victim, &row));
        lab_close(l);
    }
}

/* A process that died after pages were laid out, a file that was lost, a capture that failed half-way. */
static void what_was_interrupted_goes_on(void **state)
{
    lab *l = ek_open("mock", NULL, NULL, NULL);
    is_policy policy = ek_policy("page:8+3@time");
    is_encoder enc = ek_encoder(l);
    int64_t ids[FACTS];
    is_page page = { .open = true };
    is_page_fact places[5];
    is_segment_row row;
    volatile int cancel = 1;
    is_encode_job job = { .policy = &policy };

    (void)state;
    ek_remember(l, 0, 20, ids);
    enc = ek_encoder(l);
    for (int i = 0; i < 5; i++) places[i] = (is_page_fact){ .dep = { ids[i], 1 } };
    page.n = 5;
    page.facts = places;
    KIT_OK(is_bank_lay_page(enc.bank, &l->partition, l->partition.epoch, enc.profile->fingerprint, policy.name, &page));
    page.id = 0;
    KIT_FAILS(INFERSCALE_E_STALE, is_bank_lay_page(enc.bank, &l->partition, l->partition.epoch, enc.profile->fingerprint, policy.name, &page));
    enc.cancel = &cancel;
    KIT_FAILS(INFERSCALE_E_CANCELLED, is_encode_facts(&enc, &l->partition, ids, 20, &job));
    job = ek_encode(l, &policy, ids, 20, 0);
    assert_int_equal(job.facts, 20);
    for (int f = 0; f < 20; f++) ek_check_fact(l, &policy, ids[f]);
    /* one lost file: that fact and no other */
    assert_true(ek_has_row(l, &policy, ids[9], &row));
    KIT_OK(is_vault_remove(enc.vault, row.name));
    job = ek_encode(l, &policy, ids, 20, 0);
    assert_int_equal(job.facts, 1);
    for (int f = 0; f < 20; f++) ek_check_fact(l, &policy, ids[f]);
    lab_close(l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_fact_joins_a_page_that_it_leads),
        cmocka_unit_test(one_that_joins_costs_its_own_tokens),
        cmocka_unit_test(pages_are_as_laid_out),
        cmocka_unit_test(a_fact_taken_out_reencodes_what_held_it),
        cmocka_unit_test(what_is_over_is_seen_no_more),
        cmocka_unit_test(what_was_interrupted_goes_on),
    };

    return cmocka_run_group_tests(tests, ek_begin, NULL);
}
