/* Stored rows of what prompts begin with, on a fake vLLM: those of a client's own words are their process's as long as it lives, whoever else
 * opens the store; one that a server cannot use is looked at, and captured anew if it is damaged; and plans need heads of segments alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "kv/ticket.h"
#include "support/scratch.h"
#include "support/vllm_kit.h"

static uint32_t n_segments;
static char one[512];               /* the last of them */

static int count_segment(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    (void)st;
    (void)ftw;
    if (kind != FTW_F || strlen(path) < 4 || strcmp(path + strlen(path) - 4, ".seg") != 0) return 0;
    n_segments++;
    snprintf(one, sizeof one, "%s", path);
    return 0;
}

static uint32_t heads(const vt_set *s)
{
    n_segments = 0;
    nftw(scratch_path(s->home, "vllm/heads"), count_segment, 8, FTW_PHYS);
    return n_segments;
}

/* whose NULL: under a salt of its own, so that nothing is in the server's cache */
static void ask(void *e, const vt_plan *p, const is_realm *whose, is_run_stats *stats)
{
    is_run *run;

    OK(V->begin(e, &p->plan, &(is_run_opts){ .realm = whose, .no_prefix_cache = !whose }, &run));
    vt_expect_answer(e, run, p->ids, p->n, 12);
    V->rest(e, run);
    V->stats(e, run, stats);
    V->finish(e, run);
}

/* ---- Whose they are -------------------------------------------------------------------------------------------------------- */

static void a_client_s_heads_are_their_process_s(void **state)
{
    const is_realm anna = vt_realm(7, 1);
    uint32_t captured;
    is_run_stats stats;
    void *second;
    vt_plan p;
    vt_set s;

    (void)state;
    vt_start(&s, 1);
    vt_question(&p);
    p.parts[0].common = false; /* the client's own system text */
    ask(s.e, &p, &anna, &stats);
    assert_int_equal(heads(&s), 1);
    captured = fake_look(s.f[0]).captures;
    OK(vt_open_urls(s.home, s.f[0]->url, &second)); /* the first one's stay */
    assert_int_equal(heads(&s), 1);
    ask(s.e, &p, &anna, &stats);
    assert_string_equal(stats.why, "");
    assert_int_equal(fake_look(s.f[0]).captures, captured);
    ask(second, &p, &anna, &stats); /* has its own */
    assert_int_equal(heads(&s), 2);
    V->close(second);
    assert_int_equal(heads(&s), 1);
    ask(s.e, &p, &anna, &stats);
    assert_int_equal(fake_look(s.f[0]).captures, captured + 1);
    V->close(s.e);
    s.e = NULL;
    assert_int_equal(heads(&s), 0);
    OK(vt_open_set(&s));
    vt_drop(&p);
    vt_stop(&s);
}

/* Another process raises the epoch and cannot know of ours: what was made before goes with the next question. */
static void heads_of_before_go_when_the_epoch_is_known(void **state)
{
    const is_realm anna[] = { vt_realm(7, 1), vt_realm(7, 2) }, bert = vt_realm(8, 1);
    is_run_stats stats;
    uint32_t captured;
    size_t pending;
    char old[512];
    void *second;
    vt_plan p, q;
    vt_set s;

    (void)state;
    vt_start(&s, 1);
    vt_question(&p);
    p.parts[0].common = false;
    q = (vt_plan){ 0 };
    vt_add(&q, IS_ROLE_HEADER, "What she said since is something else: ", 0);
    vt_add(&q, IS_ROLE_FACT, "- Anna likes tea a lot.\n", 1);
    vt_add(&q, IS_ROLE_QUESTION, "What does Anna like?", 0);
    q.parts[0].common = false;
    ask(s.e, &p, &anna[0], &stats);
    assert_int_equal(heads(&s), 1);
    snprintf(old, sizeof old, "%s", one);
    ask(s.e, &p, &bert, &stats);
    OK(vt_open_urls(s.home, s.f[0]->url, &second));
    OK(V->revoke(second, &anna[1], 20000, &pending));
    V->close(second);
    assert_int_equal(heads(&s), 2); /* they are the first one's */
    ask(s.e, &q, &anna[1], &stats);
    assert_int_equal(heads(&s), 2);
    assert_int_not_equal(access(old, F_OK), 0);
    ask(s.e, &p, &anna[1], &stats); /* the same words under the new one: made anew, and kept */
    captured = fake_look(s.f[0]).captures;
    ask(s.e, &p, &anna[1], &stats);
    ask(s.e, &p, &bert, &stats);
    assert_int_equal(heads(&s), 3);
    assert_int_equal(fake_look(s.f[0]).captures, captured);
    OK(V->revoke(s.e, &anna[1], 20000, &pending)); /* of this epoch itself nothing goes */
    assert_int_equal(heads(&s), 3);
    vt_drop(&p);
    vt_drop(&q);
    vt_stop(&s);
}

