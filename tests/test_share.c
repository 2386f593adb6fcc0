/* The share of the engine's time that work in the background has while questions are open (base/share.h), against a clock of our own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "base/share.h"
#include "support/scratch.h"

static const is_share_rules rules = { .limit_ms = 5000, .least = 0.1, .most = 0.5, .slice_ms = 20 };

static void expect_near(double got, double want)
{
    if (got < want - 1e-6 || got > want + 1e-6) fail_msg("%.9f, not %.9f", got, want);
}

static void the_share_grows_with_the_lag(void **state)
{
    is_share s;
    is_share_rules never = rules;

    is_share_init(&s, &rules, 0);
    expect_near(is_share_now(&s, 1e6), 0); /* nothing waits */
    is_share_waits(&s, 1e6, true, 1e6);
    expect_near(is_share_lag(&s, 1e6 + 4999), 4999);
    expect_near(is_share_now(&s, 1e6 + 4999), 0);
    expect_near(is_share_now(&s, 1e6 + 5000), 0.1);
    expect_near(is_share_now(&s, 1e6 + 10000), 0.2);
    expect_near(is_share_now(&s, 1e6 + 25000), 0.5);
    expect_near(is_share_now(&s, 1e6 + 1e9), 0.5);
    is_share_waits(&s, 2e6, false, 0);
    expect_near(is_share_now(&s, 3e6), 0);
    never.limit_ms = -1;
    is_share_init(&s, &never, 0);
    is_share_waits(&s, 0, true, 0);
    is_share_questions(&s, 0, true);
    expect_near(is_share_now(&s, 1e9), 0);
    expect_near(is_share_next(&s, 1e9), -1);
    assert_false(is_share_begin(&s, 1e9));
}

/* 20 ms of credit at a tenth of the time: 200 ms. A slice of 20 ms earns 2 more while it runs, and ends when all is used. */
static void slices_come_when_they_are_due(void **state)
{
    is_share s;

    is_share_init(&s, &(is_share_rules){ .limit_ms = 5000, .least = 0.1, .most = 0.1, .slice_ms = 20 }, 0);
    is_share_waits(&s, 0, true, 0);
    expect_near(is_share_next(&s, 0), -1); /* no question is open: it needs none */
    is_share_questions(&s, 0, true);
    expect_near(is_share_next(&s, 0), 5200);
    expect_near(is_share_next(&s, 5000), 200);
    assert_false(is_share_begin(&s, 5199));
    assert_true(is_share_begin(&s, 5200));
    assert_false(is_share_begin(&s, 5200)); /* one at a time */
    assert_true(is_share_go_on(&s, 5222));
    assert_false(is_share_go_on(&s, 5223));
    is_share_end(&s, 5230);                 /* 7 ms too long: paid back */
    expect_near(is_share_next(&s, 5230), 270);
    expect_near(s.used_ms, 30);
    expect_near(s.open_ms, 5230);
    assert_int_equal(s.slices, 1);
    expect_near(is_share_next(&s, 1e6), 0); /* no more than one slice is saved up */
    assert_true(is_share_begin(&s, 1e6));
    assert_false(is_share_go_on(&s, 1e6 + 23));
}

/* Work beside no question costs nothing, and idle time earns nothing. */
static void only_time_with_questions_counts(void **state)
{
    is_share s;

    is_share_init(&s, &rules, 0);
    is_share_waits(&s, 0, true, 0);
    is_share_questions(&s, 100000, true);
    assert_false(is_share_begin(&s, 100000));
    assert_true(is_share_begin(&s, 100040)); /* half of 40 ms */
    is_share_questions(&s, 100045, false);
    is_share_end(&s, 100500);
    expect_near(s.used_ms, 5);
    expect_near(s.open_ms, 45);
    expect_near(s.credit_ms, 17.5);
}

/* An engine that runs questions' steps of a few milliseconds one after the other, without any gap, and a job in the background: pieces of a
 * few milliseconds, some much too long. However it comes, the job is done in bounded time, gets nothing below the limit, and never
 * more than its share. */
static void no_load_starves_a_job_and_no_job_takes_more(void **state)
{
    unsigned long long seed = scratch_seed("share");

    for (int round = 0; round < 200; round++) {
        double now = 0, job = 200 + scratch_below(&seed, 3000), longest = 0;
        const bool some_long = scratch_below(&seed, 2);
        is_share s;

        is_share_init(&s, &rules, now);
        is_share_waits(&s, now, true, now);
        is_share_questions(&s, now, true);
        while (job > 0) {
            now += 1 + scratch_below(&seed, 40); /* a step */
            if (!is_share_begin(&s, now)) continue;
            assert_true(now >= rules.limit_ms);
            do {
                double piece = 1 + scratch_below(&seed, 4);

                if (some_long && scratch_below(&seed, 10) == 0) piece += scratch_below(&seed, 100);
                if (piece > longest) longest = piece;
                now += piece;
                job -= piece;
            } while (job > 0 && is_share_go_on(&s, now));
            is_share_end(&s, now);
            assert_true(s.used_ms <= rules.most * (now - rules.limit_ms) + 2 * rules.slice_ms + longest);
            if (now < 10000) assert_true(s.used_ms <= 0.2 * (now - rules.limit_ms) + 2 * rules.slice_ms + longest);
        }
        /* at a tenth of the time or more, a slice at a time, each found at the next step only */
        if (now > rules.limit_ms + 3200 / rules.least * 1.5 + 200) fail_msg("done after %.0f ms", now);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_share_grows_with_the_lag), cmocka_unit_test(slices_come_when_they_are_due),
        cmocka_unit_test(only_time_with_questions_counts), cmocka_unit_test(no_load_starves_a_job_and_no_job_takes_more),
    };

    if (argc > 1) cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
