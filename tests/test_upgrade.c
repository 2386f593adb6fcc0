/* Stores of earlier versions are opened by this one (tests/fixtures): what was remembered, its history and where it stood in
 * conversations is there, answers go on from the first moment, and the views are brought up to date in the background: rows that were
 * stored in f32 where f16 is what the engine's cache holds take half the bytes, and nothing of them is computed again. */
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "api/handle.h"
#include "support/background_kit.h"
#include "support/scratch.h"

static const inferscale_scope acme = { .tenant = "acme", .user = "anna" }, helper = { .agent = "helper" };
static const inferscale_scope *const owners[] = { &anna, &ben, &helper, &acme }; /* in the order of the JSON */

static json_t *told; /* by the old program */
static char mock[600], llama[600];

/* ---- The fixture ----------------------------------------------------------------------------------------------------------- */

/* The sources are three folders above the test program. */
static void fixture(const char *name, char out[1400])
{
    char root[1200];
    ssize_t n = readlink("/proc/self/exe", root, sizeof root - 1);

    assert_true(n > 0);
    root[n] = 0;
    for (int i = 0; i < 4; i++) *strrchr(root, '/') = 0;
    snprintf(out, 1400, "%s/tests/fixtures/%s", root, name);
}

static int read_told(void **state)
{
    char path[1400];

    fixture("store-287338c.json", path);
    told = json_load_file(path, JSON_REJECT_DUPLICATES, NULL);
    if (!told) print_error("%s cannot be read\n", path);
    return told ? bg_find_plugins(state) : -1;
}

static int drop_told(void **state)
{
    json_decref(told);
    return 0;
}

/* mock and llama: the old stores, new for each test. */
static int unpack(void **state)
{
    char archive[1400], command[2200];

    bg_set_up(state);
    fixture("store-287338c.tar.gz", archive);
    snprintf(command, sizeof command, "tar -xzf '%s' -C '%s'", archive, bg_home);
    assert_int_equal(system(command), 0);
    snprintf(mock, sizeof mock, "%s/mock", bg_home);
    snprintf(llama, sizeof llama, "%s/llama", bg_home);
    return 0;
}

/* As users open a store: nothing is set that need not be. */
static inferscale *open_store(const char *home, bool background, const char *codec)
{
    inferscale_options o = INFERSCALE_OPTIONS_INIT;

    o.home = home;
    o.engine = "mock";
    o.plugin_dir = bg_plugins;
    o.background = background;
    o.codec = codec;
    return bg_open(&o);
}

static void old_codecs(const char *home, size_t n[IS_CODECS], uint64_t *bytes)
{
    size_t n_files = 0;
    char **files = store_files(home, ".seg", &n_files);

    memset(n, 0, IS_CODECS * sizeof *n);
    *bytes = 0;
    for (size_t i = 0; i < n_files; i++) {
        is_segment *s = NULL;
        struct stat st;

        OK(is_segment_read(is_fs_posix(), files[i], &s));
        n[is_segment_info(s)->codec]++;
        assert_int_equal(stat(files[i], &st), 0);
        *bytes += (uint64_t)st.st_size;
        is_segment_unref(s);
    }
    store_files_free(files, n_files);
}

/* ---- What was remembered --------------------------------------------------------------------------------------------------- */

static const char *text_of(json_t *o, const char *name)
{
    const char *s = json_string_value(json_object_get(o, name));

    return s ? s : "";
}

static void same_time(json_t *o, const char *name, int64_t is)
{
    const char *was = text_of(o, name);
    char now[32] = "";
    time_t t = (time_t)is;
    struct tm tm;

    if (is) strftime(now, sizeof now, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&t, &tm));
    if (strcmp(was, now) != 0) fail_msg("item %s: %s was %s and is %s", json_dumps(json_object_get(o, "id"), JSON_ENCODE_ANY), name, was, now);
}

