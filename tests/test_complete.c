/* What must hold of conversations that are sent whole each time. The mock's answer names the last fact of the prompt and a hash of all
 * its token ids, so that equal answers mean equal prompts, token by token, however they came into the engine:
 *   - the prompt is the one a chat has, and the one computed as text, be it told in one go, after a restart, after an eviction;
 *   - forks and edits keep the memory of what they share with the conversation, and only that;
 *   - nothing that was forgotten is computed on, wherever the conversation stood; nothing of one owner goes on for another;
 *   - stop strings are found however the text is cut into pieces; logprobs are those of the raw distribution;
 *   - eight conversations at once give what they give one by one. */
#include <setjmp.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api/answer.h"
#include "api/stops.h"
#include "api/talks.h"
#include "support/scratch.h"
#include "support/store_kit.h"

enum { TURNS = 6, FACTS = 12 };

static const char *const topics[FACTS] = { "bees", "cello", "peanuts", "van", "chess", "garden", "opera", "sailing", "violets", "hockey",
                                           "kites", "marble" };

/* ---- A store and its conversations --------------------------------------------------------------------------------------- */

typedef struct store { char *home; inferscale *is; int64_t ids[FACTS]; char model[600]; } store;

static void remember_topics(inferscale *is, const inferscale_scope *who, int64_t *ids)
{
    for (int i = 0; i < FACTS; i++) {
        char text[120];
        inferscale_fact f = { .text = text, .event_time = 1714521600 };
        inferscale_event e;

        snprintf(text, sizeof text, "Something about %s that %s likes, number %d.", topics[i], who->user, i);
        OK(inferscale_remember(is, who, &f, 1, &e));
        if (ids) ids[i] = e.id;
    }
}

static void store_begin(store *s, const char *options)
{
    s->home = scratch_make();
    snprintf(s->model, sizeof s->model, "mock:%s", options);
    s->is = store_open(scratch_path(s->home, "store"), s->model, NULL, false);
    remember_topics(s->is, &store_anna, s->ids);
    remember_topics(s->is, &store_ben, NULL);
    OK(inferscale_encode(s->is, &store_anna, NULL));
    OK(inferscale_encode(s->is, &store_ben, NULL));
}

static void store_restart(store *s)
{
    inferscale_close(s->is);
    s->is = store_open(scratch_path(s->home, "store"), s->model, NULL, false);
}

static void store_end(store *s)
{
    inferscale_close(s->is);
    scratch_remove(s->home);
}

/* A conversation: question i is about topic i. */
typedef struct talk {
    inferscale_message m[2 * TURNS + 2];
    char text[2 * TURNS + 2][400];
    size_t n;
} talk;

static void say(talk *t, const char *role, const char *text)
{
    snprintf(t->text[t->n], sizeof t->text[0], "%s", text);
    t->m[t->n] = (inferscale_message){ role, t->text[t->n] };
    t->n++;
}

static void ask_about(talk *t, int topic)
{
    char text[100];

    snprintf(text, sizeof text, "What about %s?", topics[topic]);
    say(t, "user", text);
}

static inferscale_complete_options options(void)
{
    inferscale_complete_options o = INFERSCALE_COMPLETE_OPTIONS_INIT;

    o.ask.k = 2;
    o.ask.max_tokens = 80;
    return o;
}

static inferscale_answer *complete(inferscale *is, const inferscale_scope *who, const talk *t, const inferscale_complete_options *o)
{
    inferscale_answer *a = NULL;

    OK(inferscale_complete(is, who, t->m, t->n, o, &a));
    return a;
}

/* Tells a whole conversation of n turns, each answer as it came. answers[n] (may be NULL) are copies. */
static void tell(inferscale *is, const inferscale_scope *who, talk *t, int first, int n, const inferscale_complete_options *o,
                 char answers[][400])
{
    for (int i = first; i < first + n; i++) {
        inferscale_answer *a;

        ask_about(t, i);
        a = complete(is, who, t, o);
        say(t, "assistant", a->text);
        if (answers) snprintf(answers[i - first], 400, "%s", a->text);
        inferscale_answer_free(a);
    }
}

static bool uses(const inferscale_answer *a, int64_t id)
{
    for (size_t i = 0; i < a->n_facts; i++)
        if (a->facts[i].id == id) return true;
    return false;
}

static uint32_t resident_facts(const inferscale_answer *a)
{
    uint32_t n = 0;

    for (size_t i = 0; i < a->n_facts; i++) n += a->facts[i].source == INFERSCALE_SOURCE_RESIDENT;
    return n;
}

/* ---- The prompt ---------------------------------------------------------------------------------------------------------- */

