/* What must hold of conversations that are sent whole each time. The mock's answer names the last fact of the prompt and a hash of all
 * its token ids, so that equal answers mean equal prompts, token by token, however they came into the engine:
 *   - the prompt is the one a chat has, and the one computed as text, be it told in one go, after a restart, after an eviction;
 *   - forks and edits keep the memory of what they share with the conversation, and only that;
 *   - nothing that was forgotten is computed on, wherever the conversation stood; nothing of one owner goes on for another;
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
#include "support/complete_kit.h"
#include "support/scratch.h"
#include "support/store_kit.h"

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
        cmocka_unit_test(eight_at_once_say_what_each_says_alone),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
