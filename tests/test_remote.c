/* An engine that computes elsewhere (engine.h, "Remote engines"), as all above it sees it. The mock stands for one. What must hold: no
 * answer claims rows that were not used; rows are captured and named for what its cache holds; what was changed or forgotten is revoked
 * there, and a server that does not confirm is told of as pending, also by HTTP; one that is down is no more than that; what clients
 * send for such an engine ends here. Other programs run whole in that mode: the Makefile's TEST_REMOTE. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api/handle.h"
#include "base/mem.h"
#include "inferscale.h"
#include "serve/upstreams.h"
#include "support/scratch.h"

static const inferscale_scope anna = { .user = "anna" }, ben = { .user = "ben" };

static inferscale *open_with(const char *mock_options)
{
    inferscale_options o = INFERSCALE_OPTIONS_INIT;
    char model[200];
    inferscale *is = NULL;

    snprintf(model, sizeof model, "mock:%s", mock_options);
    o.home = scratch_home;
    o.engine = "mock";
    o.model = model;
    o.embedder = "mock";
    if (inferscale_open(&is, &o) != INFERSCALE_OK) fail_msg("%s", inferscale_error());
    return is;
}

static void remember(inferscale *is, const inferscale_scope *who, int64_t ids[3])
{
    const inferscale_fact facts[] = { { .text = "anna is allergic to peanuts" }, { .text = "anna likes green tea" }, { .text = "anna has a grey dog" } };
    inferscale_event events[3];

    OK(inferscale_remember(is, who, facts, 3, events));
    for (int i = 0; i < 3; i++) ids[i] = events[i].id;
    OK(inferscale_encode(is, who, NULL));
}

static inferscale_answer *ask(inferscale *is, const inferscale_scope *who)
{
    inferscale_ask_options o = INFERSCALE_ASK_OPTIONS_INIT;
    inferscale_answer *a = NULL;

    o.k = 3;
    if (inferscale_ask(is, who, "which food is anna allergic to", &o, &a) != INFERSCALE_OK) fail_msg("%s", inferscale_error());
    return a;
}

static size_t n_from(const inferscale_answer *a, int source)
{
    size_t n = 0;

    for (size_t i = 0; i < a->n_facts; i++) n += a->facts[i].source == source;
    return n;
}

/* ---- Answers ------------------------------------------------------------------------------------------------------------- */

static void stored_rows_serve(void **state)
{
    inferscale *is = open_with("remote");
    int64_t ids[3];
    inferscale_answer *a;

    (void)state;
    remember(is, &anna, ids);
    a = ask(is, &anna);
    assert_int_equal(a->mode, INFERSCALE_MODE_KV);
    assert_int_equal(n_from(a, INFERSCALE_SOURCE_STORED), 3);
    assert_string_equal(a->fallback, "");
    assert_true(a->tokens_injected > 0);
    inferscale_answer_free(a);
    inferscale_close(is);
}

/* From the nth stored part on the server computed after all, and says so with the last token only: no count and no fact says otherwise. */
static void late_news_correct_the_answer(void **state)
{
    int64_t ids[3];
    inferscale *is = open_with("remote");
    char *text, digests[4][65]; /* of the rows that were used when the nth and those behind it were computed; 0: none was */
    inferscale_answer *a;
    uint32_t all;

    (void)state;
    remember(is, &anna, ids);
    a = ask(is, &anna);
    text = is_strdup(a->text);
    all = a->tokens_injected;
    memcpy(digests[0], a->rows_digest, sizeof digests[0]);
    inferscale_answer_free(a);
    inferscale_close(is);
    for (int from = 1; from <= 3; from++) {
        char options[60];
        uint32_t stored = 0;

        snprintf(options, sizeof options, "remote,late=torn,late-from=%d", from);
        is = open_with(options);
        a = ask(is, &anna);
        assert_string_equal(a->text, text);
        assert_int_equal(a->mode, from == 1 ? INFERSCALE_MODE_TEXT : INFERSCALE_MODE_KV);
        assert_int_equal(n_from(a, INFERSCALE_SOURCE_STORED), from - 1);
        assert_int_equal(n_from(a, INFERSCALE_SOURCE_COMPUTED), 4 - from);
        for (size_t i = 0; i < a->n_facts; i++) {
            if (a->facts[i].source == INFERSCALE_SOURCE_STORED) stored += a->facts[i].tokens;
            else assert_string_equal(a->facts[i].policy, "");
        }
        assert_int_equal(a->tokens_injected, stored);
        assert_true(a->tokens_injected < all);
        assert_int_equal(a->tokens_computed + a->tokens_injected + a->tokens_resident, a->tokens_prompt);
        assert_true(a->n_exact <= (size_t)(from - 1));
        assert_true(a->fallbacks == INFERSCALE_FALLBACK_COMPUTED_AFTER_ALL);
        assert_non_null(strstr(a->fallback, "torn"));
        memcpy(digests[from], a->rows_digest, sizeof digests[from]);
        for (int other = 0; other < from; other++) assert_string_not_equal(digests[from], digests[other]);
        inferscale_answer_free(a);
        inferscale_close(is);
    }
    is_free(text);
}