static void the_prompt_is_the_chats(void **state)
{
    inferscale_ask_options o = INFERSCALE_ASK_OPTIONS_INIT;
    inferscale_complete_options c = options();
    inferscale_chat *chat = NULL;
    store s, twin;
    talk t = { 0 };

    (void)state;
    store_begin(&s, "");
    store_begin(&twin, "");
    o.k = c.ask.k;
    o.max_tokens = c.ask.max_tokens;
    OK(inferscale_chat_open(twin.is, &store_anna, &chat));
    for (int i = 0; i < 4; i++) {
        inferscale_answer *said = NULL, *a;

        ask_about(&t, i);
        OK(inferscale_chat_say(chat, t.m[t.n - 1].content, &o, &said));
        a = complete(s.is, &store_anna, &t, &c);
        assert_string_equal(a->text, said->text); /* the hash of all tokens is in it */
        assert_int_equal(a->tokens_computed + a->tokens_injected + a->tokens_resident, a->tokens_prompt);
        assert_int_equal(a->n_placed_kept, i);
        assert_int_equal(a->n_placed_new, 1);
        assert_int_equal(a->n_placed_lost, 0);
        assert_int_equal(resident_facts(a), 2 * i);
        if (i) assert_true(a->tokens_resident > a->tokens_computed);
        assert_string_equal(a->fallback, "");
        assert_string_equal(a->header, "exact");
        say(&t, "assistant", a->text);
        inferscale_answer_free(a);
        inferscale_answer_free(said);
    }
    inferscale_chat_close(chat);
    store_end(&s);
    store_end(&twin);
}

/* Text, and KV; one turn after the other, and after a restart: the same tokens. */
static void text_and_kv_see_the_same_tokens_whatever_came_between(void **state)
{
    inferscale_complete_options kv = options(), text = options();
    char answers[TURNS][400];
    store s, other;
    talk t = { 0 }, u = { 0 };

    (void)state;
    store_begin(&s, "");
    store_begin(&other, "");
    text.ask.mode = INFERSCALE_MODE_TEXT;
    tell(s.is, &store_anna, &t, 0, TURNS, &kv, answers);
    for (int i = 0; i < TURNS; i++) {
        inferscale_answer *a, *b;

        ask_about(&u, i);
        if (i % 2) store_restart(&other);
        a = complete(other.is, &store_anna, &u, &text);
        b = complete(s.is, &store_anna, &u, &kv); /* told before: what stands in the bank, or in the engine */
        assert_string_equal(a->text, answers[i]);
        assert_string_equal(b->text, answers[i]);
        assert_int_equal(a->tokens_injected, 0);
        assert_int_equal(a->tokens_prompt, b->tokens_prompt);
        assert_true(i % 2 || i == 0 || a->tokens_resident > a->tokens_computed);
        assert_int_equal(a->n_placed_kept, i);
        assert_int_equal(a->n_placed_lost, 0);
        say(&u, "assistant", a->text);
        inferscale_answer_free(a);
        inferscale_answer_free(b);
    }
    ask_about(&u, TURNS); /* the engine holds these turns with KV, and text does not go on from there */
    inferscale_answer *computed = complete(s.is, &store_anna, &u, &text), *live = complete(s.is, &store_anna, &u, &kv);
    assert_true(resident_facts(computed) == 0 && computed->tokens_injected == 0);
    assert_int_equal(resident_facts(live), 2 * TURNS);
    assert_string_equal(computed->text, live->text);
    inferscale_answer_free(computed);
    inferscale_answer_free(live);
    store_end(&s);
    store_end(&other);
}

static void another_system_text_is_a_header_of_its_own(void **state)
{
    inferscale_complete_options o = options();
    talk own = { 0 }, other = { 0 }, none = { 0 };
    inferscale_answer *a, *b, *c, *d;
    store s;

    (void)state;
    store_begin(&s, "");
    say(&own, "system", "You are a helpful assistant.");
    ask_about(&own, 0);
    ask_about(&none, 0);
    say(&other, "system", "You are a pirate.");
    say(&other, "system", "And a poet.");
    ask_about(&other, 0);
    a = complete(s.is, &store_anna, &own, &o);
    b = complete(s.is, &store_anna, &none, &o);
    c = complete(s.is, &store_anna, &other, &o);
    o.ask.mode = INFERSCALE_MODE_TEXT;
    d = complete(s.is, &store_anna, &other, &o);
    assert_string_equal(a->header, "exact");
    assert_string_equal(a->text, b->text);
    assert_string_equal(c->header, "generic");
    assert_true(c->tokens_injected > 0 && strcmp(c->text, a->text) != 0);
    assert_string_equal(c->text, d->text);
    assert_int_equal(d->tokens_injected, 0);
    inferscale_answer_free(a);
    inferscale_answer_free(b);
    inferscale_answer_free(c);
    inferscale_answer_free(d);
    store_end(&s);
}

static void in_front_stands_all_memory_behind_the_header(void **state)
{
    inferscale_complete_options o = options();
    inferscale_answer *a, *b;
    talk t = { 0 };
    store s;

    (void)state;
    store_begin(&s, "");
    o.layout = INFERSCALE_LAYOUT_FRONT;
    tell(s.is, &store_anna, &t, 0, 2, &o, NULL);
    ask_about(&t, 5);
    a = complete(s.is, &store_anna, &t, &o);
    assert_int_equal(a->n_facts, 2);
    assert_true(uses(a, s.ids[5]) && a->tokens_injected > 0);
    assert_int_equal(a->n_placed_kept + a->n_placed_new + a->n_placed_lost, 0);
    o.ask.mode = INFERSCALE_MODE_TEXT;
    b = complete(s.is, &store_anna, &t, &o);
    assert_string_equal(a->text, b->text);
    inferscale_answer_free(a);
    inferscale_answer_free(b);
    store_end(&s);
}