static void same_item(json_t *was, const inferscale_item *is)
{
    json_t *metadata = json_loads(is->metadata, 0, NULL), *had = json_object_get(was, "metadata");
    const bool fact = strcmp(text_of(was, "kind"), "fact") == 0;

    assert_int_equal(json_integer_value(json_object_get(was, "id")), is->id);
    assert_int_equal(is->kind, fact ? INFERSCALE_FACTS : INFERSCALE_TURNS);
    assert_string_equal(text_of(was, "text"), is->text);
    assert_string_equal(text_of(was, "user"), is->user);
    assert_string_equal(text_of(was, "agent"), is->agent);
    assert_string_equal(text_of(was, "run"), is->run);
    assert_string_equal(text_of(was, "app"), is->app);
    same_time(was, "write_time", is->write_time);
    if (!fact) {
        assert_string_equal(text_of(was, "speaker"), is->speaker);
        assert_string_equal(text_of(was, "conversation"), is->conversation);
        assert_int_equal(json_is_true(json_object_get(was, "withdrawn")), is->withdrawn);
        json_decref(metadata);
        return;
    }
    assert_int_equal(json_integer_value(json_object_get(was, "version")), is->version);
    /* Where nobody gave an event time the old program kept that of writing, and could not tell it from a given one. */
    if (strcmp(text_of(was, "event_time"), text_of(was, "write_time")) != 0) same_time(was, "event_time", is->event_time);
    same_time(was, "valid_from", is->valid_from);
    same_time(was, "valid_to", is->valid_to);
    same_time(was, "expires", is->expires);
    assert_int_equal(json_integer_value(json_object_get(was, "source_turn")), is->source_turn);
    assert_int_equal(json_integer_value(json_object_get(was, "superseded_by")), is->superseded_by);
    assert_int_equal(json_is_true(json_object_get(was, "pinned")), is->pinned);
    assert_int_equal(json_is_true(json_object_get(was, "expired")), is->expired);
    assert_true(json_equal(metadata, had));
    json_decref(metadata);
}

static void same_owner(inferscale *is, size_t owner)
{
    json_t *items = json_object_get(json_array_get(json_object_get(told, "owners"), owner), "show"), *item, *version;
    inferscale_list *all = NULL;
    size_t i, k;

    OK(inferscale_ls(is, owners[owner], 0, 0, 0, &all));
    assert_int_equal(all->n, json_array_size(items));
    json_array_foreach(items, i, item) {
        json_t *versions = json_object_get(item, "versions");
        inferscale_list *shown = NULL;

        same_item(item, &all->items[i]);
        OK(inferscale_show(is, owners[owner], all->items[i].id, &shown));
        assert_int_equal(shown->n, json_array_size(versions));
        json_array_foreach(versions, k, version) same_item(version, &shown->items[k]);
        inferscale_list_free(shown);
    }
    inferscale_list_free(all);
}

static void same_memory(inferscale *is)
{
    for (size_t o = 0; o < 4; o++) same_owner(is, o);
}

/* As users open it; then read only, which an older schema is not, and says what to do. Engine llama's bank too. */
static void all_that_was_remembered_is_there(void **state)
{
    const char *texts[] = { "Anna is allergic to peanuts.", "Anna has two cats.", "Anna lives in Oslo." };
    inferscale_options o = INFERSCALE_OPTIONS_INIT;
    inferscale_list *l = NULL;
    inferscale *is = NULL;

    o.home = mock;
    o.engine = "mock";
    o.plugin_dir = bg_plugins;
    o.read_only = 1;
    FAILS(E_READONLY, inferscale_open(&is, &o));
    assert_non_null(strstr(inferscale_error(), "open it for writing once"));
    inferscale_close(is);
    is = open_store(mock, false, NULL);
    same_memory(is);
    inferscale_close(is);
    is = bg_open(&o);
    same_memory(is);
    inferscale_close(is);
    store_expect_sound(mock);
    is = open_store(llama, false, NULL);
    OK(inferscale_ls(is, &anna, 0, 0, 0, &l));
    assert_int_equal(l->n, 3);
    for (size_t i = 0; i < 3; i++) assert_string_equal(l->items[i].text, texts[i]);
    inferscale_list_free(l);
    inferscale_close(is);
}

static void ids_go_on_and_the_forgotten_is_known(void **state)
{
    inferscale *is = open_store(mock, false, NULL);
    inferscale_fact again = { .text = "anna's code is 7741" }, fresh = { .text = "Anna is new here." };
    inferscale_event e[2] = { { 0 } };

    OK(inferscale_remember(is, &anna, &again, 1, &e[0]));
    OK(inferscale_remember(is, &anna, &fresh, 1, &e[1]));
    assert_int_equal(e[0].again, 1);
    assert_int_equal(e[1].again, 0);
    assert_int_equal(e[0].id, 20); /* the last one was 19 */
    assert_int_equal(e[1].id, 21);
    inferscale_close(is);
}

