/* What must hold of gc, du and rebuild: nothing that is wanted is ever removed, another model's view stands beside the old one, views are
 * made anew; and all of it, fsck too, beside others at work. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "bank/bank.h"
#include "support/scratch.h"
#include "support/store_kit.h"
#include "support/store_template.h"

enum { FACTS = TEMPLATE_FACTS };

/* ---- gc ------------------------------------------------------------------------------------------------------------------------ */

static size_t count_files(const char *suffix)
{
    size_t n;
    char **files = store_files(home, suffix, &n);

    store_files_free(files, n);
    return n;
}

static void gc_removes_what_nobody_names_and_nothing_else(void **state)
{
    inferscale_gc_options o = INFERSCALE_GC_OPTIONS_INIT;
    size_t before = count_files(".seg"), all;
    inferscale *is;

    file_unnamed();
    file_misplaced();
    file_bad();
    file_stray();
    all = count_files("");
    is = store_open(home, NULL, NULL, false);
    o.dry_run = 1;
    OK(inferscale_gc(is, &o));
    assert_int_equal(o.unnamed_files, 0);
    assert_int_equal(o.kept_unnamed_files, 2); /* another bank may name them */
    assert_true(o.kept_unnamed_bytes > 0);
    uint64_t kept = o.kept_unnamed_bytes;
    o.unnamed = 1;
    OK(inferscale_gc(is, &o));
    assert_int_equal(o.unnamed_files, 2);
    assert_int_equal(o.kept_unnamed_files, 0);
    assert_int_equal(o.removed_bytes, kept + 1); /* and the damaged one's byte */
    assert_int_equal(o.bad_files, 1);
    assert_int_equal(count_files(""), all);
    uint64_t would = o.removed_bytes;
    o.dry_run = 0;
    OK(inferscale_gc(is, &o));
    assert_int_equal(o.unnamed_files, 2);
    assert_int_equal(o.bad_files, 1);
    assert_int_equal(o.removed_bytes, would);
    assert_int_equal(count_files(".seg"), before);
    assert_int_equal(count_files(".bad"), 0);
    assert_int_equal(count_files(".txt"), 1); /* not ours */
    OK(inferscale_gc(is, &o));
    assert_int_equal(o.unnamed_files + o.bad_files + o.view_files + o.evicted_files + o.removed_bytes, 0);
    unlink(unknown("ee", ".txt"));
    inferscale_answer *a = store_ask(is);
    assert_string_equal(a->text, answer);
    assert_string_equal(a->fallback, "");
    inferscale_answer_free(a);
    inferscale_close(is);
    store_expect_sound(home);
}

/* With another model facts are served as text until its own view is there; the old view stays and serves its model. */
static void another_model_is_another_view_beside_the_old_one(void **state)
{
    inferscale_gc_options o = INFERSCALE_GC_OPTIONS_INIT;
    size_t old_files = count_files(".seg"), both;
    inferscale *is = store_open(home, "mock:id=2", "mock:dim=24", false);
    inferscale_answer *a = store_ask(is);

    assert_int_equal(a->tokens_injected, 0); /* a segment of another model never serves */
    assert_non_null(strstr(a->fallback, "no KV"));
    inferscale_answer_free(a);
    store_encode(is);
    both = count_files(".seg");
    assert_true(both > old_files);
    a = store_ask(is);
    assert_string_equal(a->fallback, "");
    assert_true(a->tokens_injected > 0);
    inferscale_answer_free(a);
    inferscale_close(is);
    store_expect_sound(home);
    is = store_open(home, NULL, NULL, false); /* back: nothing has to be made again */
    a = store_ask(is);
    assert_string_equal(a->fallback, "");
    assert_string_equal(a->text, answer);
    inferscale_answer_free(a);
    inferscale_encode_options e = INFERSCALE_ENCODE_OPTIONS_INIT;
    OK(inferscale_encode(is, &store_anna, &e));
    assert_int_equal(e.tokens_computed, 0);
    o.keep = "current";
    OK(inferscale_gc(is, &o));
    assert_int_equal(o.view_files, both - old_files);
    assert_true(o.view_embeddings > 0);
    assert_int_equal(count_files(".seg"), old_files);
    a = store_ask(is);
    assert_string_equal(a->text, answer);
    assert_string_equal(a->fallback, "");
    inferscale_answer_free(a);
    inferscale_close(is);
    store_expect_sound(home);
    is = store_open(home, "mock:id=2", "mock:dim=24", false);
    a = store_ask(is);
    assert_int_equal(a->tokens_injected, 0);
    inferscale_answer_free(a);
    inferscale_close(is);
}

