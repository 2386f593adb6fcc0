/* What must hold of a plan: the tokens do not depend on who provides them; stored facts first, then computed ones, the best last in
 * each group; positions without gaps; what does not fit is left out from the worst end. Random plans, printed seed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/mem.h"
#include "encode/policy.h"
#include "plan/plan.h"
#include "support/scratch.h"

static uint64_t rng;

static uint32_t below(uint32_t n)
{
    rng += 0x9e3779b97f4a7c15u;
    uint64_t z = rng;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ (z >> 31)) % n);
}

static is_tokens tokens(uint32_t n, int32_t first)
{
    is_tokens t = { is_malloc((n + 1) * sizeof(int32_t)), n };

    for (uint32_t i = 0; i < n; i++) t.ids[i] = first + (int32_t)i;
    return t;
}

static is_profile profile;

static int set_up(void **state)
{
    (void)state;
    rng = scratch_seed("plan");
    profile.header = tokens(7, 100);
    profile.header_plain = tokens(4, 200);
    profile.footer = tokens(3, 300);
    profile.tail = tokens(2, 400);
    profile.next_header = tokens(5, 500);
    profile.next_plain = tokens(3, 600);
    profile.next_footer = tokens(2, 700);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    is_tokens_free(&profile.header);
    is_tokens_free(&profile.header_plain);
    is_tokens_free(&profile.footer);
    is_tokens_free(&profile.tail);
    is_tokens_free(&profile.next_header);
    is_tokens_free(&profile.next_plain);
    is_tokens_free(&profile.next_footer);
    return 0;
}

/* A segment of a two-element geometry, enough to be owned and referenced. */
static is_segment *segment(const is_tokens *t)
{
    is_geometry *g = is_geometry_new(2, 0);
    float *row = is_calloc(t->n + 1, 4 * sizeof(float));
    const float *rows[2] = { row, row };
    is_segment_desc d = { .codec = IS_CODEC_F16, .n_tokens = t->n, .tokens = t->ids, .geometry = g };
    is_segment *s = NULL;

    for (int i = 0; i < 2; i++) g->planes[i] = (is_plane){ .layer = 0, .is_v = (uint8_t)i, .freq = 0xffff, .n_heads = 1, .head_dim = 4 };
    g->n_layers = 1;
    assert_int_equal(is_segment_new(&d, rows, &s), INFERSCALE_OK);
    is_geometry_free(g);
    is_free(row);
    return s;
}

/* n facts, best first; fact i has id i + 1, tokens 1000 * (i + 1) ...; about half have KV. */
static is_plan_fact *make_facts(size_t n, uint32_t max_tokens)
{
    is_plan_fact *f = is_calloc(n + 1, sizeof *f);

    for (size_t i = 0; i < n; i++) {
        f[i].id = (int64_t)i + 1;
        f[i].version = 1;
        f[i].tokens = tokens(1 + below(max_tokens), 1000 * ((int32_t)i + 1));
        if (below(2)) f[i].segment = segment(&f[i].tokens);
    }
    return f;
}

static void check_frame(const is_plan *plan, uint32_t pos0, const is_tokens *header, bool memory, const is_tokens *question)
{
    uint32_t pos = pos0, i;

    for (i = 0; i < plan->n_parts; i++) {
        assert_int_equal(plan->parts[i].pos, pos);
        pos += plan->parts[i].n_tokens;
    }
    assert_int_equal(plan->n_tokens, pos - pos0);
    assert_int_equal(plan->parts[0].role, IS_ROLE_HEADER);
    assert_int_equal(plan->parts[0].n_tokens, header->n);
    assert_memory_equal(plan->parts[0].tokens, header->ids, header->n * sizeof(int32_t));
    i = plan->n_parts - 1;
    assert_memory_equal(plan->parts[i].tokens, profile.tail.ids, profile.tail.n * sizeof(int32_t));
    assert_memory_equal(plan->parts[i - 1].tokens, question->ids, question->n * sizeof(int32_t));
    const is_tokens *footer = header == &profile.next_header ? &profile.next_footer : &profile.footer;
    if (memory) assert_memory_equal(plan->parts[i - 2].tokens, footer->ids, footer->n * sizeof(int32_t));
}

