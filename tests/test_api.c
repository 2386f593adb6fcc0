/* What must hold of the public calls, over the mock engine (its greedy answer names the last fact and a hash of all tokens; it
 * refuses rows that no capture made): injecting and prefilling give the same answer, nothing forgotten or foreign is ever used,
 * every fallback is told, bad input is refused with a sentence. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>
#include <ftw.h>

#include "inferscale.h"
#include "support/scratch.h"

static char home[256], plugins[1024];
static const inferscale_scope anna = { .user = "anna" }, ben = { .user = "ben" };

static int remove_one(const char *path, const struct stat *sb, int flag, struct FTW *f)
{
    (void)sb, (void)flag, (void)f;
    return remove(path);
}

static int new_home(void **state)
{
    ssize_t n = readlink("/proc/self/exe", plugins, sizeof plugins - 1);

    (void)state;
    if (n < 0) return -1;
    plugins[n] = 0;
    *strrchr(plugins, '/') = 0;
    *strrchr(plugins, '/') = 0;
    snprintf(home, sizeof home, "%s/inferscale-api-XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    return mkdtemp(home) ? 0 : -1;
}

static int no_home(void **state)
{
    (void)state;
    return nftw(home, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static inferscale *open_policy(const char *model, int read_only, const char *policy)
{
    inferscale_options o = INFERSCALE_OPTIONS_INIT;
    inferscale *is = NULL;

    o.home = home;
    o.engine = "mock";
    o.model = model;
    o.plugin_dir = plugins;
    o.read_only = read_only;
    o.policy = policy;
    OK(inferscale_open(&is, &o));
    return is;
}

static inferscale *open_with(const char *model, int read_only)
{
    return open_policy(model, read_only, NULL);
}

static int64_t remember(inferscale *is, const inferscale_scope *who, const char *text)
{
    inferscale_fact f = { .text = text, .event_time = 1714521600 };
    inferscale_event e = { 0 };

    OK(inferscale_remember(is, who, &f, 1, &e));
    assert_true(e.id > 0);
    return e.id;
}

static inferscale_answer *ask(inferscale *is, const inferscale_scope *who, const char *question, int mode, uint32_t k, uint32_t repair)
{
    inferscale_ask_options o = INFERSCALE_ASK_OPTIONS_INIT;
    inferscale_answer *a = NULL;

    o.mode = mode;
    o.k = k;
    o.repair = repair;
    OK(inferscale_ask(is, who, question, &o, &a));
    assert_non_null(a->text);
    assert_non_null(a->fallback);
    assert_int_equal(a->tokens_prompt, a->tokens_computed + a->tokens_injected + a->tokens_resident);
    return a;
}

static uint32_t sum_tokens(const inferscale_answer *a, int source)
{
    uint32_t n = 0;

    for (size_t i = 0; i < a->n_facts; i++)
        if (a->facts[i].source == source) n += a->facts[i].tokens;
    return n;
}

static const char *const notes[] = {
    "Anna is allergic to peanuts.", "Anna plays the cello in a quartet.", "Anna's brother Tom lives in Oslo.", "Anna bought a red bicycle.",
    "Anna is afraid of heights.",   "Anna works as a ship pilot.",        "Anna grows tomatoes on her roof.",  "Anna never drinks coffee.",
};
enum { N_NOTES = sizeof notes / sizeof notes[0] };

static void injecting_and_prefilling_give_the_same_answer(void **state)
{
    inferscale *is = open_with(NULL, 0);
    inferscale_encode_options e = INFERSCALE_ENCODE_OPTIONS_INIT;

    (void)state;
    for (int i = 0; i < N_NOTES; i++) remember(is, &anna, notes[i]);
    inferscale_answer *before = ask(is, &anna, "What is Anna allergic to?", INFERSCALE_MODE_KV, 5, 0);
    assert_int_equal(before->tokens_injected, 0);
    assert_true(strstr(before->fallback, "no KV") != NULL);
    OK(inferscale_encode(is, &anna, &e));
    assert_int_equal(e.facts_encoded, N_NOTES);
    assert_true(e.tokens_computed > e.tokens_stored); /* contexts cost something */
    for (uint32_t k = 1; k <= N_NOTES; k++) {
        inferscale_answer *kv = ask(is, &anna, "What is Anna allergic to?", INFERSCALE_MODE_KV, k, 0);
        inferscale_answer *text = ask(is, &anna, "What is Anna allergic to?", INFERSCALE_MODE_TEXT, k, 0);

        assert_string_equal(kv->fallback, "");
        assert_int_equal(kv->n_facts, k);
        assert_int_equal(kv->tokens_prompt, text->tokens_prompt);
        assert_string_equal(kv->text, text->text);
        assert_non_null(strstr(kv->text, "peanuts")); /* the best fact stands last */
        assert_int_equal(kv->tokens_injected, sum_tokens(kv, INFERSCALE_SOURCE_STORED));
        assert_int_equal(sum_tokens(kv, INFERSCALE_SOURCE_COMPUTED), 0);
        assert_int_equal(text->tokens_injected, 0);
        for (size_t i = 0; i < k; i++) assert_int_equal(kv->facts[i].id, text->facts[i].id);
        inferscale_answer_free(kv);
        inferscale_answer_free(text);
    }
    inferscale_answer *none = ask(is, &anna, "What is Anna allergic to?", INFERSCALE_MODE_NONE, 5, 0);
    assert_int_equal(none->n_facts, 0);
    assert_true(none->tokens_prompt < before->tokens_prompt);
    assert_null(strstr(none->text, "peanuts"));
    inferscale_answer_free(none);
    inferscale_answer_free(before);
    inferscale_close(is);
}