/* ---- Conversations --------------------------------------------------------------------------------------------------------- */

static const char *reply(size_t turn)
{
    json_t *choice = json_array_get(json_object_get(json_array_get(json_object_get(told, "turns"), turn), "choices"), 0);

    return text_of(json_object_get(choice, "message"), "content");
}

/* The conversation goes on: memory stands where it stood before each turn. */
static void placements_are_there(inferscale *is)
{
    const inferscale_message m[] = { { "user", "What must Anna not eat?" }, { "assistant", reply(0) }, { "user", "Where does Anna live?" },
                                     { "assistant", reply(1) }, { "user", "What does Anna do?" } };
    json_t *facts = json_object_get(json_object_get(json_array_get(json_object_get(told, "turns"), 1), "memory"), "facts"), *fact;
    inferscale_complete_options o = INFERSCALE_COMPLETE_OPTIONS_INIT;
    inferscale_answer *a = NULL;
    size_t i;

    o.ask.k = 1;
    o.ask.max_tokens = 4;
    OK(inferscale_complete(is, &anna, m, 5, &o, &a));
    assert_int_equal(a->n_placed_kept, 2);
    assert_int_equal(a->n_placed_lost, 0);
    assert_int_equal(json_array_size(facts), 6);
    assert_true(a->n_facts >= 6);
    json_array_foreach(facts, i, fact) {
        assert_int_equal(a->facts[i].id, atoll(text_of(fact, "id")));
        assert_int_equal(a->facts[i].version, json_integer_value(json_object_get(fact, "version")));
    }
    inferscale_answer_free(a);
}

static void conversations_go_on(void **state)
{
    static const char *const codecs[] = { NULL, "f32", "bf16" }; /* where memory stands does not hang on how it is stored */

    for (size_t i = 0; i < 3; i++) {
        inferscale *is = open_store(mock, false, codecs[i]);

        placements_are_there(is);
        inferscale_close(is);
    }
}

/* ---- Answers, and the views ------------------------------------------------------------------------------------------------ */

static inferscale_answer *ask(inferscale *is, const inferscale_scope *who)
{
    inferscale_ask_options o = INFERSCALE_ASK_OPTIONS_INIT;
    inferscale_answer *a = NULL;

    o.max_tokens = 24;
    OK(inferscale_ask(is, who, "What does Anna have?", &o, &a));
    return a;
}

/* From the first moment: as text where there is no KV yet, which is said; from KV when the background has been there. */
static void answers_go_on_while_views_are_rebuilt(void **state)
{
    size_t before[IS_CODECS], after[IS_CODECS];
    uint64_t bytes_before, bytes_after;
    inferscale_encoder_state s;
    inferscale_answer *a, *b;
    inferscale *is;
    int64_t dated;

    old_codecs(mock, before, &bytes_before);
    assert_int_equal(before[IS_CODEC_F32], 27);
    assert_int_equal(before[IS_CODEC_F16], 6);
    is = open_store(mock, true, NULL);
    is_gate_hold(is->gate); /* the background stands still */
    a = ask(is, &anna);
    assert_int_equal(a->tokens_injected, 0);
    assert_int_equal(a->n_facts, 9);
    assert_true(a->fallbacks & INFERSCALE_FALLBACK_NOT_ENCODED);
    s = bg_state(is, NULL);
    assert_int_equal(s.n_wide, 30);
    assert_true(s.wide_bytes > 390000);
    dated = store_sql_int(mock, "SELECT count(DISTINCT item_id) FROM segments WHERE outdated = 1"); /* by nobody: test_dates */
    assert_true(dated > 0);
    is_gate_release(is->gate);
    OK(inferscale_encode_wait(is, NULL, FOREVER_MS));
    UNTIL(bg_state(is, NULL).n_wide == 0 && store_sql_int(mock, "SELECT count(*) FROM segments WHERE outdated = 1") == 0 &&
          bg_state(is, NULL).n_unrefined == 0);
    b = ask(is, &anna);
    assert_true(b->tokens_injected > 150);
    assert_string_equal(b->fallback, "");
    assert_int_equal(b->n_facts, a->n_facts);
    inferscale_answer_free(a);
    inferscale_answer_free(b);
    s = bg_state(is, NULL);
    assert_int_equal(s.narrowed, 30);
    assert_true(s.narrowed_bytes > 160000);
    /* The helper's, which never had any, and those with a date that nobody gave: what was stored in f32 is rounded, not computed. */
    assert_int_equal(s.facts_encoded, 1 + dated);
    assert_int_equal(s.items_embedded, 1);
    same_memory(is);
    placements_are_there(is);
    inferscale_close(is);
    old_codecs(mock, after, &bytes_after);
    assert_int_equal(after[IS_CODEC_F32], 0);
    assert_int_equal(after[IS_CODEC_F16], store_sql_int(mock, "SELECT count(DISTINCT hex(name)) FROM segments"));
    assert_true(after[IS_CODEC_F16] > 30); /* 6 + 27 - ben's, which were there in both, + the helper's; pages were laid again */
    assert_true(bytes_after < bytes_before * 62 / 100); /* a fifth of these was f16 before, and every file has a head */
    assert_int_equal(store_sql_int(mock, "SELECT count(*) FROM doomed"), 0);
    store_expect_sound(mock);
}

