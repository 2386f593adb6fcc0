/* complete_kit.c - see complete_kit.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "support/complete_kit.h"
#include "support/scratch.h"
#include "support/store_kit.h"

const char *const topics[FACTS] = { "bees", "cello", "peanuts", "van", "chess", "garden", "opera", "sailing", "violets", "hockey",
                                           "kites", "marble" };

void remember_topics(inferscale *is, const inferscale_scope *who, int64_t *ids)
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

void store_begin(store *s, const char *options)
{
    s->home = scratch_make();
    snprintf(s->model, sizeof s->model, "mock:%s", options);
    s->is = store_open(scratch_path(s->home, "store"), s->model, NULL, false);
    remember_topics(s->is, &store_anna, s->ids);
    remember_topics(s->is, &store_ben, NULL);
    OK(inferscale_encode(s->is, &store_anna, NULL));
    OK(inferscale_encode(s->is, &store_ben, NULL));
}

void store_restart(store *s)
{
    inferscale_close(s->is);
    s->is = store_open(scratch_path(s->home, "store"), s->model, NULL, false);
}

void store_end(store *s)
{
    inferscale_close(s->is);
    scratch_remove(s->home);
}

void say(talk *t, const char *role, const char *text)
{
    snprintf(t->text[t->n], sizeof t->text[0], "%s", text);
    t->m[t->n] = (inferscale_message){ role, t->text[t->n] };
    t->n++;
}

void ask_about(talk *t, int topic)
{
    char text[100];

    snprintf(text, sizeof text, "What about %s?", topics[topic]);
    say(t, "user", text);
}

inferscale_complete_options options(void)
{
    inferscale_complete_options o = INFERSCALE_COMPLETE_OPTIONS_INIT;

    o.ask.k = 2;
    o.ask.max_tokens = 80;
    return o;
}

inferscale_answer *complete(inferscale *is, const inferscale_scope *who, const talk *t, const inferscale_complete_options *o)
{
    inferscale_answer *a = NULL;

    OK(inferscale_complete(is, who, t->m, t->n, o, &a));
    return a;
}

/* Tells a whole conversation of n turns, each answer as it came. answers[n] (may be NULL) are copies. */
void tell(inferscale *is, const inferscale_scope *who, talk *t, int first, int n, const inferscale_complete_options *o,
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

bool uses(const inferscale_answer *a, int64_t id)
{
    for (size_t i = 0; i < a->n_facts; i++)
        if (a->facts[i].id == id) return true;
    return false;
}

uint32_t resident_facts(const inferscale_answer *a)
{
    uint32_t n = 0;

    for (size_t i = 0; i < a->n_facts; i++) n += a->facts[i].source == INFERSCALE_SOURCE_RESIDENT;
    return n;
}

void forget_topic(store *s, int topic)
{
    size_t n = 0;

    OK(inferscale_forget(s->is, &store_anna, &s->ids[topic], 1, &n));
    assert_int_equal(n, 1);
}
