/* What must hold of change and forgetting: nothing generated after it returns depends on what is gone, whoever holds it (a question
 * that composes, one that decodes, a conversation, another process); old versions answer for their time; pins and expiry rule what
 * is found; and the proof finds every planted copy, and only those. */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>
#include <ftw.h>
#include <sqlite3.h>

#include "bank/bank.h"
#include "base/clock.h"
#include "inferscale.h"
#include "support/scratch.h"

static char *home, plugins[1024];
static const inferscale_scope anna = { .user = "anna" }, ben = { .user = "ben" };
enum { LONG_AGO = 1000000000, YESTERDAY = 1700000000, LATER = 1710000000 };

static int new_home(void **state)
{
    (void)state;
    home = scratch_make();
    return 0;
}

static int no_home(void **state)
{
    (void)state;
    scratch_remove(home);
    return 0;
}

static inferscale *open_with(const char *model)
{
    inferscale_options o = INFERSCALE_OPTIONS_INIT;
    inferscale *is = NULL;

    o.home = home;
    o.engine = "mock";
    o.model = model;
    o.plugin_dir = plugins;
    OK(inferscale_open(&is, &o));
    return is;
}

static int64_t remember_from(inferscale *is, const inferscale_scope *who, const char *text, int64_t turn)
{
    inferscale_fact f = { .text = text, .event_time = LONG_AGO, .source_turn = turn };
    inferscale_event e = { 0 };

    OK(inferscale_remember(is, who, &f, 1, &e));
    assert_int_equal(e.event, INFERSCALE_EVENT_ADD);
    return e.id;
}

static int64_t remember(inferscale *is, const char *text)
{
    return remember_from(is, &anna, text, 0);
}

static int64_t add_turn(inferscale *is, const char *text)
{
    inferscale_turn t = { .text = text, .time = LONG_AGO };
    int64_t id = 0;

    OK(inferscale_add_turns(is, &anna, &t, 1, &id));
    return id;
}

static inferscale_list *recall(inferscale *is, const char *query, int kinds, uint32_t k, int64_t as_of)
{
    inferscale_recall_options o = INFERSCALE_RECALL_OPTIONS_INIT;
    inferscale_list *l = NULL;

    o.k = k;
    o.kinds = kinds;
    o.as_of = as_of;
    o.method = INFERSCALE_LEXICAL;
    OK(inferscale_recall(is, &anna, query, &o, &l));
    return l;
}

static size_t found(inferscale *is, const char *query, int64_t as_of)
{
    inferscale_list *l = recall(is, query, INFERSCALE_FACTS | INFERSCALE_TURNS, 100, as_of);
    size_t n = l->n;

    inferscale_list_free(l);
    return n;
}

static inferscale_status forget_proving(inferscale *is, int64_t id, inferscale_forget_report *r)
{
    inferscale_forget_options o = INFERSCALE_FORGET_OPTIONS_INIT;

    o.prove = 1;
    o.wait_ms = 500;
    return inferscale_forget_with(is, &anna, &id, 1, &o, r);
}

/* Is the text in any file of the store? */
static const char *sought;
static bool seen_on_disk;
static int look_at(const char *path, const struct stat *sb, int flag, struct FTW *f)
{
    FILE *file;
    char *bytes;

    (void)f;
    if (flag != FTW_F || sb->st_size == 0) return 0;
    file = fopen(path, "rb");
    bytes = malloc((size_t)sb->st_size);
    if (!file || !bytes || fread(bytes, 1, (size_t)sb->st_size, file) != (size_t)sb->st_size) _exit(2);
    if (memmem(bytes, (size_t)sb->st_size, sought, strlen(sought))) seen_on_disk = true;
    free(bytes);
    fclose(file);
    return 0;
}

/* In a child: closing the bank's files here would drop SQLite's locks on them. */
static bool on_disk(const char *text)
{
    int status;
    pid_t child = fork();

    assert_true(child >= 0);
    if (child == 0) {
        sought = text;
        _exit(nftw(home, look_at, 16, FTW_PHYS) != 0 ? 2 : seen_on_disk);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) < 2);
    return WEXITSTATUS(status) == 1;
}

/* ---- Versions and time --------------------------------------------------------------------------------------------------- */