static void repair_computes_the_best_facts(void **state)
{
    inferscale *is = open_with(NULL, 0);

    (void)state;
    for (int i = 0; i < N_NOTES; i++) remember(is, &anna, notes[i]);
    OK(inferscale_encode(is, &anna, NULL));
    for (uint32_t m = 0; m <= 6; m++) {
        inferscale_answer *a = ask(is, &anna, "What is Anna afraid of?", INFERSCALE_MODE_KV, 5, m);
        size_t computed = 0;
        double worst_computed = 1e9, best_stored = -1e9;

        for (size_t i = 0; i < a->n_facts; i++) {
            bool is_computed = a->facts[i].source == INFERSCALE_SOURCE_COMPUTED;

            computed += is_computed;
            if (is_computed && a->facts[i].score < worst_computed) worst_computed = a->facts[i].score;
            if (!is_computed && a->facts[i].score > best_stored) best_stored = a->facts[i].score;
        }
        assert_int_equal(computed, m < 5 ? m : 5);
        assert_true(worst_computed >= best_stored);
        assert_non_null(strstr(a->text, "heights"));
        inferscale_answer_free(a);
    }
    inferscale_close(is);
}

static size_t count_segments(inferscale *is)
{
    inferscale_store_info s;

    OK(inferscale_store(is, 0, &s));
    return s.n_segments;
}

static void what_is_forgotten_or_changed_is_never_used_again(void **state)
{
    inferscale *is = open_policy(NULL, 0, "facts:5");
    int64_t ids[N_NOTES];
    size_t n = 0;

    (void)state;
    for (int i = 0; i < N_NOTES; i++) ids[i] = remember(is, &anna, notes[i]);
    OK(inferscale_encode(is, &anna, NULL));
    assert_int_equal(count_segments(is), N_NOTES);
    OK(inferscale_forget(is, &anna, &ids[0], 1, &n)); /* the first: the five after it were encoded with it in sight */
    assert_int_equal(n, 1);
    assert_int_equal(count_segments(is), N_NOTES - 6);
    inferscale_answer *a = ask(is, &anna, "What is Anna allergic to?", INFERSCALE_MODE_KV, 8, 0);
    assert_int_equal(a->n_facts, N_NOTES - 1);
    for (size_t i = 0; i < a->n_facts; i++) assert_int_not_equal(a->facts[i].id, ids[0]);
    assert_null(strstr(a->text, "peanuts"));
    inferscale_answer_free(a);

    inferscale_fact changed = { .text = "Anna is not afraid of anything.", .event_time = 1714521600 };
    OK(inferscale_update(is, &anna, ids[4], &changed));
    OK(inferscale_encode(is, &anna, NULL));
    a = ask(is, &anna, "What is Anna afraid of?", INFERSCALE_MODE_KV, 1, 0);
    assert_string_equal(a->fallback, "");
    assert_int_equal(a->facts[0].version, 2);
    assert_non_null(strstr(a->text, "not afraid"));
    inferscale_answer_free(a);
    OK(inferscale_forget_all(is, &anna, &n));
    assert_int_equal(n, N_NOTES - 1);
    assert_int_equal(count_segments(is), 0);
    inferscale_close(is);
}