static void without_memory_there_is_none(void **state)
{
    inferscale_complete_options o = options();
    inferscale_answer *a, *b;
    talk t = { 0 };
    store s;

    (void)state;
    store_begin(&s, "");
    tell(s.is, NULL, &t, 0, 2, &o, NULL);
    ask_about(&t, 2);
    a = complete(s.is, NULL, &t, &o);
    assert_int_equal(a->mode, INFERSCALE_MODE_NONE);
    assert_string_equal(a->header, "none");
    assert_true(a->n_facts == 0 && a->tokens_injected == 0 && a->tokens_resident > a->tokens_computed);
    o.ask.mode = INFERSCALE_MODE_NONE;
    b = complete(s.is, &store_anna, &t, &o);
    assert_string_equal(a->text, b->text);
    assert_true(b->tokens_resident < b->tokens_computed); /* hers is not nobody's */
    inferscale_answer_free(a);
    inferscale_answer_free(b);
    store_end(&s);
}

/* ---- Histories that branch ----------------------------------------------------------------------------------------------- */

static void forks_and_edits_keep_what_they_share(void **state)
{
    inferscale_complete_options o = options();
    talk t = { 0 }, fork, edit;
    inferscale_answer *a, *b;
    store s;

    (void)state;
    store_begin(&s, "");
    tell(s.is, &store_anna, &t, 0, 3, &o, NULL);

    fork = t; /* another third question */
    for (size_t i = 0; i < fork.n; i++) fork.m[i].content = fork.text[i];
    fork.n = 4;
    ask_about(&fork, 7);
    a = complete(s.is, &store_anna, &fork, &o);
    assert_int_equal(a->n_placed_kept, 2);
    assert_int_equal(a->n_placed_lost, 0);
    assert_true(uses(a, s.ids[0]) && uses(a, s.ids[1]) && uses(a, s.ids[7]));
    store_restart(&s);
    b = complete(s.is, &store_anna, &fork, &o);
    assert_string_equal(a->text, b->text);
    inferscale_answer_free(a);
    inferscale_answer_free(b);

    edit = t; /* the first answer was edited: the memory before both questions up to there is known, the second's is not */
    for (size_t i = 0; i < edit.n; i++) edit.m[i].content = edit.text[i];
    snprintf(edit.text[1], sizeof edit.text[1], "I never said that.");
    edit.n = 4;
    ask_about(&edit, 8);
    a = complete(s.is, &store_anna, &edit, &o);
    assert_int_equal(a->n_placed_kept, 1);
    assert_int_equal(a->n_placed_lost, 1);
    assert_true(a->fallback[0] && uses(a, s.ids[0]) && !resident_facts(a));
    inferscale_answer_free(a);

    snprintf(edit.text[0], sizeof edit.text[0], "Another beginning."); /* nothing is known of this one */
    a = complete(s.is, &store_anna, &edit, &o);
    assert_int_equal(a->n_placed_kept, 0);
    assert_int_equal(a->n_placed_lost, 2);
    assert_int_equal(a->n_facts, 2);
    inferscale_answer_free(a);
    store_end(&s);
}

static void what_others_placed_is_not_shown(void **state)
{
    const inferscale_scope agent = { .user = "anna", .agent = "x" };
    inferscale_complete_options o = options();
    talk t = { 0 };
    inferscale_answer *a;
    store s;

    (void)state;
    store_begin(&s, "");
    tell(s.is, &store_anna, &t, 0, 2, &o, NULL);
    ask_about(&t, 2);
    a = complete(s.is, &store_ben, &t, &o); /* the same words of another owner */
    assert_int_equal(a->n_placed_lost, 2);
    assert_true(a->tokens_resident < 40 && !resident_facts(a) && !strstr(a->text, "anna"));
    inferscale_answer_free(a);
    a = complete(s.is, &agent, &t, &o); /* her agent, who sees none of these facts */
    assert_int_equal(a->n_placed_lost, 2);
    assert_int_equal(a->n_facts, 0);
    inferscale_answer_free(a);
    a = complete(s.is, &store_anna, &t, &o);
    assert_int_equal(a->n_placed_kept, 2);
    assert_int_equal(resident_facts(a), 4);
    inferscale_answer_free(a);
    store_end(&s);
}

/* More conversations than are kept: those that went out are put in again and say the same. */
static void evicted_conversations_go_on_all_the_same(void **state)
{
    enum { MANY = 14 };
    static talk t[MANY], alone[MANY];
    inferscale_complete_options o = options();
    int resident = 0;
    store s, other;

    (void)state;
    memset(t, 0, sizeof t);
    memset(alone, 0, sizeof alone);
    store_begin(&s, "");
    store_begin(&other, "");
    for (int i = 0; i < MANY; i++) {
        char hello[60];

        snprintf(hello, sizeof hello, "You are assistant %d.", i);
        say(&t[i], "system", hello);
        say(&alone[i], "system", hello);
        tell(other.is, &store_anna, &alone[i], i % 4, 3, &o, NULL);
    }
    for (int turn = 0; turn < 3; turn++) {
        for (int i = 0; i < MANY; i++) {
            inferscale_answer *a;

            ask_about(&t[i], i % 4 + turn);
            a = complete(s.is, &store_anna, &t[i], &o);
            assert_string_equal(a->text, alone[i].text[2 * turn + 2]);
            resident += resident_facts(a) > 0;
            assert_int_equal(a->n_placed_kept, turn);
            say(&t[i], "assistant", a->text);
            inferscale_answer_free(a);
        }
    }
    assert_int_equal(resident, 0); /* round robin over more than are kept: none was there any more */
    store_end(&s);
    store_end(&other);
}