static void check_twin(is_planned *p)
{
    const is_plan *plan = is_planned_plan(p), *twin = is_planned_twin(p);

    assert_int_equal(plan->n_parts, twin->n_parts);
    assert_int_equal(plan->n_tokens, twin->n_tokens);
    for (uint32_t i = 0; i < plan->n_parts; i++) {
        assert_int_equal(twin->parts[i].source, IS_SRC_COMPUTED);
        assert_null(twin->parts[i].segment);
        assert_int_equal(twin->parts[i].n_tokens, plan->parts[i].n_tokens);
        assert_int_equal(twin->parts[i].pos, plan->parts[i].pos);
        assert_memory_equal(twin->parts[i].tokens, plan->parts[i].tokens, plan->parts[i].n_tokens * sizeof(int32_t));
    }
}

static void random_plans_are_in_normal_form(void **state)
{
    (void)state;
    for (int round = 0; round < 500; round++) {
        size_t n = below(30);
        is_plan_fact *facts = make_facts(n, 40);
        bool had_kv[32] = { false };
        is_tokens question = tokens(1 + below(20), 9000);
        is_plan_opts o = { .repair = below(4) ? 0 : below(6), .with_memory = true, .best_first = below(2), .next_turn = below(2),
                           .pos0 = below(3) * 50, .n_ctx_left = 100000 };
        is_planned *p = NULL;
        int64_t last[2] = { o.best_first ? 0 : INT64_MAX, o.best_first ? 0 : INT64_MAX };
        int group = 0;
        size_t seen = 0;

        for (size_t i = 0; i < n; i++) had_kv[i] = facts[i].segment != NULL;
        assert_int_equal(is_plan_new(&profile, facts, n, &question, &o, &p), INFERSCALE_OK);
        const is_plan *plan = is_planned_plan(p);
        check_frame(plan, o.pos0, o.next_turn ? &profile.next_header : &profile.header, true, &question);
        for (uint32_t i = 0; i < plan->n_parts; i++) {
            const is_part *part = &plan->parts[i];
            bool stored;

            if (part->role != IS_ROLE_FACT) continue;
            stored = part->source == IS_SRC_STORED;
            assert_int_equal(part->tokens[0], 1000 * part->fact_id);
            assert_int_equal(stored, had_kv[part->fact_id - 1] && part->fact_id > o.repair);
            assert_int_equal(stored, part->segment != NULL);
            if (!stored) group = 1;
            else assert_int_equal(group, 0);                /* no stored fact after a computed one */
            assert_true(part->fact_id != last[group] && (part->fact_id > last[group]) == o.best_first); /* the best has the lowest id */
            last[group] = part->fact_id;
            seen++;
        }
        assert_int_equal(seen, n);
        check_twin(p);
        is_planned_free(p);
        is_tokens_free(&question);
        is_free(facts);
    }
}

/* The ids of a plan's facts in order; returns how many. */
static size_t order_of(const is_planned *p, int64_t *ids)
{
    const is_plan *plan = is_planned_plan(p);
    size_t n = 0;

    for (uint32_t i = 0; i < plan->n_parts; i++)
        if (plan->parts[i].role == IS_ROLE_FACT) ids[n++] = plan->parts[i].fact_id;
    return n;
}

/* With best_first the order is retrieval's, whatever is exact behind the header. */
static void the_best_stands_first_whatever_is_exact(void **state)
{
    (void)state;
    for (int round = 0; round < 100; round++) {
        size_t n = 1 + below(12);
        is_plan_fact *facts = make_facts(n, 9);
        is_tokens question = tokens(3, 9000);
        is_plan_opts o = { .with_memory = true, .best_first = true, .n_ctx_left = 100000 };
        is_planned *p = NULL;
        int64_t got[16];

        for (size_t i = 0; i < n; i++) {
            is_segment_unref(facts[i].segment);
            facts[i].segment = segment(&facts[i].tokens);
            facts[i].exact_first = below(2);
        }
        assert_int_equal(is_plan_new(&profile, facts, n, &question, &o, &p), INFERSCALE_OK);
        assert_int_equal(order_of(p, got), n);
        for (size_t i = 0; i < n; i++) assert_int_equal(got[i], i + 1);
        assert_int_equal(is_planned_first(p), 1); /* the part behind the header */
        check_twin(p);
        is_planned_free(p);
        is_tokens_free(&question);
        is_free(facts);
    }
}