static void old_versions_answer_for_their_time(void **state)
{
    inferscale *is = open_with(NULL);
    int64_t id = remember(is, "Anna lives in Paris."), moved = 0;
    inferscale_fact second = { .text = "Anna lives in Oslo.", .event_time = YESTERDAY };
    inferscale_fact third = { .text = "Anna lives in Lisbon.", .event_time = LATER };
    inferscale_list *l;

    (void)state;
    OK(inferscale_encode(is, &anna, NULL));
    OK(inferscale_update(is, &anna, id, &second));
    OK(inferscale_supersede(is, &anna, id, &third, &moved));
    assert_true(moved > id);
    FAILS(E_INVALID, inferscale_supersede(is, &anna, id, &third, NULL)); /* once is enough */
    third.event_time = LONG_AGO;
    FAILS(E_INVALID, inferscale_supersede(is, &anna, moved, &third, NULL)); /* from before */
    FAILS(E_NOTFOUND, inferscale_supersede(is, &anna, 999, &third, NULL));
    OK(inferscale_show(is, &anna, id, &l));
    assert_int_equal(l->n, 2);
    assert_int_equal(l->items[0].valid_to, YESTERDAY);
    assert_int_equal(l->items[1].valid_to, LATER);
    assert_int_equal(l->items[1].superseded_by, moved);
    inferscale_list_free(l);
    static const struct { int64_t as_of; const char *city; } times[] = {
        { 0, "Lisbon" }, { LATER, "Lisbon" }, { LATER - 1, "Oslo" }, { YESTERDAY, "Oslo" }, { YESTERDAY - 1, "Paris" },
        { LONG_AGO, "Paris" }, { LONG_AGO - 1, NULL } };
    for (size_t i = 0; i < sizeof times / sizeof *times; i++) {
        inferscale_ask_options o = INFERSCALE_ASK_OPTIONS_INIT;
        inferscale_recall_options r = INFERSCALE_RECALL_OPTIONS_INIT;
        inferscale_answer *a = NULL;

        l = recall(is, "Where does Anna live?", INFERSCALE_FACTS, 10, times[i].as_of);
        assert_int_equal(l->n, times[i].city ? 1 : 0);
        if (times[i].city && !strstr(l->items[0].text, times[i].city)) fail_msg("case %zu: %s", i, l->items[0].text);
        inferscale_list_free(l);
        r.as_of = times[i].as_of;
        o.recall = &r;
        OK(inferscale_ask(is, &anna, "Where does Anna live?", &o, &a));
        assert_int_equal(a->n_facts, times[i].city ? 1 : 0);
        if (times[i].city && !strstr(a->text, times[i].city)) fail_msg("case %zu: %s", i, a->text);
        inferscale_answer_free(a);
    }
    inferscale_close(is);
}

static void a_correction_was_never_true_twice(void **state)
{
    inferscale *is = open_with(NULL);
    int64_t id = remember(is, "Anna has two cats.");
    inferscale_fact f = { .text = "Anna has three cats.", .event_time = LONG_AGO };
    inferscale_list *l;

    (void)state;
    OK(inferscale_update(is, &anna, id, &f)); /* holds from when the first one did: that one is history only */
    l = recall(is, "cats", INFERSCALE_FACTS, 10, LONG_AGO + 5);
    assert_int_equal(l->n, 1);
    assert_int_equal(l->items[0].version, 2);
    inferscale_list_free(l);
    inferscale_close(is);
}

static void pinned_facts_come_first(void **state)
{
    inferscale *is = open_with(NULL);
    int64_t pins[INFERSCALE_PINNED_MAX + 1], turn = add_turn(is, "We talked about the weather.");
    inferscale_list *l;
    inferscale_answer *a = NULL;

    (void)state;
    for (int i = 0; i < 20; i++) {
        char text[64];

        snprintf(text, sizeof text, "Zebra number %d likes hay.", i);
        remember(is, text);
    }
    for (int i = 0; i <= INFERSCALE_PINNED_MAX; i++) {
        char text[64];

        snprintf(text, sizeof text, "House rule %c holds always.", 'A' + i);
        pins[i] = remember(is, text);
        if (i < INFERSCALE_PINNED_MAX) OK(inferscale_pin(is, &anna, pins[i], 1));
    }
    OK(inferscale_pin(is, &anna, pins[0], 1)); /* again is no more */
    FAILS(E_FULL, inferscale_pin(is, &anna, pins[INFERSCALE_PINNED_MAX], 1));
    FAILS(E_NOTFOUND, inferscale_pin(is, &anna, turn, 1));
    FAILS(E_NOTFOUND, inferscale_pin(is, &ben, pins[0], 1));
    l = recall(is, "zebra hay", INFERSCALE_FACTS, 10, 0);
    assert_int_equal(l->n, 10);
    for (int i = 0; i < 10; i++) {
        assert_int_equal(l->items[i].pinned, i < INFERSCALE_PINNED_MAX);
        assert_int_equal(strstr(l->items[i].text, "rule") != NULL, i < INFERSCALE_PINNED_MAX);
    }
    inferscale_list_free(l);
    l = recall(is, "zebra hay", INFERSCALE_FACTS, 3, 0); /* bounded by k */
    assert_int_equal(l->n, 3);
    inferscale_list_free(l);
    OK(inferscale_ask(is, &anna, "zebra hay?", NULL, &a));
    size_t used = 0;
    for (size_t i = 0; i < a->n_facts; i++)
        for (int j = 0; j < INFERSCALE_PINNED_MAX; j++) used += a->facts[i].id == pins[j];
    assert_int_equal(used, INFERSCALE_PINNED_MAX);
    inferscale_answer_free(a);
    for (int i = 0; i < INFERSCALE_PINNED_MAX; i++) OK(inferscale_pin(is, &anna, pins[i], 0));
    l = recall(is, "zebra hay", INFERSCALE_FACTS, 10, 0);
    assert_non_null(strstr(l->items[0].text, "Zebra"));
    inferscale_list_free(l);
    inferscale_close(is);
}