/* ---- Changing and forgetting --------------------------------------------------------------------------------------------- */

static void forget_topic(store *s, int topic)
{
    size_t n = 0;

    OK(inferscale_forget(s->is, &store_anna, &s->ids[topic], 1, &n));
    assert_int_equal(n, 1);
}

/* The part of the witness's file that was written after `from`. */
static char *witness_since(const store *s, long from)
{
    FILE *f = fopen(scratch_path(s->home, "witness"), "rb");
    char *all = calloc(1, 4 << 20);

    assert_true(f && all);
    assert_int_equal(fseek(f, from, SEEK_SET), 0);
    assert_true(fread(all, 1, (4 << 20) - 1, f) > 0);
    fclose(f);
    return all;
}

static long witness_size(const store *s)
{
    FILE *f = fopen(scratch_path(s->home, "witness"), "rb");
    long n;

    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    n = ftell(f);
    fclose(f);
    return n;
}

/* how: 0 forget, 1 change, 2 supersede, 3 expire; live: the conversation is in the engine still. */
static void without_the_fact(int how, bool live)
{
    inferscale_fact new = { .text = "Nothing of the kind, number 99.", .event_time = 1714521600 }, brief = { .text = "xy", .event_time = 1714521600 };
    inferscale_complete_options o = options();
    char *seen;
    inferscale_answer *a;
    talk t = { 0 };
    store s;
    long from;

    s.home = scratch_make();
    snprintf(s.model, sizeof s.model, "mock:witness=%s", scratch_path(s.home, "witness"));
    s.is = store_open(scratch_path(s.home, "store"), s.model, NULL, false);
    remember_topics(s.is, &store_anna, s.ids);
    OK(inferscale_encode(s.is, &store_anna, NULL));
    o.ask.k = 1;
    tell(s.is, &store_anna, &t, 0, 3, &o, NULL);
    for (size_t i = 0; i < t.n; i++) /* what the answers tell of the fact is the client's; here he tells none */
        if (i % 2) snprintf(t.text[i], sizeof t.text[i], "Well, answer %zu.", i);
    if (live) {
        t.n = 0;
        memset(&t, 0, sizeof t);
        o.ask.max_tokens = 6;
        tell(s.is, &store_anna, &t, 0, 3, &o, NULL);
    } else {
        talk again = { 0 };

        for (size_t i = 0; i < t.n; i += 2) { /* placed with those answers before */
            say(&again, "user", t.text[i]);
            a = complete(s.is, &store_anna, &again, &o);
            inferscale_answer_free(a);
            say(&again, "assistant", t.text[i + 1]);
        }
        store_restart(&s);
    }
    switch (how) {
    case 0: forget_topic(&s, 1); break;
    case 1: OK(inferscale_update(s.is, &store_anna, s.ids[1], &new)); break;
    case 2: OK(inferscale_supersede(s.is, &store_anna, s.ids[1], &new, NULL)); break;
    default:
        brief.text = "Something about cello that anna likes, number 1.";
        brief.expires = 1714521700;
        OK(inferscale_update(s.is, &store_anna, s.ids[1], &brief));
    }
    if (live) assert_false(is_talks_evict(s.is)); /* nothing that held it is kept */
    from = witness_size(&s);
    ask_about(&t, 5);
    a = complete(s.is, &store_anna, &t, &o);
    seen = witness_since(&s, from);
    assert_null(strstr(seen, "about cello that"));
    assert_non_null(strstr(seen, "about bees that"));
    assert_int_equal(a->n_placed_kept, 2);
    assert_int_equal(a->n_placed_lost, 1);
    assert_true(a->fallback[0] != 0 && !uses(a, s.ids[1]) && uses(a, s.ids[0]) && uses(a, s.ids[2]) && uses(a, s.ids[5]));
    assert_int_equal(resident_facts(a), 0);
    inferscale_answer_free(a);
    free(seen);
    store_end(&s);
}

static void nothing_that_was_ended_is_computed_on(void **state)
{
    (void)state;
    for (int how = 0; how < 4; how++) {
        without_the_fact(how, false);
        without_the_fact(how, true);
    }
}

