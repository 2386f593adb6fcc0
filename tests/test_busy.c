/* A busy store takes in memory: whatever questions are open, and whatever holds the encoder up, what is remembered gets its embedding and
 * its KV. On the mock engine; what is counted is items, steps and tokens. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "api/background.h"
#include "support/background_kit.h"
#include "support/scratch.h"

/* ---- Embedding ------------------------------------------------------------------------------------------------------------ */

/* A question that never ends: all is embedded meanwhile, each item once. */
static void embedding_does_not_wait_for_questions(void **state)
{
    inferscale *is = bg_open_plain();
    inferscale_turn turn = { .text = "And a turn." };

    is_gate_enter(is->gate);
    bg_tell_many(is, &anna, 0, 40);
    bg_tell_many(is, &ben, 0, 7);
    OK(inferscale_add_turns(is, &anna, &turn, 1, NULL));
    UNTIL(bg_state(is, NULL).n_unembedded == 0);
    UNTIL(bg_state(is, NULL).items_embedded == 48);
    assert_int_equal(bg_state(is, NULL).n_unencoded, 47);
    is_gate_leave(is->gate);
    OK(inferscale_encode_wait(is, NULL, FOREVER_MS));
    assert_int_equal(bg_state(is, NULL).items_embedded, 48);
    inferscale_close(is);
}

/* Nor for a capture that takes for ever. */
static void embedding_does_not_wait_for_the_encoder(void **state)
{
    inferscale_options o = bg_options("mock:slow=600000");
    inferscale *is = bg_open(&o);

    bg_tell_many(is, &anna, 0, 3);
    UNTIL(bg_state(is, NULL).n_unembedded == 0 && is->background->workers[IS_BG_ENCODER].in_slice);
    bg_tell_many(is, &ben, 0, 30);
    UNTIL(bg_state(is, NULL).items_embedded == 33);
    assert_int_equal(bg_state(is, NULL).facts_encoded, 0);
    inferscale_close(is);
}

/* ---- Main ----------------------------------------------------------------------------------------------------------------- */

#define TEST(f) cmocka_unit_test_setup_teardown(f, bg_set_up, bg_tear_down)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        TEST(embedding_does_not_wait_for_questions), TEST(embedding_does_not_wait_for_the_encoder),
    };

    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, bg_find_plugins, NULL);
}