static void what_has_expired_is_not_used_and_can_be_purged(void **state)
{
    inferscale *is = open_with(NULL);
    inferscale_forget_options o = INFERSCALE_FORGET_OPTIONS_INIT;
    inferscale_forget_report r;
    inferscale_fact f = { .text = "The parking ticket is number 4711.", .event_time = LONG_AGO, .expires = YESTERDAY };
    inferscale_list *l;
    inferscale_answer *a = NULL;

    (void)state;
    OK(inferscale_remember(is, &anna, &f, 1, NULL));
    int64_t kept = remember(is, "The parking lot is in the cellar.");
    OK(inferscale_encode(is, &anna, NULL));
    assert_int_equal(found(is, "parking", 0), 1);
    OK(inferscale_ask(is, &anna, "Which parking ticket?", NULL, &a));
    assert_int_equal(a->n_facts, 1);
    assert_null(strstr(a->text, "4711"));
    inferscale_answer_free(a);
    OK(inferscale_ls(is, &anna, INFERSCALE_FACTS, 0, 0, &l));
    assert_true(l->n == 2 && l->items[0].expired && !l->items[1].expired);
    inferscale_list_free(l);
    o.expired = 1;
    FAILS(E_INVALID, inferscale_forget_with(is, &anna, &kept, 1, &o, &r));
    o.prove = 1;
    OK(inferscale_forget_with(is, &anna, NULL, 0, &o, &r));
    assert_int_equal(r.forgotten, 1);
    assert_false(on_disk("number 4711"));
    OK(inferscale_ls(is, &anna, INFERSCALE_FACTS, 0, 0, &l));
    assert_true(l->n == 1 && l->items[0].id == kept);
    inferscale_list_free(l);
    inferscale_close(is);
}

/* ---- Sources and tombstones ---------------------------------------------------------------------------------------------- */

static void the_source_turn_is_withdrawn(void **state)
{
    inferscale *is = open_with(NULL);
    int64_t before = add_turn(is, "Hello there, how are you?"), turn = add_turn(is, "I am allergic to walnuts, by the way.");
    int64_t after = add_turn(is, "Noted."), fact = remember_from(is, &anna, "Anna is allergic to walnuts.", turn), other;
    inferscale_forget_options o = INFERSCALE_FORGET_OPTIONS_INIT;
    inferscale_forget_report r;
    inferscale_list *l;

    (void)state;
    other = remember_from(is, &anna, "Anna mentioned an allergy.", turn);
    assert_int_equal(found(is, "walnuts", 0), 3); /* fact, turn, and the turn whose key holds the one before it */
    OK(inferscale_forget_with(is, &anna, &fact, 1, NULL, &r));
    assert_int_equal(r.forgotten, 1);
    assert_int_equal(r.withdrawn, 1);
    assert_int_equal(found(is, "walnuts", 0), 0);
    assert_int_equal(found(is, "allergy", 0), 1);
    OK(inferscale_show(is, &anna, turn, &l)); /* the record stays, and says so */
    assert_true(l->items[0].withdrawn);
    inferscale_list_free(l);
    o.with_turns = 1;
    OK(inferscale_forget_with(is, &anna, &other, 1, &o, &r));
    assert_int_equal(r.forgotten, 2);
    FAILS(E_NOTFOUND, inferscale_show(is, &anna, turn, &l));
    fact = remember_from(is, &anna, "Anna says hello first.", before);
    o.with_turns = 0;
    o.with_facts = 1;
    OK(inferscale_forget_with(is, &anna, &before, 1, &o, &r)); /* the turn takes its fact with it */
    assert_int_equal(r.forgotten, 2);
    FAILS(E_NOTFOUND, inferscale_show(is, &anna, fact, &l));
    OK(inferscale_ls(is, &anna, 0, 0, 0, &l));
    assert_true(l->n == 1 && l->items[0].id == after);
    inferscale_list_free(l);
    inferscale_close(is);
}

static bool tombstoned(is_bank *bank, const inferscale_scope *who, const char *text)
{
    is_partition p;
    bool yes;

    OK(is_bank_partition(bank, who, false, &p));
    OK(is_bank_is_tombstoned(bank, &p, text, &yes));
    return yes;
}