static void nobody_reads_another_ones_memory(void **state)
{
    inferscale *is = open_with(NULL, 0);
    unsigned seed = (unsigned)scratch_seed("nobody reads another one's memory");
    int64_t mine[2][40];
    const inferscale_scope *who[2] = { &anna, &ben };
    inferscale_list *list = NULL;
    size_t n = 9;

    (void)state;
    srand(seed);
    for (int i = 0; i < 80; i++) {
        char text[64];

        snprintf(text, sizeof text, "secret number %d of %s is %d", i / 2, who[i % 2]->user, rand());
        mine[i % 2][i / 2] = remember(is, who[i % 2], text);
    }
    OK(inferscale_encode(is, &anna, NULL));
    OK(inferscale_encode(is, &ben, NULL));
    for (int round = 0; round < 60; round++) {
        int w = rand() % 2;
        inferscale_answer *a = ask(is, who[w], "What is the secret number of anna and ben?", INFERSCALE_MODE_KV, 1 + (uint32_t)rand() % 30, 0);

        for (size_t i = 0; i < a->n_facts; i++) {
            bool found = false;

            for (int j = 0; j < 40; j++) found = found || mine[w][j] == a->facts[i].id;
            assert_true(found);
        }
        assert_null(strstr(a->text, who[!w]->user));
        inferscale_answer_free(a);
    }
    assert_int_equal(inferscale_show(is, &anna, mine[1][0], &list), INFERSCALE_E_NOTFOUND);
    OK(inferscale_forget(is, &anna, mine[1], 40, &n));
    assert_int_equal(n, 0);
    OK(inferscale_ls(is, &ben, 0, 0, 0, &list));
    assert_int_equal(list->n, 40);
    inferscale_list_free(list);
    const inferscale_scope other_tenant = { .tenant = "other", .user = "anna" };
    OK(inferscale_ls(is, &other_tenant, 0, 0, 0, &list));
    assert_int_equal(list->n, 0);
    inferscale_list_free(list);
    inferscale_close(is);
}

static void a_model_that_cannot_be_injected_is_served_by_the_text_twin(void **state)
{
    inferscale *is = open_with("mock:noinject", 0);
    inferscale_model_info info;

    (void)state;
    for (int i = 0; i < N_NOTES; i++) remember(is, &anna, notes[i]);
    assert_int_equal(inferscale_encode(is, &anna, NULL), INFERSCALE_E_UNSUPPORTED);
    inferscale_answer *a = ask(is, &anna, "What is Anna allergic to?", INFERSCALE_MODE_KV, 5, 0);
    assert_int_equal(a->mode, INFERSCALE_MODE_TEXT);
    assert_non_null(strstr(a->fallback, "cannot be injected"));
    assert_non_null(strstr(a->text, "peanuts"));
    assert_int_equal(a->tokens_injected, 0);
    OK(inferscale_model(is, &info));
    assert_false(info.can_inject);
    assert_true(info.why_not[0]);
    inferscale_answer_free(a);
    inferscale_close(is);
}

static char damaged[512];
static int damage_one(const char *path, const struct stat *sb, int flag, struct FTW *f)
{
    (void)f;
    size_t n = strlen(path);
    if (flag != FTW_F || n < 4 || strcmp(path + n - 4, ".seg") != 0) return 0;
    FILE *file = fopen(path, "r+b");
    fseek(file, sb->st_size / 2, SEEK_SET);
    int c = fgetc(file);
    fseek(file, sb->st_size / 2, SEEK_SET);
    fputc(c ^ 0x40, file);
    fclose(file);
    snprintf(damaged, sizeof damaged, "%s", path);
    return 0;
}