/* All have KV, or none: the worst one that is exact behind the header comes first, the others from the worst to the best, which is
 * last whatever it has. The order does not depend on whether anything is stored; later in a conversation nothing is exact. */
static void a_fact_that_is_exact_there_stands_first(void **state)
{
    (void)state;
    for (int round = 0; round < 300; round++) {
        size_t n = 1 + below(12), at = 0;
        unsigned exact = below(1u << n);
        bool begins = below(4) > 0;
        int64_t want[16], got[16];

        for (size_t i = n; i-- > 1 && at == 0;)
            if (begins && exact >> i & 1) want[at++] = (int64_t)i + 1;
        for (size_t i = n; i-- > 0;)
            if (at == 0 || want[0] != (int64_t)i + 1 || !begins) want[at++] = (int64_t)i + 1;
        for (int stored = 0; stored < 2; stored++) {
            is_plan_fact *facts = make_facts(n, 9);
            is_tokens question = tokens(3, 9000);
            is_plan_opts o = { .with_memory = true, .next_turn = !begins, .pos0 = begins ? 0 : 50, .n_ctx_left = 100000 };
            is_planned *p = NULL;

            for (size_t i = 0; i < n; i++) {
                is_segment_unref(facts[i].segment);
                facts[i].segment = stored ? segment(&facts[i].tokens) : NULL;
                facts[i].exact_first = exact >> i & 1;
            }
            assert_int_equal(is_plan_new(&profile, facts, n, &question, &o, &p), INFERSCALE_OK);
            assert_int_equal(order_of(p, got), n);
            assert_memory_equal(got, want, n * sizeof *got);
            check_twin(p);
            is_planned_free(p);
            is_tokens_free(&question);
            is_free(facts);
        }
    }
}

static void what_does_not_fit_is_left_out_from_the_worst(void **state)
{
    (void)state;
    for (int round = 0; round < 200; round++) {
        size_t n = 1 + below(20), kept = 0;
        is_plan_fact *facts = make_facts(n, 40);
        uint32_t sizes[32], frame = profile.header.n + profile.footer.n + profile.tail.n + 5, room = frame + below(300), left = room - frame;
        is_tokens question = tokens(5, 9000);
        is_plan_opts o = { .with_memory = true, .n_ctx_left = room };
        is_planned *p = NULL;
        bool want[32];

        for (size_t i = 0; i < n; i++) {
            sizes[i] = facts[i].tokens.n;
            want[i] = sizes[i] <= left;
            if (want[i]) left -= sizes[i], kept++;
        }
        assert_int_equal(is_plan_new(&profile, facts, n, &question, &o, &p), INFERSCALE_OK);
        assert_int_equal(is_planned_dropped(p), n - kept);
        assert_true(is_planned_plan(p)->n_tokens <= room);
        for (uint32_t i = 0; i < is_planned_plan(p)->n_parts; i++)
            if (is_planned_plan(p)->parts[i].role == IS_ROLE_FACT) assert_true(want[is_planned_plan(p)->parts[i].fact_id - 1]);
        is_planned_free(p);
        is_tokens_free(&question);
        is_free(facts);
    }
}

static void a_question_that_does_not_fit_is_refused(void **state)
{
    is_plan_fact *facts = make_facts(3, 5);
    is_tokens question = tokens(50, 9000);
    is_plan_opts o = { .with_memory = true, .n_ctx_left = 40 };
    is_planned *p = NULL;

    (void)state;
    assert_int_equal(is_plan_new(&profile, facts, 3, &question, &o, &p), INFERSCALE_E_CONTEXT);
    assert_null(p);
    assert_non_null(strstr(is_error(), "context"));
    is_tokens_free(&question);
    is_free(facts);
}