static void tombstones_know_texts_again(void **state)
{
    inferscale *is = open_with(NULL);
    unsigned long long seed = scratch_seed("tombstones");
    char texts[60][80];
    int64_t ids[60];
    bool gone[60] = { 0 };
    is_bank *bank = NULL;

    (void)state;
    remember_from(is, &ben, "Ben is somebody else.", 0);
    for (int i = 0; i < 60; i++) {
        snprintf(texts[i], sizeof texts[i], "Thing %u of Anna's is %c%c, number %d.", scratch_below(&seed, 1000), 'A' + i % 26, 'a' + i % 7, i);
        ids[i] = remember(is, texts[i]);
    }
    OK(is_bank_open(scratch_path(home, "bank.sqlite"), false, &bank));
    for (int step = 0; step < 150; step++) {
        int i = (int)scratch_below(&seed, 60);
        inferscale_fact f = { .text = texts[i], .event_time = LONG_AGO };
        inferscale_event e;

        if (!gone[i]) {
            OK(inferscale_forget(is, &anna, &ids[i], 1, NULL));
        } else {
            OK(inferscale_remember(is, &anna, &f, 1, &e)); /* told again: allowed, said, and the mark is lifted */
            assert_true(e.event == INFERSCALE_EVENT_ADD && e.again == 1);
            ids[i] = e.id;
        }
        gone[i] = !gone[i];
    }
    for (int i = 0; i < 60; i++) {
        char shouted[100], spaced[100] = "";
        size_t n = 0;

        for (size_t c = 0; c <= strlen(texts[i]); c++) shouted[c] = (char)(texts[i][c] >= 'a' && texts[i][c] <= 'z' ? texts[i][c] - 32 : texts[i][c]);
        for (const char *c = texts[i]; *c && n < 90; c++) n += (size_t)snprintf(spaced + n, sizeof spaced - n, *c == ' ' ? " \t " : "%c", *c);
        assert_int_equal(tombstoned(bank, &anna, texts[i]), gone[i]);
        assert_int_equal(tombstoned(bank, &anna, shouted), gone[i]);
        if (strlen(spaced) < 88) assert_int_equal(tombstoned(bank, &anna, spaced), gone[i]);
        assert_false(tombstoned(bank, &ben, texts[i])); /* keyed by the partition */
        shouted[6] = '~';
        shouted[7] = 'q';
        assert_false(tombstoned(bank, &anna, shouted)); /* another text */
        if (gone[i]) assert_false(on_disk(texts[i]));
    }
    is_bank_close(bank);
    inferscale_close(is);
}

static void equal_texts_are_recognised(void **state)
{
    inferscale *is = open_with(NULL);
    inferscale_fact f = { .text = "Anna likes tea.", .event_time = LONG_AGO, .expires = (int64_t)time(NULL) + 1000 };
    inferscale_event first, e;

    (void)state;
    OK(inferscale_remember(is, &anna, &f, 1, &first));
    assert_true(first.event == INFERSCALE_EVENT_ADD && first.same_as == 0 && !first.again);
    OK(inferscale_remember(is, &anna, &f, 1, &e));
    assert_true(e.event == INFERSCALE_EVENT_NONE && e.id == first.id);
    f.expires = 0; /* lives longer: needed, and said to be a double */
    OK(inferscale_remember(is, &anna, &f, 1, &e));
    assert_true(e.event == INFERSCALE_EVENT_ADD && e.same_as == first.id);
    OK(inferscale_remember(is, &ben, &f, 1, &e));
    assert_true(e.event == INFERSCALE_EVENT_ADD && e.same_as == 0);
    inferscale_close(is);
}

/* ---- Under way ----------------------------------------------------------------------------------------------------------- */

typedef struct asking {
    inferscale *is;
    const char *question;
    inferscale_status st;
    inferscale_answer *answer;
    volatile int n_heard;
    int done;
    double last_heard_ms;
} asking;

static int hear(void *ctx, const char *text, size_t len)
{
    asking *q = ctx;

    (void)text;
    (void)len;
    q->last_heard_ms = is_now_ms();
    __atomic_add_fetch(&q->n_heard, 1, __ATOMIC_RELEASE);
    return 0;
}

static void *ask_it(void *arg)
{
    asking *q = arg;
    inferscale_ask_options o = INFERSCALE_ASK_OPTIONS_INIT;

    o.on_text = hear;
    o.text_ctx = q;
    o.max_tokens = 400;
    q->st = inferscale_ask(q->is, &anna, q->question, &o, &q->answer);
    __atomic_store_n(&q->done, 1, __ATOMIC_RELEASE);
    return NULL;
}

static void nap(long ms)
{
    const struct timespec t = { ms / 1000, ms % 1000 * 1000000 };

    nanosleep(&t, NULL);
}

static const char peanuts[] = "Anna is allergic to peanuts and to every other kind of nut that grows on trees or in the ground.";