/* ---- Captures ------------------------------------------------------------------------------------------------------------ */

/* Nobody named a codec: the rows are held in what the cache holds, bf16 here; and the names tell the two engines' rows apart. */
static void rows_are_held_as_its_cache_holds_them(void **state)
{
    const is_codec want[2] = { IS_CODEC_F16, IS_CODEC_BF16 };
    uint8_t names[2][IS_HASH_BYTES];
    int64_t ids[3];

    (void)state;
    for (int remote = 0; remote < 2; remote++) {
        inferscale *is = open_with(remote ? "remote" : "");
        is_segment_row *rows = NULL;
        is_segment *s = NULL;
        is_partition p;
        size_t n = 0;

        if (!remote) remember(is, &anna, ids);
        else OK(inferscale_encode(is, &anna, NULL));
        OK(is_bank_partition(is->bank, &anna, false, &p));
        OK(is_bank_segments(is->bank, &p, is_handle_profile(is)->fingerprint, "page:16/6", ids[0], &rows, &n));
        assert_true(n >= 1);
        OK(is_vault_get(is->vault, rows[0].name, is_engine_describe(is->engine)->fingerprint, &s));
        assert_int_equal(is_segment_info(s)->codec, want[remote]);
        memcpy(names[remote], rows[0].name, IS_HASH_BYTES);
        is_segment_unref(s);
        is_free(rows);
        inferscale_close(is);
    }
    assert_memory_not_equal(names[0], names[1], IS_HASH_BYTES);
}

/* ---- Changing and forgetting --------------------------------------------------------------------------------------------- */

static void what_is_not_confirmed_is_pending(void **state)
{
    inferscale *is = open_with("remote,pending=1");
    inferscale_forget_options o = INFERSCALE_FORGET_OPTIONS_INIT;
    inferscale_forget_report r = { 0 };
    int64_t ids[3];
    inferscale_answer *a;
    is_upstream *u;
    size_t n;

    (void)state;
    remember(is, &anna, ids);
    inferscale_answer_free(ask(is, &anna));
    o.wait_ms = 200;
    assert_int_equal(inferscale_forget_with(is, &anna, &ids[0], 1, &o, &r), INFERSCALE_E_BUSY);
    assert_int_equal(r.forgotten, 1);
    assert_int_equal(r.pending, 1);
    assert_non_null(strstr(inferscale_error(), "not confirmed"));
    u = is_upstreams_of(is, &n);
    assert_int_equal(n, 1);
    assert_true(u[0].up);
    is_free(u);
    a = ask(is, &anna); /* here it is gone whatever the server does */
    assert_null(strstr(a->text, "peanuts"));
    inferscale_answer_free(a);
    OK(inferscale_forget_with(is, &anna, &ids[1], 1, &o, &r)); /* it has come to itself */
    assert_int_equal(r.pending, 0);
    inferscale_close(is);
}

static void a_change_is_revoked_too(void **state)
{
    inferscale *is = open_with("remote,pending=1");
    const inferscale_fact other = { .text = "anna is allergic to shellfish" };
    int64_t ids[3];
    inferscale_answer *a;

    (void)state;
    remember(is, &anna, ids);
    inferscale_answer_free(ask(is, &anna));
    assert_int_equal(inferscale_update(is, &anna, ids[0], &other), INFERSCALE_E_BUSY);
    a = ask(is, &anna);
    assert_null(strstr(a->text, "peanuts"));
    inferscale_answer_free(a);
    inferscale_close(is);
}