/* Nothing is left to do for the next one: a store that was brought up to date is not looked through again and again. */
static void it_is_done_once(void **state)
{
    inferscale *is = open_store(mock, true, NULL);
    inferscale_encoder_state s;

    OK(inferscale_encode_wait(is, NULL, FOREVER_MS));
    UNTIL(bg_state(is, NULL).n_wide == 0 && bg_state(is, NULL).n_unrefined == 0);
    inferscale_close(is);
    is = open_store(mock, true, NULL);
    OK(inferscale_encode_wait(is, NULL, FOREVER_MS));
    s = bg_state(is, NULL);
    assert_int_equal(s.narrowed + s.facts_encoded, 0); /* the second stage may have been ended in its midst */
    inferscale_close(is);
}

static int steps_left;

static int break_off(void *ctx, uint64_t done, uint64_t total, const char *what)
{
    return --steps_left < 0;
}

/* What is outdated serves until there is something newer in its place: `encode` is broken off at
 * its first step, at its second, and so on, and each time every fact has its rows. */
static void what_is_broken_off_leaves_no_gap(void **state)
{
    inferscale *is = open_store(mock, false, NULL);
    inferscale_encode_options o = INFERSCALE_ENCODE_OPTIONS_INIT;
    const char *left = "SELECT count(*) FROM segments WHERE outdated AND partition_id = 1";
    int n = 0;

    assert_true(store_sql_int(mock, left) > 0);
    o.on_progress = break_off;
    steps_left = 0;
    for (; inferscale_encode(is, &anna, &o) == INFERSCALE_E_CANCELLED; steps_left = ++n) {
        assert_int_equal(bg_state(is, &anna).n_unencoded, 0);
        assert_true(n < 100);
    }
    assert_true(n > 0);
    assert_int_equal(bg_state(is, &anna).n_unencoded, 0);
    assert_int_equal(store_sql_int(mock, left), 0);
    inferscale_close(is);
    store_expect_sound(mock);
}

/* `encode` does it too, for the owner that it is told; and who asks for f32 keeps it. */
static void who_asks_for_a_codec_has_it(void **state)
{
    size_t n[IS_CODECS], f32;
    uint64_t bytes;
    inferscale *is = open_store(mock, false, "f32");
    inferscale_encoder_state s;

    OK(inferscale_encode(is, &anna, NULL));
    s = bg_state(is, NULL);
    assert_int_equal(s.n_wide, 0);
    inferscale_close(is);
    old_codecs(mock, n, &bytes); /* without the rows that showed a date nobody gave: test_dates */
    f32 = n[IS_CODEC_F32];
    assert_true(f32 > 10);
    is = open_store(mock, false, "f16");
    OK(inferscale_encode(is, &anna, NULL));
    s = bg_state(is, NULL);
    assert_int_equal(s.n_wide, 3); /* ben's */
    inferscale_close(is);
    old_codecs(mock, n, &bytes);
    assert_true(n[IS_CODEC_F32] < f32);
    is = open_store(mock, false, NULL);
    OK(inferscale_encode(is, &ben, NULL));
    assert_int_equal(bg_state(is, NULL).n_wide, 0);
    inferscale_close(is);
    old_codecs(mock, n, &bytes);
    assert_int_equal(n[IS_CODEC_F32], 0);
    store_expect_sound(mock);
}