/* Forgets (or updates) while a question composes: it plans again without it. */
static void forgotten_while_composing(void **state)
{
    (void)state;
    for (int how = 0; how < 3; how++) {
        inferscale *is = open_with("mock:slow-inject=150");
        int64_t id = remember(is, peanuts), other = remember(is, "Anna eats bread."), moved;
        inferscale_fact changed = { .text = "Anna eats everything now.", .event_time = YESTERDAY };
        asking q = { .is = is, .question = "peanuts?" };
        pthread_t t;
        double t0;

        OK(inferscale_encode(is, &anna, NULL));
        inferscale_answer *warm = NULL;
        OK(inferscale_ask(is, &anna, "bread?", NULL, &warm));
        inferscale_answer_free(warm);
        assert_int_equal(pthread_create(&t, NULL, ask_it, &q), 0);
        nap(100); /* in the midst of injecting two facts */
        t0 = is_now_ms();
        if (how == 0) OK(inferscale_forget(is, &anna, &id, 1, NULL));
        else if (how == 1) OK(inferscale_update(is, &anna, id, &changed));
        else OK(inferscale_supersede(is, &anna, id, &changed, &moved));
        t0 = is_now_ms() - t0;
        pthread_join(t, NULL);
        OK(q.st);
        assert_null(strstr(q.answer->text, "peanuts"));
        for (size_t i = 0; i < q.answer->n_facts; i++) assert_true(q.answer->facts[i].id != id || q.answer->facts[i].version == 2);
        assert_true(q.answer->n_facts > 0);
        (void)other;
        (void)t0;
        inferscale_answer_free(q.answer);
        OK(inferscale_forget_all(is, &anna, NULL));
        inferscale_close(is);
    }
}

static void forgotten_while_decoding(void **state)
{
    inferscale *is = open_with("mock:slow=20");
    int64_t id = remember(is, peanuts);
    asking q = { .is = is, .question = "peanuts?" };
    pthread_t t;
    double returned;

    (void)state;
    OK(inferscale_encode(is, &anna, NULL));
    assert_int_equal(pthread_create(&t, NULL, ask_it, &q), 0);
    while (__atomic_load_n(&q.n_heard, __ATOMIC_ACQUIRE) < 5) nap(1);
    OK(inferscale_forget(is, &anna, &id, 1, NULL));
    returned = is_now_ms();
    pthread_join(t, NULL);
    OK(q.st);
    assert_string_equal(q.answer->finish, "cancelled");
    assert_non_null(strstr(q.answer->fallback, "ends here"));
    assert_true(q.last_heard_ms <= returned); /* not a token after it returned */
    assert_null(strstr(q.answer->text, "ground"));
    inferscale_answer_free(q.answer);
    inferscale_close(is);
}

/* What is not concerned goes on to its end, and does not keep the one who forgets waiting for it. */
static void others_go_on(void **state)
{
    inferscale *is = open_with("mock:slow=10");
    int64_t id = remember(is, "Anna owns a kite."), kept = remember(is, peanuts);
    asking q = { .is = is, .question = "peanuts?" };
    inferscale_encode_options header = INFERSCALE_ENCODE_OPTIONS_INIT;
    inferscale_ask_options one = INFERSCALE_ASK_OPTIONS_INIT;
    pthread_t t;

    (void)state;
    (void)one;
    header.policy = "header"; /* no other fact in its context */
    OK(inferscale_encode(is, &anna, &header));
    OK(inferscale_pin(is, &anna, kept, 1));
    (void)id;
    int64_t unrelated = remember(is, "Something else entirely.");
    assert_int_equal(pthread_create(&t, NULL, ask_it, &q), 0);
    while (__atomic_load_n(&q.n_heard, __ATOMIC_ACQUIRE) < 3) nap(1);
    int64_t late = remember(is, "A fact that came after the question.");
    OK(inferscale_forget(is, &anna, &late, 1, NULL)); /* raises the epoch; the answer does not use it */
    assert_true(__atomic_load_n(&q.n_heard, __ATOMIC_ACQUIRE) < 60);
    pthread_join(t, NULL);
    OK(q.st);
    assert_string_equal(q.answer->finish, "stop");
    (void)unrelated;
    inferscale_answer_free(q.answer);
    inferscale_close(is);
}

static void conversations_let_go(void **state)
{
    inferscale *is = open_with(NULL);
    inferscale_chat *chat = NULL;
    inferscale_answer *a = NULL;
    inferscale_ask_options o = INFERSCALE_ASK_OPTIONS_INIT;
    inferscale_encode_options before = INFERSCALE_ENCODE_OPTIONS_INIT;
    int64_t first = remember(is, "Anna keeps a secret diary in the attic."), second = remember(is, peanuts);

    (void)state;
    o.k = 1;
    before.policy = "facts:4"; /* the second fact's rows are computed with the first in sight: a page may have them the other way round */
    OK(inferscale_encode(is, &anna, &before));
    OK(inferscale_chat_open(is, &anna, &chat));
    OK(inferscale_chat_say(chat, "peanuts?", &o, &a));
    assert_int_equal(a->facts[0].id, second);
    assert_true(a->tokens_injected > 0);
    inferscale_answer_free(a);
    OK(inferscale_forget(is, &anna, &first, 1, NULL)); /* not placed, but in the context of what is */
    OK(inferscale_chat_say(chat, "And now?", &o, &a));
    assert_non_null(strstr(a->fallback, "computed again"));
    inferscale_answer_free(a);
    OK(inferscale_forget(is, &anna, &second, 1, NULL));
    OK(inferscale_chat_say(chat, "peanuts again?", &o, &a));
    assert_int_equal(a->n_facts, 0);
    inferscale_answer_free(a);
    inferscale_chat_close(chat);
    inferscale_close(is);
}