/* Both processes have the same salts: what the first one's questions left in the server's cache serves the second one's. */
static void whose_they_are_is_not_in_the_salt(void **state)
{
    const is_realm anna = vt_realm(7, 1);
    is_run_stats stats;
    uint8_t salt[32];
    void *second;
    vt_plan p;
    vt_set s;

    (void)state;
    vt_start(&s, 1);
    vt_question(&p);
    p.parts[0].common = false;
    ask(s.e, &p, &anna, &stats);
    memcpy(salt, s.f[0]->ticket->salt, sizeof salt);
    OK(vt_open_urls(s.home, s.f[0]->url, &second));
    ask(second, &p, &anna, &stats);
    assert_memory_equal(salt, s.f[0]->ticket->salt, sizeof salt);
    V->close(second);
    vt_drop(&p);
    vt_stop(&s);
}

/* ---- Damage ---------------------------------------------------------------------------------------------------------------- */

static void a_damaged_head_is_captured_anew(void **state)
{
    struct stat before, after;
    is_run_stats stats;
    uint32_t captured;
    char path[512];
    vt_plan p;
    vt_set s;

    (void)state;
    vt_start(&s, 1);
    vt_question(&p);
    ask(s.e, &p, NULL, &stats);
    assert_int_equal(heads(&s), 1);
    snprintf(path, sizeof path, "%s", one);
    captured = fake_look(s.f[0]).captures;
    assert_int_equal(stat(path, &before), 0);
    assert_int_equal(truncate(path, before.st_size / 2), 0);
    fake_set(s.f[0], FAKE_HEAD_FAILS);
    ask(s.e, &p, NULL, &stats);
    assert_string_equal(stats.reason, "torn");
    assert_null(strchr(stats.why, '/'));
    assert_int_equal(stats.n_bad, 0); /* none of the vault's */
    assert_int_equal(heads(&s), 0);
    fake_set(s.f[0], FAKE_GOOD);
    ask(s.e, &p, NULL, &stats);
    assert_string_equal(stats.why, "");
    assert_int_equal(fake_look(s.f[0]).captures, captured + 1);
    assert_int_equal(stat(path, &after), 0);
    assert_int_equal(after.st_size, before.st_size);
    fake_set(s.f[0], FAKE_HEAD_FAILS); /* a server that says so of what is well */
    for (int i = 0; i < 3; i++) ask(s.e, &p, NULL, &stats);
    assert_int_equal(stat(path, &before), 0);
    assert_true(before.st_ino == after.st_ino);
    assert_int_equal(fake_look(s.f[0]).captures, captured + 1);
    vt_drop(&p);
    vt_stop(&s);
}

/* ---- Plans ----------------------------------------------------------------------------------------------------------------- */

static void bare_segments_are_enough(void **state)
{
    is_segment *bare[2];
    is_run_stats stats;
    uint32_t n_parts;
    vt_plan p;
    vt_set s;

    (void)state;
    vt_start(&s, 1);
    vt_question(&p);
    ask(s.e, &p, NULL, &stats);
    n_parts = s.f[0]->ticket->n_parts;
    for (int i = 0; i < 2; i++) {
        const char *path = scratch_path(s.home, i ? "b.seg" : "a.seg");

        OK(is_segment_write(p.parts[1 + i].segment, is_fs_posix(), path));
        OK(is_segment_read_bare(is_fs_posix(), path, &bare[i]));
        assert_true(!is_segment_has_rows(bare[i]) && is_segment_has_rows(p.parts[1 + i].segment));
        FAILS(E_INVALID, is_segment_write(bare[i], is_fs_posix(), scratch_path(s.home, "c.seg")));
        is_segment_unref(p.parts[1 + i].segment);
        p.parts[1 + i].segment = bare[i];
    }
    ask(s.e, &p, NULL, &stats);
    assert_string_equal(stats.why, "");
    assert_int_equal(s.f[0]->ticket->n_parts, n_parts);
    assert_memory_equal(s.f[0]->ticket->parts[1].name, is_segment_info(bare[0])->name, IS_HASH_BYTES);
    assert_int_equal(stats.tokens_injected, p.parts[1].n_tokens + p.parts[2].n_tokens);
    vt_drop(&p);
    vt_stop(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_client_s_heads_are_their_process_s),
        cmocka_unit_test(heads_of_before_go_when_the_epoch_is_known),
        cmocka_unit_test(whose_they_are_is_not_in_the_salt),
        cmocka_unit_test(a_damaged_head_is_captured_anew),
        cmocka_unit_test(bare_segments_are_enough),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