/* ---- Forgetting ------------------------------------------------------------------------------------------------------------ */

static void forget_proven(inferscale *is, int64_t id)
{
    inferscale_forget_options o = INFERSCALE_FORGET_OPTIONS_INIT;
    inferscale_forget_report r;

    o.prove = 1;
    OK(inferscale_forget_with(is, &anna, &id, 1, &o, &r));
    assert_int_equal(r.forgotten, 1);
    assert_true(r.segments > 0);
    assert_int_equal(r.traces, 0);
    assert_true(r.proven);
}

static size_t rows_that_saw(int64_t id)
{
    char sql[200];

    snprintf(sql, sizeof sql, "SELECT count(*) FROM segment_deps WHERE item_id = %lld", (long long)id);
    return (size_t)store_sql_int(mock, sql);
}

static void end_narrow(inferscale *is)
{
    size_t left[IS_CODECS];
    uint64_t bytes;

    inferscale_close(is);
    is = open_store(mock, true, NULL);
    OK(inferscale_encode_wait(is, NULL, FOREVER_MS));
    UNTIL(bg_state(is, NULL).n_wide == 0);
    inferscale_close(is);
    old_codecs(mock, left, &bytes);
    assert_int_equal(left[IS_CODEC_F32], 0);
    store_expect_sound(mock);
}

/* Rows of the old codec are in the closure: before they are taken over, and after. */
static void forgetting_reaches_old_rows(void **state)
{
    inferscale *is = open_store(mock, false, NULL);

    assert_true(rows_that_saw(2) > 5);
    forget_proven(is, 2);
    assert_int_equal(rows_that_saw(2), 0);
    OK(inferscale_encode(is, &anna, NULL));
    assert_true(rows_that_saw(4) > 1);
    forget_proven(is, 4);
    assert_int_equal(rows_that_saw(4), 0);
    end_narrow(is);
}

/* And in the midst of it, where some are f16 by now and others f32. */
static void forgetting_reaches_half_of_them(void **state)
{
    inferscale *is = open_store(mock, false, NULL);
    is_narrowing n = { 0 };
    is_encoder enc;
    is_partition p;

    OK(is_handle_engine(is));
    OK(is_bank_partition(is->bank, &anna, false, &p));
    enc = is_handle_encoder(is);
    OK(is_encode_narrow(&enc, &p, &n));
    assert_int_equal(n.rows, 16);
    assert_false(n.done);
    assert_int_equal(store_sql_int(mock, "SELECT count(DISTINCT fingerprint) FROM segments s JOIN segment_deps d ON d.segment_id = s.id"
                                         " WHERE d.item_id = 5"), 2);
    forget_proven(is, 5);
    assert_int_equal(rows_that_saw(5), 0);
    end_narrow(is);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(all_that_was_remembered_is_there, unpack, bg_tear_down),
        cmocka_unit_test_setup_teardown(ids_go_on_and_the_forgotten_is_known, unpack, bg_tear_down),
        cmocka_unit_test_setup_teardown(conversations_go_on, unpack, bg_tear_down),
        cmocka_unit_test_setup_teardown(answers_go_on_while_views_are_rebuilt, unpack, bg_tear_down),
        cmocka_unit_test_setup_teardown(it_is_done_once, unpack, bg_tear_down),
        cmocka_unit_test_setup_teardown(what_is_broken_off_leaves_no_gap, unpack, bg_tear_down),
        cmocka_unit_test_setup_teardown(who_asks_for_a_codec_has_it, unpack, bg_tear_down),
        cmocka_unit_test_setup_teardown(forgetting_reaches_old_rows, unpack, bg_tear_down),
        cmocka_unit_test_setup_teardown(forgetting_reaches_half_of_them, unpack, bg_tear_down),
    };

    return cmocka_run_group_tests(tests, read_told, drop_told);
}