typedef struct saying {
    inferscale_chat *chat;
    inferscale_answer *answer;
    inferscale_status st;
} saying;

static void *say_it(void *arg)
{
    saying *s = arg;
    inferscale_ask_options o = INFERSCALE_ASK_OPTIONS_INIT;

    o.k = 1;
    o.max_tokens = 4;
    s->st = inferscale_chat_say(s->chat, "And now?", &o, &s->answer);
    return NULL;
}

/* Somebody whom no list of this handle names forgets what a conversation placed, while the conversation runs the last token of the turn
 * before: after it looked at what it placed, before it plans. Whenever he comes, the answer uses the fact only if it ends early. */
static void conversations_look_again_when_they_plan(void **state)
{
    inferscale *is = open_with("mock:slow=150"), *other = open_with(NULL);
    inferscale_ask_options o = INFERSCALE_ASK_OPTIONS_INIT;
    inferscale_answer *a = NULL;
    saying s = { 0 };
    pthread_t t;
    int64_t id = remember(is, peanuts);

    (void)state;
    (void)remember(is, "Anna eats bread.");
    o.k = 1;
    o.max_tokens = 1; /* it stays to be run */
    OK(inferscale_chat_open(is, &anna, &s.chat));
    OK(inferscale_chat_say(s.chat, "peanuts?", &o, &a));
    assert_int_equal(a->facts[0].id, id);
    assert_string_equal(a->finish, "length");
    inferscale_answer_free(a);
    assert_int_equal(pthread_create(&t, NULL, say_it, &s), 0);
    nap(60);
    OK(inferscale_forget(other, &anna, &id, 1, NULL));
    pthread_join(t, NULL);
    OK(s.st);
    if (!strstr(s.answer->fallback, "computed again")) assert_string_equal(s.answer->finish, "cancelled");
    for (size_t i = 0; i < s.answer->n_facts; i++) assert_int_not_equal(s.answer->facts[i].id, id);
    inferscale_answer_free(s.answer);
    inferscale_chat_close(s.chat);
    inferscale_close(other);
    inferscale_close(is);
}

/* ---- Another process ----------------------------------------------------------------------------------------------------- */

/* A child that answers slowly and tells each piece through the pipe; '!' when it has ended. */
static pid_t slow_reader(int *out, const char *model)
{
    int fd[2];
    pid_t child;

    assert_int_equal(pipe(fd), 0);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        asking q = { .question = "peanuts?" };
        int n = 0;

        close(fd[0]);
        q.is = open_with(model);
        pthread_t t;
        if (pthread_create(&t, NULL, ask_it, &q) != 0) _exit(2);
        for (; n < 1000 && !__atomic_load_n(&q.done, __ATOMIC_ACQUIRE); n++) {
            int heard = __atomic_load_n(&q.n_heard, __ATOMIC_ACQUIRE);
            if (heard && write(fd[1], "x", 1) != 1) _exit(3);
            nap(5);
        }
        pthread_join(t, NULL);
        if (write(fd[1], q.answer && strcmp(q.answer->finish, "cancelled") == 0 ? "!" : "?", 1) != 1) _exit(4);
        _exit(0);
    }
    close(fd[1]);
    *out = fd[0];
    return child;
}

static void another_process_is_drained(void **state)
{
    inferscale *is = open_with(NULL);
    int64_t id = remember(is, peanuts);
    int fd, status;
    char c = 0, last = 0;
    double t0;
    pid_t child;

    (void)state;
    OK(inferscale_encode(is, &anna, NULL));
    inferscale_close(is); /* SQLite's handles do not survive fork */
    child = slow_reader(&fd, "mock:slow=20");
    is = open_with(NULL);
    assert_int_equal(read(fd, &c, 1), 1); /* it speaks */
    t0 = is_now_ms();
    OK(inferscale_forget(is, &anna, &id, 1, NULL));
    assert_true(is_now_ms() - t0 < 5000);
    while (read(fd, &c, 1) == 1) last = c;
    assert_int_equal(last, '!'); /* cancelled between two tokens */
    close(fd);
    waitpid(child, &status, 0);
    inferscale_close(is);
}