static void damaged_segments_are_served_as_text_and_made_again(void **state)
{
    inferscale *is = open_with(NULL, 0);

    (void)state;
    for (int i = 0; i < N_NOTES; i++) remember(is, &anna, notes[i]);
    OK(inferscale_encode(is, &anna, NULL));
    inferscale_close(is);
    assert_int_equal(nftw(home, damage_one, 16, FTW_PHYS), 0);
    assert_true(damaged[0]);
    is = open_with(NULL, 0);
    inferscale_answer *a = ask(is, &anna, "What is Anna allergic to?", INFERSCALE_MODE_KV, 5, 0);
    assert_int_equal(a->tokens_injected, 0);
    assert_non_null(strstr(a->fallback, "damaged"));
    assert_non_null(strstr(a->text, "peanuts"));
    inferscale_answer_free(a);
    OK(inferscale_encode(is, &anna, NULL));
    a = ask(is, &anna, "What is Anna allergic to?", INFERSCALE_MODE_KV, 5, 0);
    assert_true(a->tokens_injected > 0);
    assert_string_equal(a->fallback, "");
    inferscale_answer_free(a);
    inferscale_close(is);
}

static void a_full_context_keeps_the_best_and_says_so(void **state)
{
    inferscale *is = open_with("mock:ctx=256", 0);
    inferscale_ask_options o = INFERSCALE_ASK_OPTIONS_INIT;
    inferscale_answer *a = NULL;
    char text[200];

    (void)state;
    for (int i = 0; i < 30; i++) {
        snprintf(text, sizeof text, "Fact %d about %s and other matters of no weight.", i, i == 17 ? "zebras" : "things");
        remember(is, &anna, text);
    }
    o.k = 30;
    o.max_tokens = 16;
    OK(inferscale_ask(is, &anna, "Any zebras?", &o, &a)); /* nothing encoded yet: only what was computed counts as computed */
    snprintf(text, sizeof text, "%zu of %zu facts had no KV", a->n_facts, a->n_facts);
    assert_non_null(strstr(a->fallback, text));
    inferscale_answer_free(a);
    a = NULL;
    OK(inferscale_encode(is, &anna, NULL));
    OK(inferscale_ask(is, &anna, "Any zebras?", &o, &a));
    assert_true(a->n_dropped > 0 && a->n_dropped < 30);
    assert_int_equal(a->n_facts + a->n_dropped, 30);
    assert_non_null(strstr(a->fallback, "left out"));
    double best = -1e9;
    for (size_t i = 0; i < a->n_facts; i++) best = a->facts[i].score > best ? a->facts[i].score : best;
    assert_true(a->facts[a->n_facts - 1].score == best);
    inferscale_answer_free(a);
    a = NULL;
    memset(text, 'q', sizeof text);
    text[199] = 0;
    o.max_tokens = 200;
    assert_int_equal(inferscale_ask(is, &anna, text, &o, &a), INFERSCALE_E_CONTEXT);
    assert_null(a);
    inferscale_close(is);
}

static int stop_after_some(void *ctx, const char *text, size_t len)
{
    (void)text;
    *(size_t *)ctx += len;
    return *(size_t *)ctx > 4;
}

static void listeners_stop_and_cancel_cancels(void **state)
{
    inferscale *is = open_with(NULL, 0);
    inferscale_ask_options o = INFERSCALE_ASK_OPTIONS_INIT;
    inferscale_answer *a = NULL;
    volatile int cancel = 1;
    size_t heard = 0;

    (void)state;
    remember(is, &anna, notes[0]);
    o.on_text = stop_after_some;
    o.text_ctx = &heard;
    OK(inferscale_ask(is, &anna, "What is Anna allergic to?", &o, &a));
    assert_string_equal(a->finish, "cancelled");
    assert_int_equal(strlen(a->text), heard);
    inferscale_answer_free(a);
    a = NULL;
    o.on_text = NULL;
    o.cancel = &cancel;
    assert_int_equal(inferscale_ask(is, &anna, "What is Anna allergic to?", &o, &a), INFERSCALE_E_CANCELLED);
    assert_null(a);
    inferscale_close(is);
}