/* The system text is part of what makes a view, too. (Rows in another codec take the old ones' place: test_narrow.) */
static void another_system_text_is_another_view(void **state)
{
    inferscale_options o = store_options(home);
    inferscale *is = NULL;
    size_t old_files = count_files(".seg");
    inferscale_usage_report *u = NULL;
    inferscale_gc_options g = INFERSCALE_GC_OPTIONS_INIT;
    char keep[80] = "";

    is = store_open(home, NULL, NULL, false);
    OK(inferscale_usage(is, NULL, &u));
    for (size_t i = 0; i < u->n; i++)
        if (strcmp(u->rows[i].what, "segments") == 0) snprintf(keep, sizeof keep, "%.12s", u->rows[i].model);
    inferscale_usage_free(u);
    inferscale_close(is);
    for (int i = 0; i < 2; i++) {
        o.system = i ? "You are a parrot." : "You are an owl.";
        OK(inferscale_open(&is, &o));
        inferscale_answer *a = store_ask(is);
        assert_int_equal(a->tokens_injected, 0);
        inferscale_answer_free(a);
        store_encode(is);
        a = store_ask(is);
        assert_string_equal(a->fallback, "");
        inferscale_answer_free(a);
        inferscale_close(is);
        assert_true(count_files(".seg") > old_files * (size_t)(i + 1));
    }
    is = store_open(home, NULL, NULL, false);
    g.keep = keep; /* by hand, as du shows it; embeddings are not named, so they would go */
    g.dry_run = 1;
    OK(inferscale_gc(is, &g));
    assert_int_equal(g.view_files, count_files(".seg") - old_files);
    g.dry_run = 0;
    OK(inferscale_gc(is, &g));
    assert_int_equal(count_files(".seg"), old_files);
    assert_true(g.view_embeddings > 0);
    inferscale_close(is);
    store_expect_sound(home);
}

static bool kept(int64_t item)
{
    char sql[200];

    snprintf(sql, sizeof sql, "SELECT count(*) FROM segments WHERE item_id = %lld AND lead = 0", (long long)item);
    return store_sql_int(home, sql) > 0;
}

static void a_budget_takes_the_least_useful_first_and_says_so(void **state)
{
    inferscale_gc_options o = INFERSCALE_GC_OPTIONS_INIT;
    int64_t pinned = store_sql_int(home, "SELECT min(item_id) FROM fact_versions WHERE partition_id = 1");
    int64_t lapsed = store_sql_int(home, "SELECT max(item_id) FROM fact_versions WHERE partition_id = 1");
    inferscale *is;
    char sql[300];

    snprintf(sql, sizeof sql, "UPDATE items SET pinned = 1 WHERE id = %lld; UPDATE fact_versions SET expires = 1714521700 WHERE item_id = %lld;"
             "UPDATE segments SET write_time = id", (long long)pinned, (long long)lapsed);
    store_sql(home, sql);
    is = store_open(home, NULL, NULL, false);
    OK(inferscale_gc(is, &o));
    uint64_t whole = o.vault_bytes;
    o.max_bytes = whole - 1; /* one file too much */
    OK(inferscale_gc(is, &o));
    assert_true(o.evicted_files >= 1);
    assert_true(o.vault_bytes <= o.max_bytes);
    assert_false(kept(lapsed) && store_sql_int(home, "SELECT count(*) FROM segments WHERE lead = 1") == 0);
    o.max_bytes = whole / 4;
    OK(inferscale_gc(is, &o));
    assert_true(o.evicted_files > 3);
    assert_true(o.vault_bytes <= whole / 4);
    assert_true(kept(pinned));
    assert_false(kept(lapsed));
    inferscale_answer *a = store_ask(is);
    assert_non_null(strstr(a->fallback, "no KV"));
    assert_non_null(strstr(a->text, "on day number 3")); /* the facts are the same */
    inferscale_answer_free(a);
    inferscale_close(is);
    store_expect_sound(home);
    is = store_open(home, NULL, NULL, false);
    store_encode(is);
    a = store_ask(is);
    assert_string_equal(a->fallback, "");
    inferscale_answer_free(a);
    o.max_bytes = 1;
    OK(inferscale_gc(is, &o));
    assert_int_equal(count_files(".seg"), 0);
    inferscale_close(is);
    store_expect_sound(home);
}