static void a_killed_reader_leaves_no_lease(void **state)
{
    inferscale *is = open_with(NULL);
    int64_t id = remember(is, peanuts);
    inferscale_forget_options o = INFERSCALE_FORGET_OPTIONS_INIT;
    inferscale_forget_report r;
    int fd, status;
    char c = 0;
    pid_t child;

    (void)state;
    OK(inferscale_encode(is, &anna, NULL));
    inferscale_close(is);
    child = slow_reader(&fd, "mock:slow=20");
    is = open_with(NULL);
    assert_int_equal(read(fd, &c, 1), 1);
    kill(child, SIGSTOP); /* it holds its lease, and does not look */
    o.wait_ms = 200;
    assert_int_equal(inferscale_forget_with(is, &anna, &id, 1, &o, &r), INFERSCALE_E_BUSY);
    assert_non_null(strstr(inferscale_error(), "have not ended"));
    assert_int_equal(r.pending, 1);
    assert_int_equal(r.forgotten, 1);
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    close(fd);
    id = remember(is, "Another one.");
    OK(inferscale_forget_with(is, &anna, &id, 1, &o, &r)); /* nothing waits for the dead */
    assert_int_equal(r.pending, 0);
    inferscale_close(is);
}

/* ---- The proof ----------------------------------------------------------------------------------------------------------- */

static void nothing_is_left(void **state)
{
    inferscale *is = open_with(NULL);
    inferscale_forget_report r;
    unsigned long long seed = scratch_seed("proof");
    enum { N = 120 };
    static char texts[N][400];
    int64_t ids[N];

    (void)state;
    for (int i = 0; i < N; i++) {
        int n = snprintf(texts[i], sizeof texts[i], "Entry %llu of Anna's long list is about ", scratch_next(&seed));

        for (unsigned k = scratch_below(&seed, 300); k > 0; k--) texts[i][n++] = (char)('a' + scratch_below(&seed, 26));
        texts[i][n] = 0;
        ids[i] = remember(is, texts[i]);
    }
    OK(inferscale_encode(is, &anna, NULL));
    for (int i = 0; i < 12; i++) {
        int at = (int)scratch_below(&seed, N);

        if (!ids[at]) continue;
        OK(forget_proving(is, ids[at], &r));
        assert_int_equal(r.forgotten, 1);
        assert_true(r.proven && r.traces == 0 && r.needles > 3 && r.scanned_bytes > 100000 && r.scanned_files > 10);
        assert_false(on_disk(texts[at]));
        if (strlen(texts[at]) > 120) assert_false(on_disk(texts[at] + strlen(texts[at]) - 30));
        ids[at] = 0;
    }
    inferscale_close(is);
}

static void plant(const char *name, const char *text)
{
    FILE *f = fopen(scratch_path(home, name), "ab");

    assert_non_null(f);
    fprintf(f, "some words before, %s and after", text);
    fclose(f);
}

static void planted_copies_are_found(void **state)
{
    inferscale *is = open_with(NULL);
    inferscale_forget_report r;
    static const char *const where[] = { "notes.txt", "vault/stray.bin", "vault/tmp/x.tmp", "leases/y", "bank.sqlite-old" };

    (void)state;
    for (size_t i = 0; i < sizeof where / sizeof *where; i++) {
        int64_t id = remember(is, peanuts);

        OK(inferscale_encode(is, &anna, NULL));
        inferscale_answer *a = NULL;
        OK(inferscale_ask(is, &anna, "peanuts?", NULL, &a));
        inferscale_answer_free(a);
        plant(where[i], peanuts);
        assert_int_equal(forget_proving(is, id, &r), INFERSCALE_E_TRACE);
        assert_true(r.traces > 0 && !r.proven);
        if (!strstr(r.trace_text, where[i]) || !strstr(inferscale_error(), where[i])) fail_msg("%s: %s", where[i], r.trace_text);
        unlink(scratch_path(home, where[i]));
        id = remember(is, peanuts);
        OK(forget_proving(is, id, &r));
        assert_true(r.proven);
    }
    inferscale_close(is);
}

static char segment_file[512];
static int first_segment(const char *path, const struct stat *sb, int flag, struct FTW *f)
{
    size_t n = strlen(path);

    (void)sb, (void)f;
    if (flag == FTW_F && n > 4 && strcmp(path + n - 4, ".seg") == 0) snprintf(segment_file, sizeof segment_file, "%s", path);
    return 0;
}

static void planted_keys_and_values_are_found(void **state)
{
    inferscale *is = open_with(NULL);
    int64_t id = remember(is, peanuts);
    inferscale_forget_report r;

    (void)state;
    OK(inferscale_encode(is, &anna, NULL));
    assert_int_equal(nftw(home, first_segment, 16, FTW_PHYS), 0);
    char command[1200];
    /* the middle of the payload, at an odd offset in a file of another name */
    snprintf(command, sizeof command, "(printf abc; tail -c 3000 '%s' | head -c 700) > '%s'", segment_file, scratch_path(home, "cache.bin"));
    assert_int_equal(system(command), 0);
    assert_int_equal(forget_proving(is, id, &r), INFERSCALE_E_TRACE);
    assert_non_null(strstr(r.trace_text, "cache.bin"));
    assert_non_null(strstr(r.trace_text, "keys and values"));
    inferscale_close(is);
}