static void conversations_place_memory_once_and_drop_what_is_forgotten(void **state)
{
    inferscale *is = open_with(NULL, 0);
    inferscale_ask_options o = INFERSCALE_ASK_OPTIONS_INIT;
    inferscale_chat *chat = NULL;
    inferscale_answer *a = NULL, *b = NULL, *c = NULL;
    int64_t ids[N_NOTES];

    (void)state;
    for (int i = 0; i < N_NOTES; i++) ids[i] = remember(is, &anna, notes[i]);
    OK(inferscale_encode(is, &anna, NULL));
    OK(inferscale_chat_open(is, &anna, &chat));
    o.k = 3;
    OK(inferscale_chat_say(chat, "What is Anna allergic to?", &o, &a));
    assert_int_equal(a->n_facts, 3);
    OK(inferscale_chat_say(chat, "And what is she allergic to, again?", &o, &b));
    for (size_t i = 0; i < b->n_facts; i++)
        for (size_t j = 0; j < a->n_facts; j++) assert_int_not_equal(b->facts[i].id, a->facts[j].id);
    assert_true(b->tokens_prompt < a->tokens_prompt + 80); /* only the new turn is planned; the old one is resident */
    OK(inferscale_forget(is, &anna, &ids[0], 1, NULL));
    OK(inferscale_chat_say(chat, "What was that about peanuts?", &o, &c));
    assert_non_null(strstr(c->fallback, "computed again"));
    for (size_t i = 0; i < c->n_facts; i++) assert_int_not_equal(c->facts[i].id, ids[0]);
    inferscale_answer_free(a);
    inferscale_answer_free(b);
    inferscale_answer_free(c);
    inferscale_chat_close(chat);
    inferscale_close(is);
}

static void bad_input_is_refused_with_a_sentence(void **state)
{
    inferscale *is = open_with(NULL, 0), *none = NULL;
    inferscale_options bad_options = { 0 };
    inferscale_fact f = { .text = "ok" };
    inferscale_ask_options o = INFERSCALE_ASK_OPTIONS_INIT;
    inferscale_answer *a = NULL;
    inferscale_list *l = NULL;
    const inferscale_scope nobody = { 0 }, broken = { .user = "\xff\xfe" };
    char *big = malloc((1 << 20) + 1);

    (void)state;
    memset(big, 'x', 1 << 20);
    big[1 << 20] = 0;
#define REFUSED(code, expr) do { assert_int_equal((expr), code); assert_true(strlen(inferscale_error()) > 10); } while (0)
    REFUSED(INFERSCALE_E_INVALID, inferscale_open(NULL, &bad_options));
    REFUSED(INFERSCALE_E_INVALID, inferscale_open(&none, &bad_options));
    REFUSED(INFERSCALE_E_INVALID, inferscale_remember(NULL, &anna, &f, 1, NULL));
    REFUSED(INFERSCALE_E_INVALID, inferscale_remember(is, NULL, &f, 1, NULL));
    REFUSED(INFERSCALE_E_INVALID, inferscale_remember(is, &nobody, &f, 1, NULL));
    REFUSED(INFERSCALE_E_INVALID, inferscale_remember(is, &broken, &f, 1, NULL));
    static const char *const texts[] = { "", "  \n\t ", "\xc3\x28", "\xed\xa0\x80", "\xf8\x88\x80\x80\x80" };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        f.text = texts[i];
        REFUSED(INFERSCALE_E_INVALID, inferscale_remember(is, &anna, &f, 1, NULL));
        REFUSED(INFERSCALE_E_INVALID, inferscale_ask(is, &anna, texts[i], NULL, &a));
        REFUSED(INFERSCALE_E_INVALID, inferscale_recall(is, &anna, texts[i], NULL, &l));
    }
    f.text = big;
    REFUSED(INFERSCALE_E_INVALID, inferscale_remember(is, &anna, &f, 1, NULL));
    f.text = "ok";
    f.metadata = "{not json";
    REFUSED(INFERSCALE_E_INVALID, inferscale_remember(is, &anna, &f, 1, NULL));
    f.metadata = "[1]";
    REFUSED(INFERSCALE_E_INVALID, inferscale_remember(is, &anna, &f, 1, NULL));
    o.mode = 7;
    REFUSED(INFERSCALE_E_INVALID, inferscale_ask(is, &anna, "q", &o, &a));
    o.mode = 0;
    o.k = 1001;
    REFUSED(INFERSCALE_E_INVALID, inferscale_ask(is, &anna, "q", &o, &a));
    o.k = 1;
    o.temperature = -1;
    REFUSED(INFERSCALE_E_INVALID, inferscale_ask(is, &anna, "q", &o, &a));
    REFUSED(INFERSCALE_E_NOTFOUND, inferscale_update(is, &anna, 12345, &(inferscale_fact){ .text = "x" }));
    OK(inferscale_ls(is, &anna, 0, 0, 0, &l));
    assert_int_equal(l->n, 0);
    inferscale_list_free(l);
    free(big);
    inferscale_close(is);
}