/* What no process of ours has loaded cannot be asked: for engine vllm it is, here, and who cannot be reached is pending. */
static void an_upstream_out_of_reach_is_pending(void **state)
{
    inferscale_options o = INFERSCALE_OPTIONS_INIT;
    inferscale_forget_options f = INFERSCALE_FORGET_OPTIONS_INIT;
    inferscale_forget_report r = { 0 };
    inferscale *is = open_with("");
    int64_t ids[3];

    (void)state;
    remember(is, &anna, ids);
    inferscale_close(is);
    o.home = scratch_home;
    o.engine = "vllm";
    o.upstream = "http://127.0.0.1:9"; /* discard: nobody answers */
    OK(inferscale_open(&is, &o));
    f.wait_ms = 300;
    assert_int_equal(inferscale_forget_with(is, &anna, &ids[0], 1, &f, &r), INFERSCALE_E_BUSY);
    assert_int_equal(r.forgotten, 1);
    assert_true(r.pending >= 1);
    inferscale_close(is);
}

/* ---- Whose it is --------------------------------------------------------------------------------------------------------- */

static void realms_tell_owners_and_epochs_apart(void **state)
{
    inferscale *is = open_with("remote");
    is_partition a, b;
    is_realm before, after;
    int64_t ids[3];

    (void)state;
    remember(is, &anna, ids);
    OK(is_bank_partition(is->bank, &anna, true, &a));
    OK(is_bank_partition(is->bank, &ben, true, &b));
    before = is_realm_of(&a);
    after = is_realm_of(&b);
    assert_memory_not_equal(before.tag, after.tag, sizeof before.tag);
    assert_memory_not_equal(before.tag, a.key, sizeof before.tag);
    OK(inferscale_forget(is, &anna, ids, 1, NULL));
    OK(is_bank_partition_refresh(is->bank, &a));
    after = is_realm_of(&a);
    assert_memory_equal(before.tag, after.tag, sizeof before.tag);
    assert_true(after.epoch > before.epoch);
    inferscale_close(is);
}

/* ---- Failures ------------------------------------------------------------------------------------------------------------ */

static void one_that_is_down_is_no_more_than_that(void **state)
{
    inferscale *is = open_with("remote,down");
    inferscale_ask_options o = INFERSCALE_ASK_OPTIONS_INIT;
    const inferscale_fact fact = { .text = "anna is allergic to peanuts" };
    inferscale_answer *a = NULL;
    inferscale_list *l = NULL;

    (void)state;
    OK(inferscale_remember(is, &anna, &fact, 1, NULL));
    assert_int_equal(inferscale_ask(is, &anna, "which food", &o, &a), INFERSCALE_E_ENGINE);
    assert_null(a);
    OK(inferscale_recall(is, &anna, "is anna allergic to peanuts", NULL, &l)); /* the rest goes on */
    assert_int_equal(l->n, 1);
    inferscale_list_free(l);
    inferscale_close(is);
    is = open_with("remote");
    OK(inferscale_encode(is, &anna, NULL));
    inferscale_answer_free(ask(is, &anna));
    inferscale_close(is);
}

/* Which model and which servers: said once, and not both. */
static void options_that_contradict_are_refused(void **state)
{
    inferscale_options o = INFERSCALE_OPTIONS_INIT;
    inferscale_model_info info;
    inferscale *is = NULL;

    (void)state;
    unsetenv("INFERSCALE_UPSTREAM");
    o.home = scratch_home;
    o.engine = "vllm";
    o.model = "some.gguf";
    o.upstream = "http://127.0.0.1:9";
    assert_int_equal(inferscale_open(&is, &o), INFERSCALE_E_INVALID);
    inferscale_close(is);
    o.model = NULL;
    o.engine = "mock";
    assert_int_equal(inferscale_open(&is, &o), INFERSCALE_E_INVALID);
    inferscale_close(is);
    o.engine = "vllm";
    o.upstream = NULL;
    OK(inferscale_open(&is, &o)); /* listing and finding need none */
    assert_int_equal(inferscale_model(is, &info), INFERSCALE_E_INVALID);
    assert_non_null(strstr(inferscale_error(), "inferscale_options.upstream"));
    inferscale_close(is);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, scratch_set_up, scratch_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(stored_rows_serve),
        CASE(late_news_correct_the_answer),
        CASE(rows_are_held_as_its_cache_holds_them),
        CASE(what_is_not_confirmed_is_pending),
        CASE(a_change_is_revoked_too),
        CASE(an_upstream_out_of_reach_is_pending),
        CASE(realms_tell_owners_and_epochs_apart),
        CASE(one_that_is_down_is_no_more_than_that),
        CASE(options_that_contradict_are_refused),
    };

    unsetenv("INFERSCALE_MOCK");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