/* Time ends a fact without a word: its placement stays in the bank, and is none. */
static void what_has_expired_stands_nowhere(void **state)
{
    inferscale_complete_options o = options();
    inferscale_answer *a;
    talk t = { 0 };
    store s;

    (void)state;
    store_begin(&s, "");
    o.ask.k = 1;
    tell(s.is, &store_anna, &t, 0, 2, &o, NULL);
    inferscale_close(s.is);
    store_sql(scratch_path(s.home, "store"), "UPDATE fact_versions SET expires = 1 WHERE item_id = (SELECT min(item_id) FROM fact_versions)");
    s.is = store_open(scratch_path(s.home, "store"), s.model, NULL, false);
    ask_about(&t, 2);
    a = complete(s.is, &store_anna, &t, &o);
    assert_int_equal(a->n_placed_lost, 1);
    assert_int_equal(a->n_placed_kept, 1);
    assert_true(!uses(a, s.ids[0]) && uses(a, s.ids[1]) && uses(a, s.ids[2]));
    inferscale_answer_free(a);
    store_end(&s);
}

typedef struct forgetter { store *s; int pieces; pthread_t thread; bool started; } forgetter;

static void *forget_now(void *arg)
{
    forget_topic(((forgetter *)arg)->s, 0);
    return NULL;
}

static int forget_at_the_third_piece(void *ctx, const char *text, size_t len)
{
    forgetter *f = ctx;

    (void)text;
    (void)len;
    if (++f->pieces == 3) f->started = pthread_create(&f->thread, NULL, forget_now, f) == 0;
    return 0;
}

static void forgetting_cuts_an_answer_and_keeps_no_run(void **state)
{
    inferscale_complete_options o = options();
    inferscale_answer *a;
    talk t = { 0 };
    forgetter f = { 0 };
    store s;

    (void)state;
    store_begin(&s, "slow=20");
    f.s = &s;
    o.ask.k = 1;
    o.ask.on_text = forget_at_the_third_piece;
    o.ask.text_ctx = &f;
    ask_about(&t, 0);
    a = complete(s.is, &store_anna, &t, &o);
    assert_true(f.started);
    pthread_join(f.thread, NULL);
    assert_string_equal(a->finish, "cancelled");
    assert_true(a->tokens_answer < 40 && a->fallback[0]);
    say(&t, "assistant", a->text);
    inferscale_answer_free(a);
    ask_about(&t, 2);
    o.ask.on_text = NULL;
    a = complete(s.is, &store_anna, &t, &o);
    assert_true(!uses(a, s.ids[0]) && resident_facts(a) == 0);
    assert_int_equal(a->n_placed_lost, 1);
    inferscale_answer_free(a);
    store_end(&s);
}

typedef struct canceller { volatile int flag; char heard[400]; } canceller;

static int cancel_soon(void *ctx, const char *text, size_t len)
{
    canceller *c = ctx;

    strncat(c->heard, text, len);
    if (strlen(c->heard) > 12) __atomic_store_n(&c->flag, 1, __ATOMIC_RELEASE);
    return 0;
}

/* What was heard of a cancelled answer is sent with the next question, and the memory stands where it stood. A refusal costs nothing. */
static void a_cancelled_or_refused_turn_loses_nothing(void **state)
{
    inferscale_complete_options o = options();
    inferscale_answer *a = NULL;
    canceller c = { .flag = 0 };
    int64_t nobody = 999999;
    talk t = { 0 };
    store s;

    (void)state;
    store_begin(&s, "");
    o.ask.on_text = cancel_soon;
    o.ask.text_ctx = &c;
    o.ask.cancel = &c.flag;
    ask_about(&t, 0);
    FAILS(E_CANCELLED, inferscale_complete(s.is, &store_anna, t.m, t.n, &o, &a));
    say(&t, "assistant", c.heard);
    o = options();
    tell(s.is, &store_anna, &t, 1, 1, &o, NULL);
    ask_about(&t, 2);
    o.ids = &nobody;
    o.n_ids = 1;
    FAILS(E_NOTFOUND, inferscale_complete(s.is, &store_anna, t.m, t.n, &o, &a));
    o = options();
    a = complete(s.is, &store_anna, &t, &o);
    assert_int_equal(a->n_placed_kept, 2);
    assert_int_equal(a->n_placed_lost, 0);
    assert_int_equal(resident_facts(a), 4); /* the refusal left it where it was */
    inferscale_answer_free(a);
    store_end(&s);
}

/* ---- A full context ------------------------------------------------------------------------------------------------------ */

static void a_full_context_is_refused_or_the_oldest_go(void **state)
{
    inferscale_complete_options o = options();
    inferscale_answer *a = NULL;
    talk t = { 0 };
    store s;
    size_t dropped;

    (void)state;
    store_begin(&s, "ctx=420");
    o.ask.k = 1;
    tell(s.is, &store_anna, &t, 0, 3, &o, NULL);
    ask_about(&t, 3);
    FAILS(E_CONTEXT, inferscale_complete(s.is, &store_anna, t.m, t.n, &o, &a));
    assert_null(a);
    o.on_full = 1;
    a = complete(s.is, &store_anna, &t, &o);
    dropped = a->n_turns_dropped;
    assert_true(dropped >= 1 && dropped < 3 && a->fallback[0] && a->tokens_prompt + o.ask.max_tokens <= 420);
    assert_int_equal(a->n_placed_kept, 3 - dropped);
    assert_false(uses(a, s.ids[0]));
    say(&t, "assistant", "Well."); /* not what it said: no talk */
    inferscale_answer_free(a);
    ask_about(&t, 4);
    o.ask.max_tokens = 8;
    a = complete(s.is, &store_anna, &t, &o);
    say(&t, "assistant", a->text);
    dropped = a->n_turns_dropped;
    inferscale_answer_free(a);
    ask_about(&t, 5);
    o.ask.max_tokens = 4;
    a = complete(s.is, &store_anna, &t, &o); /* goes on where it stands, without the same turns */
    assert_true(a->n_turns_dropped >= dropped);
    inferscale_answer_free(a);
    o.ask.max_tokens = 410;
    FAILS(E_CONTEXT, inferscale_complete(s.is, &store_anna, t.m, t.n, &o, &a));
    store_end(&s);
}