static void a_read_only_store_reads_and_refuses_writes(void **state)
{
    inferscale *is = open_with(NULL, 0);
    inferscale_options o = INFERSCALE_OPTIONS_INIT;
    inferscale *missing = NULL;

    (void)state;
    remember(is, &anna, notes[0]);
    OK(inferscale_encode(is, &anna, NULL));
    inferscale_close(is);
    is = open_with(NULL, 1);
    inferscale_answer *a = ask(is, &anna, "What is Anna allergic to?", INFERSCALE_MODE_KV, 3, 0);
    assert_true(a->tokens_injected > 0);
    inferscale_answer_free(a);
    REFUSED(INFERSCALE_E_READONLY, inferscale_remember(is, &anna, &(inferscale_fact){ .text = "new" }, 1, NULL));
    REFUSED(INFERSCALE_E_READONLY, inferscale_forget_all(is, &anna, NULL));
    REFUSED(INFERSCALE_E_READONLY, inferscale_encode(is, &anna, NULL));
    inferscale_close(is);
    o.home = "/nonexistent/inferscale";
    o.read_only = 1;
    REFUSED(INFERSCALE_E_NOTFOUND, inferscale_open(&missing, &o));
}

static void a_closed_store_ends_its_conversations(void **state)
{
    inferscale *is = open_with(NULL, 0);
    inferscale_chat *chats[4] = { 0 };
    inferscale_answer *a = NULL;

    (void)state;
    for (int i = 0; i < 4; i++) {
        OK(inferscale_chat_open(is, &anna, &chats[i]));
        if (i == 3) continue; /* one that never spoke */
        OK(inferscale_chat_say(chats[i], "Hello", NULL, &a));
        inferscale_answer_free(a);
    }
    inferscale_chat_close(chats[1]); /* from the middle of the list */
    inferscale_close(is);
    for (int i = 0; i < 4; i++) {
        if (i == 1) continue;
        assert_int_equal(inferscale_chat_say(chats[i], "Still there?", NULL, &a), INFERSCALE_E_INVALID);
        assert_non_null(strstr(inferscale_error(), "closed")); /* not: there is none */
        assert_null(a);
        inferscale_chat_close(chats[i]);
    }
}

static void failures_of_the_engine_come_out_and_leave_no_harm(void **state)
{
    static const char *const what[] = { "mock:fail-tokenize=30", "mock:fail-capture=3", "mock:fail-start=1", "mock:fail-sample=3",
                                        "mock:fail-feed=2", "mock:fail-embed=2" };

    (void)state;
    for (size_t i = 0; i < sizeof what / sizeof what[0]; i++) {
        inferscale *is = open_with(what[i], 0);
        inferscale_answer *a = NULL;

        for (int j = 0; j < N_NOTES; j++) remember(is, &anna, notes[j]);
        for (int tries = 0; tries < 4; tries++) (void)inferscale_encode(is, &anna, NULL);
        for (int tries = 0; tries < 4 && !a; tries++) (void)inferscale_ask(is, &anna, "What is Anna allergic to?", NULL, &a);
        assert_non_null(a); /* the failure came once and went */
        assert_non_null(strstr(a->text, "peanuts"));
        inferscale_answer_free(a);
        inferscale_close(is);
    }
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, new_home, no_home)
    const struct CMUnitTest tests[] = {
        T(injecting_and_prefilling_give_the_same_answer),
        T(repair_computes_the_best_facts),
        T(what_is_forgotten_or_changed_is_never_used_again),
        T(nobody_reads_another_ones_memory),
        T(a_model_that_cannot_be_injected_is_served_by_the_text_twin),
        T(damaged_segments_are_served_as_text_and_made_again),
        T(a_full_context_keeps_the_best_and_says_so),
        T(listeners_stop_and_cancel_cancels),
        T(conversations_place_memory_once_and_drop_what_is_forgotten),
        T(a_closed_store_ends_its_conversations),
        T(bad_input_is_refused_with_a_sentence),
        T(a_read_only_store_reads_and_refuses_writes),
        T(failures_of_the_engine_come_out_and_leave_no_harm),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
