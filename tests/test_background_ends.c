/* How the background encoder ends and fails: however often the process is killed, what was acknowledged is encoded in the end, each fact
 * once; closing does not wait; failures are kept, backed off, told and survived. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "api/background.h"
#include "support/background_kit.h"
#include "support/scratch.h"

/* ---- Restart and kill ----------------------------------------------------------------------------------------------------- */

/* Closing drops what is in progress; the next handle does the rest and nothing twice. */
static void a_restart_goes_on(void **state)
{
    inferscale_options o = bg_options("mock:slow=5");
    inferscale *is = bg_open(&o);
    size_t n, before;
    uint64_t first;

    bg_tell_many(is, &anna, 0, 300);
    UNTIL(bg_state(is, &anna).facts_encoded > 0);
    first = bg_state(is, &anna).n_unencoded;
    inferscale_close(is);
    o.model = "mock";
    o.background = 0;
    is = bg_open(&o);
    before = bg_ready(is, &anna, &n);
    inferscale_close(is);
    assert_true(first > 0 && before > 0);
    is = bg_open_plain();
    OK(inferscale_encode_wait(is, &anna, FOREVER_MS));
    bg_expect_ready(is, &anna, 300);
    assert_int_equal(bg_state(is, &anna).facts_encoded, 300 - before);
    inferscale_close(is);
}

/* Remembers and encodes until it is killed; every acknowledged fact's number is written to the pipe. */
static void live_until_killed(int fd, int from)
{
    inferscale_options o = bg_options("mock:slow=1");
    inferscale *is = NULL;

    if (inferscale_open(&is, &o) != INFERSCALE_OK) _exit(3);
    for (int i = from;; i++) {
        if (bg_tell(is, i % 2 ? &anna : &ben, i, NULL) != INFERSCALE_OK || write(fd, &i, sizeof i) != sizeof i) _exit(4);
    }
}

static void killed_in_the_midst_nothing_is_lost(void **state)
{
    unsigned long long seed = scratch_seed("kill");
    int next = 0, acked = 0;
    inferscale *is;
    inferscale_store_info info;
    size_t n, a, b;

    for (int round = 0; round < 8; round++) {
        int pipes[2], number, most = 5 + (int)scratch_below(&seed, 60), got = 0;
        pid_t child;

        assert_int_equal(pipe(pipes), 0);
        child = fork();
        if (child == 0) {
            close(pipes[0]);
            live_until_killed(pipes[1], next);
        }
        close(pipes[1]);
        while (got < most && read(pipes[0], &number, sizeof number) == sizeof number) got++;
        usleep(scratch_below(&seed, 20000)); /* in the midst of whatever */
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        while (read(pipes[0], &number, sizeof number) == sizeof number) got++;
        close(pipes[0]);
        acked += got;
        next += got + 1; /* the one in progress may be there or not */
    }
    is = bg_open_plain();
    OK(inferscale_encode_wait(is, NULL, FOREVER_MS));
    a = bg_ready(is, &anna, &n);
    assert_int_equal(a, n);
    b = bg_ready(is, &ben, &n);
    assert_int_equal(b, n);
    assert_in_range(a + b, (size_t)acked, (size_t)acked + 8);
    OK(inferscale_store(is, 1, &info));
    assert_true(info.sqlite_ok);
    assert_int_equal(info.n_segments, a + b); /* no file that nobody knows */
    inferscale_close(is);
}

/* A minute's capture is under way; closing must not wait for it. The test's own time limit is the judge. */
static void closing_drops_a_capture(void **state)
{
    inferscale_options o = bg_options("mock:slow=600000");
    inferscale *is = bg_open(&o);

    bg_tell_many(is, &anna, 0, 3);
    UNTIL(bg_state(is, &anna).n_unembedded == 0 && bg_state(is, &anna).running);
    usleep(50000);
    inferscale_close(is);

    o.embedder = "mock:slow=600000"; /* and an embedding */
    o.model = "mock:id=2";
    is = bg_open(&o);
    bg_tell_many(is, &anna, 3, 3);
    usleep(50000);
    inferscale_close(is);
}

static void opening_and_closing_at_once(void **state)
{
    for (int i = 0; i < 20; i++) {
        inferscale *is = bg_open_plain();

        if (i % 2) OK(bg_tell(is, &anna, i, NULL));
        inferscale_close(is);
    }
}

/* ---- Failures ------------------------------------------------------------------------------------------------------------- */