static void space_is_given_back(void **state)
{
    inferscale *is = store_open(home, NULL, NULL, false);
    inferscale_gc_options o = INFERSCALE_GC_OPTIONS_INIT;
    inferscale_usage_report *u = NULL;
    char *text = malloc(40001);

    memset(text, 'x', 40000);
    text[40000] = 0;
    for (int i = 0; i < 30; i++) {
        snprintf(text, 12, "%010d", i);
        text[10] = ' ';
        store_fact(is, &store_ben, text);
    }
    free(text);
    OK(inferscale_forget_all(is, &store_ben, NULL));
    OK(inferscale_gc(is, &o));
    assert_true(o.bank_freed_bytes > 800000);
    OK(inferscale_usage(is, NULL, &u));
    assert_int_equal(u->bank_free_bytes, 0);
    inferscale_usage_free(u);
    o.compact = 1;
    OK(inferscale_gc(is, &o));
    inferscale_close(is);
    store_expect_sound(home);
}

/* ---- du ------------------------------------------------------------------------------------------------------------------------ */

static void usage_adds_up(void **state)
{
    inferscale *is;
    inferscale_usage_report *u = NULL, *one = NULL;
    uint64_t segments = 0, text = 0, anna = 0, anna_alone = 0, real = 0;
    size_t n;
    struct stat s;

    file_unnamed();
    is = store_open(home, NULL, NULL, true);
    OK(inferscale_usage(is, NULL, &u));
    char **files = store_files(home, ".seg", &n);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(stat(files[i], &s), 0);
        real += (uint64_t)s.st_size;
    }
    store_files_free(files, n);
    for (size_t i = 0; i < u->n; i++) {
        if (strcmp(u->rows[i].what, "segments") == 0) segments += u->rows[i].bytes;
        if (strcmp(u->rows[i].what, "text") == 0) text += u->rows[i].n;
        if (strcmp(u->rows[i].owner, "anna") == 0) anna += u->rows[i].bytes;
        assert_string_equal(u->rows[i].owner_kind, "user");
        assert_string_equal(u->rows[i].tenant, strcmp(u->rows[i].owner, "ben") == 0 ? "north" : "");
    }
    assert_int_equal(u->vault_bytes, real);
    assert_int_equal(segments + u->unnamed_bytes, real);
    assert_true(u->unnamed_bytes > 0);
    assert_int_equal(text, FACTS + FACTS / 2 + 3);
    assert_int_equal(stat(scratch_path(home, "bank.sqlite"), &s), 0);
    assert_int_equal(u->bank_bytes, s.st_size);
    OK(inferscale_usage(is, &store_anna, &one));
    for (size_t i = 0; i < one->n; i++) {
        assert_string_equal(one->rows[i].owner, "anna");
        anna_alone += one->rows[i].bytes;
    }
    assert_int_equal(anna, anna_alone);
    inferscale_usage_free(u);
    inferscale_usage_free(one);
    inferscale_close(is);
}

/* ---- rebuild --------------------------------------------------------------------------------------------------------------------- */

typedef struct watched { uint64_t calls, last_done, last_total; bool backwards; } watched;

static int watch(void *ctx, uint64_t done, uint64_t total, const char *what)
{
    watched *w = ctx;

    if (done > total) w->backwards = true;
    w->calls++;
    w->last_done = done;
    w->last_total = total;
    return 0;
}

static int stop_soon(void *ctx, uint64_t done, uint64_t total, const char *what)
{
    return ++*(int *)ctx > 3;
}