/* Into a page that SQLite does not use at the moment. */
static void a_copy_in_a_free_page_is_found(void **state)
{
    inferscale *is = open_with(NULL);
    inferscale_forget_report r;
    uint8_t header[100];
    int64_t ids[40];
    FILE *f;

    (void)state;
    for (int i = 0; i < 40; i++) {
        char text[3000];

        memset(text, 'a' + i % 26, sizeof text);
        text[snprintf(text, 30, "filling number %d", i)] = ' ';
        text[sizeof text - 1] = 0;
        ids[i] = remember(is, text);
    }
    int64_t id = remember(is, peanuts);
    OK(inferscale_forget(is, &anna, ids, 40, NULL));
    inferscale_close(is);
    f = fopen(scratch_path(home, "bank.sqlite"), "r+b");
    assert_non_null(f);
    assert_int_equal(fread(header, 1, sizeof header, f), sizeof header);
    uint32_t trunk = (uint32_t)header[32] << 24 | (uint32_t)header[33] << 16 | (uint32_t)header[34] << 8 | header[35];
    assert_true(trunk > 0);
    fseek(f, (long)(trunk - 1) * 4096 + 3000, SEEK_SET);
    assert_int_equal(fwrite(peanuts, 1, strlen(peanuts), f), strlen(peanuts));
    fclose(f);
    is = open_with(NULL);
    assert_int_equal(forget_proving(is, id, &r), INFERSCALE_E_TRACE);
    assert_non_null(strstr(r.trace_text, "bank.sqlite"));
    inferscale_close(is);
}

static void what_others_hold_by_right_is_allowed(void **state)
{
    inferscale *is = open_with(NULL);
    inferscale_forget_report r;
    int64_t turn = add_turn(is, peanuts), id = remember_from(is, &anna, peanuts, turn);

    (void)state;
    remember_from(is, &ben, peanuts, 0); /* the same words, his own */
    OK(inferscale_encode(is, &anna, NULL));
    OK(inferscale_encode(is, &ben, NULL));
    OK(forget_proving(is, id, &r));
    assert_true(r.proven && r.traces == 0);
    assert_true(r.allowed > 0);
    assert_non_null(strstr(r.allowed_text, "turns"));
    assert_non_null(strstr(r.allowed_text, "fact_versions"));
    plant("copy.txt", peanuts); /* one more than by right is a trace all the same */
    id = remember(is, "And another fact about nothing in particular, so to say.");
    OK(forget_proving(is, id, &r));
    inferscale_close(is);
}

static void a_reader_of_the_log_makes_it_fail(void **state)
{
    inferscale *is = open_with(NULL);
    inferscale_forget_report r;
    inferscale_forget_options o = INFERSCALE_FORGET_OPTIONS_INIT;
    int64_t id = remember(is, peanuts);
    sqlite3 *db = NULL;
    struct stat s;

    (void)state;
    assert_int_equal(sqlite3_open_v2(scratch_path(home, "bank.sqlite"), &db, SQLITE_OPEN_READONLY, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "BEGIN; SELECT count(*) FROM items", NULL, NULL, NULL), SQLITE_OK);
    assert_int_equal(forget_proving(is, id, &r), INFERSCALE_E_BUSY);
    assert_non_null(strstr(inferscale_error(), "write-ahead log"));
    assert_false(r.proven);
    assert_int_equal(r.forgotten, 1);
    sqlite3_close(db);
    o.prove = 1;
    OK(inferscale_forget_with(is, &anna, NULL, 0, &o, &r)); /* the log alone */
    assert_int_equal(stat(scratch_path(home, "bank.sqlite-wal"), &s), 0);
    assert_int_equal(s.st_size, 0);
    assert_false(on_disk("every other kind of nut"));
    inferscale_close(is);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, new_home, no_home)
    const struct CMUnitTest tests[] = {
        T(old_versions_answer_for_their_time), T(a_correction_was_never_true_twice), T(pinned_facts_come_first),
        T(what_has_expired_is_not_used_and_can_be_purged), T(the_source_turn_is_withdrawn), T(tombstones_know_texts_again),
        T(equal_texts_are_recognised), T(forgotten_while_composing), T(forgotten_while_decoding), T(others_go_on),
        T(conversations_let_go), T(conversations_look_again_when_they_plan), T(another_process_is_drained),
        T(a_killed_reader_leaves_no_lease), T(nothing_is_left),
        T(planted_copies_are_found), T(planted_keys_and_values_are_found), T(a_copy_in_a_free_page_is_found),
        T(what_others_hold_by_right_is_allowed), T(a_reader_of_the_log_makes_it_fail),
    };
    ssize_t n = readlink("/proc/self/exe", plugins, sizeof plugins - 1);

    if (n < 0) return 1;
    plugins[n] = 0;
    *strrchr(plugins, '/') = 0;
    *strrchr(plugins, '/') = 0;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