static void without_memory_there_is_no_memory(void **state)
{
    is_plan_fact *facts = make_facts(3, 5);
    is_tokens question = tokens(5, 9000);
    is_plan_opts o = { .with_memory = false, .n_ctx_left = 1000 };
    is_planned *p = NULL;

    (void)state;
    assert_int_equal(is_plan_new(&profile, facts, 3, &question, &o, &p), INFERSCALE_OK);
    check_frame(is_planned_plan(p), 0, &profile.header_plain, false, &question);
    assert_int_equal(is_planned_plan(p)->n_tokens, profile.header_plain.n + 5 + profile.tail.n);
    is_planned_free(p);
    is_tokens_free(&question);
    is_free(facts);
}

static void policies_parse_or_say_what_is_known(void **state)
{
    static const char *const good[] = { "alone", "header", "turns:1", "turns:5+source", "facts:20", "facts:1000", "cwe:50",
                                        "near:3", "page:16", "page:16+0", "page:8+3@time", "page:16@topic", "page:16/6", "page:8+0/1@time", "company:10",
                                        "company:10x4" };
    static const char *const bad[] = { "", "Alone", "header:1", "turns", "turns:", "turns:0", "facts:-1", "facts:1001", "facts:5x",
                                       "facts:5+source", "facts: 5", "near:", "near:3x2", "page", "page:0", "page:16@", "page:16@size", "page:16+",
                                       "page:16+x", "page:16+1001", "page:8@time+3", "page:8/", "page:8/0", "page:8@time/2", "page:8/2+3", "facts:5/2", "company:10x", "company:10x0", "company:10x65",
                                       "company:10@time", "cwe:5+source", "cwe:00", "page:000000000000000000000000000016", "turns:99999999999999999999" };
    is_policy p;

    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        assert_int_equal(is_policy_parse(good[i], &p), INFERSCALE_OK);
        assert_string_equal(p.name, good[i]);
    }
    assert_int_equal(is_policy_parse("turns:5+source", &p), INFERSCALE_OK);
    assert_true(p.kind == IS_POLICY_TURNS && p.w == 5 && p.with_source);
    assert_int_equal(is_policy_parse("cwe:0", &p), INFERSCALE_OK); /* the paper's w = 0 */
    assert_true(p.kind == IS_POLICY_ALONE && p.w == 0);
    assert_string_equal(p.name, "alone");
    assert_int_equal(is_policy_parse("page:16@random", &p), INFERSCALE_OK); /* one policy, one name */
    assert_true(p.kind == IS_POLICY_PAGE && p.order == IS_PAGE_RANDOM && p.w == 16 && p.overlap == 5);
    assert_string_equal(p.name, "page:16");
    assert_int_equal(is_policy_parse("page:16+3/6@topic", &p), INFERSCALE_OK);
    assert_true(p.kind == IS_POLICY_PAGE && p.order == IS_PAGE_TOPIC && p.w == 16 && p.overlap == 3 && p.header_one_in == 6);
    assert_int_equal(is_policy_parse("company:10x4", &p), INFERSCALE_OK);
    assert_true(p.kind == IS_POLICY_COMPANY && p.w == 10 && p.passes == 4);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(is_policy_parse(bad[i], &p), INFERSCALE_E_INVALID);
        assert_non_null(strstr(is_error(), "facts:W"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_plans_are_in_normal_form),
        cmocka_unit_test(a_fact_that_is_exact_there_stands_first),
        cmocka_unit_test(the_best_stands_first_whatever_is_exact),
        cmocka_unit_test(what_does_not_fit_is_left_out_from_the_worst),
        cmocka_unit_test(a_question_that_does_not_fit_is_refused),
        cmocka_unit_test(without_memory_there_is_no_memory),
        cmocka_unit_test(policies_parse_or_say_what_is_known),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