static void views_are_made_anew(void **state)
{
    inferscale_rebuild_options o = INFERSCALE_REBUILD_OPTIONS_INIT;
    watched w = { 0 };
    inferscale *is;
    int calls = 0;

    payload_flipped();
    store_sql(home, "UPDATE embeddings SET q = zeroblob(length(q))");
    is = store_open(home, NULL, NULL, false);
    o.what = INFERSCALE_REBUILD_EMBEDDINGS;
    o.on_progress = watch;
    o.progress_ctx = &w;
    OK(inferscale_rebuild(is, NULL, &o));
    assert_int_equal(o.owners, 2);
    assert_int_equal(o.embedded, FACTS + FACTS / 2 + 3);
    assert_int_equal(o.facts_encoded, 0);
    assert_true(w.calls > 0 && !w.backwards);
    assert_int_equal(w.last_done, w.last_total);
    assert_int_equal(store_sql_int(home, "SELECT count(*) FROM embeddings WHERE q = zeroblob(length(q))"), 0);
    o.what = INFERSCALE_REBUILD_KV;
    OK(inferscale_rebuild(is, &store_anna, &o));
    assert_int_equal(o.owners, 1);
    assert_true(o.facts_encoded >= FACTS);
    assert_true(o.tokens_computed > 0);
    o.what = 0;
    OK(inferscale_rebuild(is, NULL, &o));
    assert_true(o.embedded && o.facts_encoded);
    o.on_progress = stop_soon;
    o.progress_ctx = &calls;
    FAILS(E_CANCELLED, inferscale_rebuild(is, NULL, &o));
    inferscale_answer *a = store_ask(is);
    assert_string_equal(a->fallback, "");
    assert_string_equal(a->text, answer);
    inferscale_answer_free(a);
    inferscale_close(is);
    store_expect_sound(home); /* the flipped file was written anew */
}

/* ---- Beside others ----------------------------------------------------------------------------------------------------------------- */

static atomic_int stop;

static void *remember_and_forget(void *arg)
{
    inferscale *is = arg;

    for (int i = 0; !atomic_load(&stop); i++) {
        char text[80];
        int64_t id;

        snprintf(text, sizeof text, "Anna has thought number %d.", i);
        id = store_fact(is, &store_anna, text);
        OK(inferscale_encode(is, &store_anna, NULL));
        if (i % 2) OK(inferscale_forget(is, &store_anna, &id, 1, NULL));
    }
    return NULL;
}

static void looking_after_disturbs_nobody(void **state)
{
    inferscale *is = store_open(home, NULL, NULL, false), *other = store_open(home, NULL, NULL, false);
    inferscale_gc_options g = INFERSCALE_GC_OPTIONS_INIT;
    pthread_t t;

    atomic_store(&stop, 0);
    assert_int_equal(pthread_create(&t, NULL, remember_and_forget, is), 0);
    for (int i = 0; i < 12; i++) {
        inferscale_fsck_report *r = NULL;

        OK(inferscale_fsck(other, NULL, &r));
        if (!r->ok) store_print(r);
        assert_true(r->ok); /* work in progress is no damage */
        inferscale_fsck_free(r);
        OK(inferscale_gc(other, &g));
        assert_int_equal(g.unnamed_files + g.bad_files + g.view_files + g.evicted_files, 0);
        inferscale_answer *a = store_ask(other); /* what is being remembered may not have its KV yet */
        assert_true(a->tokens_injected > 0);
        inferscale_answer_free(a);
    }
    atomic_store(&stop, 1);
    pthread_join(t, NULL);
    inferscale_close(other);
    inferscale_close(is);
    store_expect_sound(home);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(gc_removes_what_nobody_names_and_nothing_else, fresh),
        cmocka_unit_test_setup(another_model_is_another_view_beside_the_old_one, fresh),
        cmocka_unit_test_setup(another_system_text_is_another_view, fresh),
        cmocka_unit_test_setup(a_budget_takes_the_least_useful_first_and_says_so, fresh),
        cmocka_unit_test_setup(space_is_given_back, fresh),
        cmocka_unit_test_setup(usage_adds_up, fresh),
        cmocka_unit_test_setup(views_are_made_anew, fresh),
        cmocka_unit_test_setup(looking_after_disturbs_nobody, fresh),
    };

    return cmocka_run_group_tests(tests, make_template, remove_template);
}