/* ---- How it ends --------------------------------------------------------------------------------------------------------- */

/* Byte by byte: the first stop string that is complete. */
static int oracle_stop(const char *const *stops, size_t n, const char *text, size_t *cut)
{
    for (size_t end = 1; end <= strlen(text); end++) {
        int best = -1;

        for (size_t i = 0; i < n; i++) {
            size_t len = strlen(stops[i]);

            if (len <= end && strncmp(text + end - len, stops[i], len) == 0 && (best < 0 || len > strlen(stops[best]))) best = (int)i;
        }
        if (best < 0) continue;
        *cut = end - strlen(stops[best]);
        return best;
    }
    *cut = strlen(text);
    return -1;
}

static void stop_strings_do_not_depend_on_the_pieces(void **state)
{
    unsigned long long rng = scratch_seed("stop strings");

    (void)state;
    for (int round = 0; round < 20000; round++) {
        char text[41] = "", store_[4][7];
        const char *stops[4];
        size_t n = scratch_below(&rng, 4), len = scratch_below(&rng, 41), at = 0, want_cut, shown = 0, cut = 0;
        int want, got = -1;

        for (size_t i = 0; i < len; i++) text[i] = (char)('a' + scratch_below(&rng, 3));
        for (size_t i = 0; i < n; i++) {
            size_t k = 1 + scratch_below(&rng, 6);

            for (size_t j = 0; j < k; j++) store_[i][j] = (char)('a' + scratch_below(&rng, 3));
            store_[i][k] = 0;
            stops[i] = store_[i];
        }
        want = oracle_stop(stops, n, text, &want_cut);
        while (got < 0 && at < len) {
            size_t piece = 1 + scratch_below(&rng, 5), before = at;

            at = at + piece < len ? at + piece : len;
            got = is_stops_find(stops, n, text, at, before, &cut);
            assert_true(cut >= shown && cut <= at);
            assert_true(want < 0 || cut <= want_cut); /* never shows what it would have to take back */
            shown = cut;
        }
        assert_int_equal(got, want);
        if (want >= 0) assert_int_equal(cut, want_cut);
    }
}

typedef struct shown { char text[400]; size_t len; int tokens, after_plan, plans; const inferscale_answer *so_far; size_t facts; } shown;

static int add_text(void *ctx, const char *text, size_t len)
{
    shown *s = ctx;

    assert_true(s->len + len < sizeof s->text && s->plans == 1);
    memcpy(s->text + s->len, text, len);
    s->len += len;
    return 0;
}

static int add_token(void *ctx, const inferscale_token *token)
{
    assert_non_null(token->bytes);
    ((shown *)ctx)->tokens++;
    return 0;
}

static void on_plan(void *ctx, const inferscale_answer *so_far)
{
    shown *s = ctx;

    s->plans++;
    s->facts = so_far->n_facts;
    assert_true(so_far->tokens_prompt > 0 && s->len == 0 && s->tokens == 0 && so_far->tokens_answer <= 1);
    assert_string_equal(so_far->fallback, "");
}

static void answers_end_before_a_stop_string(void **state)
{
    static const char *const stops[] = { "no such thing", "about kites", "number" };
    inferscale_complete_options o = options();
    char want[400];
    inferscale_answer *whole, *a;
    shown seen = { .len = 0 };
    talk t = { 0 };
    store s;

    (void)state;
    store_begin(&s, "");
    ask_about(&t, 10);
    whole = complete(s.is, &store_anna, &t, &o);
    assert_non_null(strstr(whole->text, "about kites"));
    snprintf(want, sizeof want, "%.*s", (int)(strstr(whole->text, "about kites") - whole->text), whole->text);
    o.stop = stops;
    o.n_stop = 3;
    o.logprobs = 1;
    o.top_logprobs = 5;
    o.ask.on_text = add_text;
    o.on_token = add_token;
    o.on_plan = on_plan;
    o.ask.text_ctx = o.token_ctx = o.plan_ctx = &seen;
    a = complete(s.is, &store_anna, &t, &o);
    assert_string_equal(a->text, want);
    assert_string_equal(a->finish, "stop");
    assert_true(a->stopped_by == stops[1]);
    assert_int_equal(seen.len, strlen(want));
    assert_memory_equal(seen.text, want, seen.len);
    assert_int_equal(seen.tokens, a->n_tokens);
    assert_int_equal(seen.plans, 1);
    assert_int_equal(seen.facts, a->n_facts);
    assert_true(a->n_tokens > 0 && a->n_tokens < a->tokens_answer);
    say(&t, "assistant", a->text);
    inferscale_answer_free(a);
    ask_about(&t, 0);
    o = options();
    a = complete(s.is, &store_anna, &t, &o); /* the run had gone on behind the text: it is not used */
    assert_int_equal(resident_facts(a), 0);
    assert_int_equal(a->n_placed_kept, 1);
    inferscale_answer_free(a);
    inferscale_answer_free(whole);
    store_end(&s);
}

