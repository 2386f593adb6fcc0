/* A text that cannot fit into the context is refused before it is tokenised, and one that fits is not. What the mock engine tokenised
 * is counted in calls and bytes. */
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
#include "engine/engine.h"
#include "support/complete_kit.h"
#include "support/scratch.h"
#include "support/store_kit.h"

enum { CTX = 2048, LONG = 5 << 20 };

static char *folder;
static char log_path[512];
static inferscale *is;
static char *huge; /* LONG letters: two and a half million of the mock's tokens */

/* ---- Counting ------------------------------------------------------------------------------------------------------------ */

static void reset(void) { remove(log_path); }

static size_t tokenised(size_t *calls)
{
    FILE *f = fopen(log_path, "r");
    size_t bytes = 0, n = 0, one;

    while (f && fscanf(f, "%zu", &one) == 1) bytes += one, n++;
    if (f) fclose(f);
    if (calls) *calls = n;
    return bytes;
}

static void open_store(const char *more)
{
    char model[700];

    folder = scratch_make();
    snprintf(log_path, sizeof log_path, "%s", scratch_path(folder, "tokens"));
    snprintf(model, sizeof model, "mock:ctx=%d,text-log=%s%s", CTX, log_path, more);
    is = store_open(scratch_path(folder, "store"), model, NULL, false);
    store_fill(is, 3, false);
}

static int close_store(void **state)
{
    (void)state;
    inferscale_close(is);
    is = NULL;
    scratch_remove(folder);
    return 0;
}

/* ---- Every place where a client's words are tokenised -------------------------------------------------------------------- */

typedef struct place { const char *name, *system, *old, *newest, *prompt; } place;

static inferscale_status send(const place *p, int on_full, const volatile int *cancel, inferscale_answer **out)
{
    inferscale_complete_options o = options();
    inferscale_message m[5];
    size_t n = 0;

    o.ask.cancel = cancel;
    o.on_full = on_full;
    o.prompt = p->prompt;
    if (p->system) m[n++] = (inferscale_message){ "system", p->system };
    if (p->old) m[n++] = (inferscale_message){ "user", p->old }, m[n++] = (inferscale_message){ "assistant", "yes" };
    if (p->newest) m[n++] = (inferscale_message){ "user", p->newest };
    return inferscale_complete(is, &store_anna, m, p->prompt ? 0 : n, &o, out);
}

static void places(place out[4])
{
    out[0] = (place){ "the newest message", NULL, "a", huge, NULL };
    out[1] = (place){ "an old message", NULL, huge, "and now", NULL };
    out[2] = (place){ "the system text", huge, NULL, "and now", NULL };
    out[3] = (place){ "a prompt", NULL, NULL, NULL, huge };
}

/* most: bytes that may have been tokenised for it. */
static void what_cannot_fit_costs(size_t most)
{
    place all[4];
    inferscale_answer *a = NULL;

    places(all);
    for (int i = 0; i < 5; i++) {
        const inferscale_ask_options o = INFERSCALE_ASK_OPTIONS_INIT;
        inferscale_status st;

        if (i == 0) OK(inferscale_complete(is, &store_anna, (inferscale_message[]){ { "user", "a" } }, 1, NULL, &a)); /* it is open */
        inferscale_answer_free(a);
        a = NULL;
        reset();
        st = i < 4 ? send(&all[i], 0, NULL, &a) : inferscale_ask(is, &store_anna, huge, &o, &a);
        if (st != INFERSCALE_E_CONTEXT) fail_msg("%s: %d %s", i < 4 ? all[i].name : "a question", st, inferscale_error());
        if (!strstr(inferscale_error(), "this model's maximum context length is 2048 tokens")) fail_msg("%s", inferscale_error());
        if (tokenised(NULL) > most) fail_msg("%s: %zu bytes were tokenised", i < 4 ? all[i].name : "a question", tokenised(NULL));
    }
}

static void what_cannot_fit_is_not_tokenised(void **state)
{
    (void)state;
    open_store("");
    what_cannot_fit_costs(300); /* the other messages, and pieces of the format */
}

/* An engine that cannot say how long a token's text may be: the first pieces tell. */
static void without_a_longest_token_only_the_first_pieces_are_tokenised(void **state)
{
    (void)state;
    open_store(",unsized");
    what_cannot_fit_costs(64 << 10);
}

/* Whoever has the oldest left out pays for none of it, however often he asks. */
static void turns_that_cannot_fit_are_left_out_untokenised(void **state)
{
    const place p = { "old", NULL, huge, "and now", NULL };

    (void)state;
    open_store("");
    for (int i = 0; i < 3; i++) {
        inferscale_answer *a = NULL;

        if (i == 1) reset();
        OK(send(&p, 1, NULL, &a));
        assert_int_equal(a->n_turns_dropped, 1);
        inferscale_answer_free(a);
    }
    if (tokenised(NULL) > 1000) fail_msg("%zu bytes", tokenised(NULL));
}