static void a_failure_passes(void **state)
{
    inferscale_options o = bg_options("mock:fail-capture=2");
    inferscale *is;
    inferscale_encoder_state s;

    o.embedder = "mock:fail-embed=1";
    is = bg_open(&o);
    bg_tell_many(is, &anna, 0, 60);
    OK(inferscale_encode_wait(is, NULL, FOREVER_MS));
    bg_tell_many(is, &anna, 60, 60);
    OK(inferscale_encode_wait(is, NULL, FOREVER_MS));
    s = bg_state(is, NULL);
    assert_int_equal(s.n_errors, 2);
    assert_int_equal(s.error, INFERSCALE_OK);
    assert_non_null(strstr(s.last_error, "fails, as asked for"));
    assert_true(s.error_time > 0);
    assert_int_equal(s.n_unencoded + s.n_unembedded, 0);
    bg_expect_ready(is, &anna, 120);
    inferscale_close(is);
}

/* A failure that stays is told to who waits, and is over when its cause is. */
static void a_failure_that_stays_is_told(void **state)
{
    char tmp[512], away[512];
    inferscale *is = bg_open_plain();
    inferscale_encoder_state s;
    FILE *f;

    bg_tell_many(is, &anna, 0, 3);
    OK(inferscale_encode_wait(is, NULL, FOREVER_MS));
    snprintf(tmp, sizeof tmp, "%s", scratch_path(bg_home, "vault"));
    snprintf(away, sizeof away, "%s", scratch_path(bg_home, "away"));
    assert_int_equal(rename(tmp, away), 0);
    assert_non_null(f = fopen(tmp, "w")); /* no folder where the vault was */
    fclose(f);
    bg_tell_many(is, &anna, 3, 3); /* remembering goes on */
    assert_int_not_equal(inferscale_encode_wait(is, NULL, FOREVER_MS), INFERSCALE_OK);
    assert_non_null(strstr(inferscale_error(), "the background encoder fails"));
    s = bg_state(is, NULL);
    assert_true(s.n_errors >= 3);
    assert_int_not_equal(s.error, INFERSCALE_OK);
    assert_true(s.retry_s > 0);
    assert_int_equal(s.n_unencoded, 3);
    assert_int_equal(s.n_unembedded, 0); /* the other stage is not held up */
    assert_int_equal(unlink(tmp), 0);
    assert_int_equal(rename(away, tmp), 0);
    UNTIL(bg_state(is, NULL).error == INFERSCALE_OK);
    OK(inferscale_encode_wait(is, NULL, FOREVER_MS));
    bg_expect_ready(is, &anna, 6);
    inferscale_close(is);
}

/* The model is not there: embedding and remembering go on, the state says why. */
static void a_model_that_is_gone(void **state)
{
    inferscale_options o = bg_options("/nowhere/model.gguf");
    inferscale *is;
    inferscale_encoder_state s;

    o.engine = "llama";
    o.embedder = "/nowhere/embedder.gguf";
    is = bg_open(&o);
    bg_tell_many(is, &anna, 0, 3);
    FAILS(E_NOTFOUND, inferscale_encode_wait(is, NULL, FOREVER_MS));
    s = bg_state(is, NULL);
    assert_int_equal(s.model_known, 0);
    assert_int_equal(s.n_unencoded, 3);
    assert_int_equal(s.n_unembedded, 3);
    assert_non_null(strstr(s.last_error, "/nowhere/"));
    inferscale_close(is);
}

static void misuse_is_refused(void **state)
{
    inferscale_options o = bg_options("mock");
    inferscale_encoder_state s = { 0 };
    inferscale *is = NULL;

    o.background = 0;
    is = bg_open(&o);
    OK(bg_tell(is, &anna, 1, NULL));
    FAILS(E_INVALID, inferscale_encode_wait(is, NULL, 10));
    FAILS(E_INVALID, inferscale_encode_status(is, NULL, &s));
    FAILS(E_INVALID, inferscale_encode_status(is, NULL, NULL));
    s = bg_state(is, &anna);
    assert_int_equal(s.background, 0);
    assert_int_equal(s.n_unencoded, 1); /* of no model at all */
    assert_int_equal(s.model_known, 0);
    assert_int_equal(bg_state(is, &ben).n_unencoded, 0);
    inferscale_close(is);
    o.background = o.read_only = 1;
    is = NULL;
    FAILS(E_INVALID, inferscale_open(&is, &o));
}

/* ---- Main ----------------------------------------------------------------------------------------------------------------- */

#define TEST(f) cmocka_unit_test_setup_teardown(f, bg_set_up, bg_tear_down)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        TEST(a_restart_goes_on), TEST(killed_in_the_midst_nothing_is_lost), TEST(closing_drops_a_capture), TEST(opening_and_closing_at_once),
        TEST(a_failure_passes), TEST(a_failure_that_stays_is_told), TEST(a_model_that_is_gone), TEST(misuse_is_refused),
    };

    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, bg_find_plugins, NULL);
}