static void logprobs_are_of_the_raw_distribution(void **state)
{
    inferscale_complete_options o = options();
    inferscale_answer *a = NULL;
    store s;

    (void)state;
    store_begin(&s, "");
    o.prompt = "Once upon a time";
    o.logprobs = 1;
    o.top_logprobs = 20;
    o.ask.temperature = 1.7;
    o.ask.seed = 5;
    o.presence_penalty = 1;
    o.ask.max_tokens = 20;
    OK(inferscale_complete(s.is, NULL, NULL, 0, &o, &a));
    assert_int_equal(a->n_tokens, a->tokens_answer);
    is_tokens ids = { 0 };
    assert_int_equal(is_profile_raw(s.is->engine, o.prompt, &ids), INFERSCALE_OK);
    is_part part = { .role = IS_ROLE_QUESTION, .source = IS_SRC_COMPUTED, .tokens = ids.ids, .n_tokens = ids.n };
    is_plan plan = { 1, &part, ids.n };
    is_run *run = NULL;
    assert_int_equal(is_engine_start(s.is->engine, &plan, NULL, &run, NULL), INFERSCALE_OK);
    for (size_t i = 0; i < a->n_tokens; i++) {
        const uint32_t n = is_engine_describe(s.is->engine)->n_vocab;
        const float *l = is_engine_logits(s.is->engine, run);
        const inferscale_token *t = &a->tokens[i];
        long double sum = 0;
        double mass = 0;

        for (uint32_t k = 0; k < n; k++) sum += expl((long double)l[k]);
        assert_true(fabs(t->logprob - (double)((long double)l[t->id] - logl(sum))) < 1e-6);
        assert_int_equal(t->n_top, 20);
        for (size_t k = 0; k < t->n_top; k++) {
            uint32_t better = 0;

            for (uint32_t j = 0; j < n; j++) better += l[j] > l[t->top[k].id];
            assert_true(better <= k && fabs(t->top[k].logprob - (double)((long double)l[t->top[k].id] - logl(sum))) < 1e-6);
            mass += exp(t->top[k].logprob);
            for (size_t j = 0; j < k; j++) assert_int_not_equal(t->top[j].id, t->top[k].id);
        }
        assert_true(mass > 0 && mass <= 1 + 1e-9);
        assert_int_equal(is_engine_feed(s.is->engine, run, t->id), INFERSCALE_OK);
    }
    is_engine_finish(s.is->engine, run);
    is_tokens_free(&ids);
    inferscale_answer_free(a);
    store_end(&s);
}

/* ---- What is asked ------------------------------------------------------------------------------------------------------- */

static void named_facts_are_used_in_their_order(void **state)
{
    inferscale_complete_options o = options();
    int64_t ids[4];
    inferscale_answer *a = NULL;
    inferscale_event e;
    inferscale_fact f = { .text = "Ben's own.", .event_time = 1714521600 };
    talk t = { 0 };
    store s;

    (void)state;
    store_begin(&s, "");
    ids[0] = s.ids[7], ids[1] = s.ids[3], ids[2] = s.ids[9];
    o.ids = ids;
    o.n_ids = 3;
    ask_about(&t, 0);
    a = complete(s.is, &store_anna, &t, &o);
    assert_int_equal(a->n_facts, 3); /* not k */
    assert_int_equal(a->facts[2].id, ids[0]); /* the best stands last */
    assert_int_equal(a->facts[1].id, ids[1]);
    assert_int_equal(a->facts[0].id, ids[2]);
    say(&t, "assistant", a->text);
    inferscale_answer_free(a);
    ask_about(&t, 1);
    ids[2] = s.ids[4];
    a = complete(s.is, &store_anna, &t, &o); /* two of them stand there already */
    assert_int_equal(a->n_facts, 4);
    assert_int_equal(a->facts[3].id, ids[2]);
    inferscale_answer_free(a);
    OK(inferscale_remember(s.is, &store_ben, &f, 1, &e));
    ids[1] = e.id;
    FAILS(E_NOTFOUND, inferscale_complete(s.is, &store_anna, t.m, t.n, &o, &a));
    ids[1] = ids[0];
    FAILS(E_INVALID, inferscale_complete(s.is, &store_anna, t.m, t.n, &o, &a));
    ids[1] = s.ids[3];
    forget_topic(&s, 3);
    FAILS(E_NOTFOUND, inferscale_complete(s.is, &store_anna, t.m, t.n, &o, &a));
    store_end(&s);
}