static void a_message_is_tokenised_once(void **state)
{
    static const char text[] = "one message of a long conversation that is sent whole each time";
    inferscale_message m[21];
    inferscale_complete_options o = options();
    inferscale_answer *a = NULL;
    size_t calls;

    (void)state;
    open_store("");
    for (int i = 0; i < 21; i++) m[i] = (inferscale_message){ i % 2 ? "assistant" : "user", text };
    o.ask.mode = INFERSCALE_MODE_NONE;
    OK(inferscale_complete(is, &store_anna, m, 1, &o, &a));
    inferscale_answer_free(a);
    reset();
    OK(inferscale_complete(is, &store_anna, m, 21, &o, &a));
    assert_int_equal(a->n_turns_dropped, 0);
    inferscale_answer_free(a);
    tokenised(&calls);
    assert_in_range(calls, 21, 22); /* the newest is planned as well */
}

static void a_cancelled_request_tokenises_nothing(void **state)
{
    const place p = { "newest", NULL, "a", "and now", NULL };
    const volatile int cancel = 1;
    inferscale_answer *a = NULL;

    (void)state;
    open_store("");
    OK(send(&p, 0, NULL, &a));
    inferscale_answer_free(a);
    a = NULL;
    reset();
    assert_int_equal(send(&p, 0, &cancel, &a), INFERSCALE_E_CANCELLED);
    assert_int_equal(tokenised(NULL), 0);
}

/* An answer that is longer than the context is not the messages' fault. */
static void an_answer_that_is_too_long_is_named(void **state)
{
    inferscale_complete_options o = options();
    const inferscale_message m = { "user", "hi" };
    inferscale_answer *a = NULL;

    (void)state;
    open_store("");
    o.ask.max_tokens = 100000;
    assert_int_equal(inferscale_complete(is, &store_anna, &m, 1, &o, &a), INFERSCALE_E_CONTEXT);
    assert_non_null(strstr(inferscale_error(), "an answer of 100000 tokens leaves no room"));
}

/* ---- Nothing else is refused --------------------------------------------------------------------------------------------- */

/* Texts around the bound, of letters in pairs (two bytes a token) and of signs (one): the verdict is that of their tokens. */
static void what_fits_is_not_refused(void **state)
{
    unsigned long long rng = scratch_seed("fit");
    const char *const unsized[] = { "", ",unsized" };

    (void)state;
    for (int kind = 0; kind < 2; kind++) {
        open_store(unsized[kind]);
        OK(is_handle_engine(is));
        for (int i = 0; i < 200; i++) {
            const uint32_t room = 1 + scratch_below(&rng, i % 4 ? 1000 : 40000);
            const size_t len = room / 2 + scratch_below(&rng, 5 * room);
            const is_fit fit = { room, NULL };
            char *text = malloc(len + 1);
            int32_t *ids, *fitting;
            uint32_t n, m;

            for (size_t k = 0; k < len; k++) text[k] = scratch_below(&rng, 8) ? (char)('a' + scratch_below(&rng, 26)) : '.';
            text[len] = '\0';
            OK(is_engine_tokenize(is->engine, NULL, text, len, false, false, &ids, &n));
            inferscale_status st = is_engine_tokenize_fit(is->engine, NULL, text, len, false, false, &fit, &fitting, &m);
            if (n <= room && st != INFERSCALE_OK) fail_msg("%u tokens of %zu bytes were refused for a room of %u", n, len, room);
            if (st == INFERSCALE_OK) {
                assert_int_equal(m, n);
                assert_memory_equal(ids, fitting, n * sizeof *ids);
            } else {
                assert_int_equal(st, INFERSCALE_E_CONTEXT);
            }
            is_free(ids);
            is_free(fitting);
            free(text);
        }
        if (kind == 0) close_store(NULL);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(what_cannot_fit_is_not_tokenised, close_store),
        cmocka_unit_test_teardown(without_a_longest_token_only_the_first_pieces_are_tokenised, close_store),
        cmocka_unit_test_teardown(turns_that_cannot_fit_are_left_out_untokenised, close_store),
        cmocka_unit_test_teardown(a_message_is_tokenised_once, close_store),
        cmocka_unit_test_teardown(a_cancelled_request_tokenises_nothing, close_store),
        cmocka_unit_test_teardown(an_answer_that_is_too_long_is_named, close_store),
        cmocka_unit_test_teardown(what_fits_is_not_refused, close_store),
    };
    huge = malloc(LONG + 1);
    assert_non_null(huge);
    memset(huge, 'x', LONG);
    huge[LONG] = '\0';
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    free(huge);
    return failed;
}