static void what_is_not_a_conversation_is_refused(void **state)
{
    static const inferscale_message wrong[][3] = {
        { { "assistant", "Hi." }, { "user", "Hi." } },
        { { "user", "Hi." }, { "assistant", "Hi." } },
        { { "user", "Hi." }, { "user", "Hi." }, { "user", "Hi." } },
        { { "user", "Hi." }, { "system", "Hi." }, { "user", "Hi." } },
        { { "system", "Hi." }, { "tool", "Hi." }, { "user", "Hi." } },
        { { "user", "Hi." }, { "assistant", "" }, { "user", "Hi." } },
        { { "user", "Hi." }, { "assistant", "\xff" }, { "user", "Hi." } },
        { { "user", NULL } },
        { { NULL, "Hi." } },
        { { "system", "Hi." } },
    };
    static const size_t n[] = { 2, 2, 3, 3, 3, 3, 3, 1, 1, 1 };
    static const char *const long_stop[] = { "" };
    inferscale_complete_options o = options();
    const inferscale_message fine = { "user", "Hi." };
    inferscale_answer *a = NULL;
    store s;

    (void)state;
    store_begin(&s, "");
    for (size_t i = 0; i < sizeof n / sizeof *n; i++) {
        FAILS(E_INVALID, inferscale_complete(s.is, &store_anna, wrong[i], n[i], NULL, &a));
        assert_true(strchr(inferscale_error(), ';') != NULL); /* the next step is named */
    }
    FAILS(E_INVALID, inferscale_complete(s.is, &store_anna, NULL, 0, NULL, &a));
    FAILS(E_INVALID, inferscale_complete(s.is, &store_anna, &fine, 1, NULL, NULL));
    FAILS(E_INVALID, inferscale_complete(NULL, &store_anna, &fine, 1, NULL, &a));
    o.stop = long_stop;
    o.n_stop = 1;
    FAILS(E_INVALID, inferscale_complete(s.is, &store_anna, &fine, 1, &o, &a));
    o = options();
    o.top_logprobs = 21;
    FAILS(E_INVALID, inferscale_complete(s.is, &store_anna, &fine, 1, &o, &a));
    o = options();
    o.frequency_penalty = NAN;
    FAILS(E_INVALID, inferscale_complete(s.is, &store_anna, &fine, 1, &o, &a));
    o = options();
    o.grammar = "root ::= \"x\"";
    FAILS(E_UNSUPPORTED, inferscale_complete(s.is, &store_anna, &fine, 1, &o, &a)); /* the mock has none */
    assert_null(a);
    store_end(&s);
}

/* ---- At once ------------------------------------------------------------------------------------------------------------- */

enum { THREADS = 8 };

typedef struct speaker { inferscale *is; int n; char answers[4][400]; talk t; } speaker;

static void *speak(void *arg)
{
    speaker *p = arg;
    inferscale_complete_options o = options();
    char hello[60];

    snprintf(hello, sizeof hello, "You are assistant %d.", p->n);
    say(&p->t, "system", hello);
    tell(p->is, p->n % 2 ? &store_anna : &store_ben, &p->t, p->n, 4, &o, p->answers);
    return NULL;
}

static void eight_at_once_say_what_each_says_alone(void **state)
{
    static speaker alone[THREADS], together[THREADS];
    pthread_t threads[THREADS];
    store s, other;

    (void)state;
    store_begin(&s, "");
    store_begin(&other, "");
    for (int i = 0; i < THREADS; i++) {
        alone[i] = (speaker){ .is = other.is, .n = i };
        together[i] = (speaker){ .is = s.is, .n = i };
        speak(&alone[i]);
    }
    for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_create(&threads[i], NULL, speak, &together[i]), 0);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < THREADS; i++)
        for (int k = 0; k < 4; k++) assert_string_equal(together[i].answers[k], alone[i].answers[k]);
    store_end(&s);
    store_end(&other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_prompt_is_the_chats),
        cmocka_unit_test(text_and_kv_see_the_same_tokens_whatever_came_between),
        cmocka_unit_test(another_system_text_is_a_header_of_its_own),
        cmocka_unit_test(in_front_stands_all_memory_behind_the_header),
        cmocka_unit_test(without_memory_there_is_none),
        cmocka_unit_test(forks_and_edits_keep_what_they_share),
        cmocka_unit_test(what_others_placed_is_not_shown),
        cmocka_unit_test(evicted_conversations_go_on_all_the_same),
        cmocka_unit_test(nothing_that_was_ended_is_computed_on),
        cmocka_unit_test(what_has_expired_stands_nowhere),
        cmocka_unit_test(forgetting_cuts_an_answer_and_keeps_no_run),
        cmocka_unit_test(a_cancelled_or_refused_turn_loses_nothing),
        cmocka_unit_test(a_full_context_is_refused_or_the_oldest_go),
        cmocka_unit_test(stop_strings_do_not_depend_on_the_pieces),
        cmocka_unit_test(answers_end_before_a_stop_string),
        cmocka_unit_test(logprobs_are_of_the_raw_distribution),
        cmocka_unit_test(named_facts_are_used_in_their_order),
        cmocka_unit_test(what_is_not_a_conversation_is_refused),
        cmocka_unit_test(eight_at_once_say_what_each_says_alone),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
