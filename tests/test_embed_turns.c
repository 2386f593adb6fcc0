/* What must hold of turns on an embedder that does one thing at a time (embed/turns.h): a question waits behind at most one background
 * text, background work goes on however many questions there are and loses no text that is done, and nobody waits who was cancelled.
 * The mock embedder lets as many texts through as a file has bytes, so the order is the test's and not the clock's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "embed/embed.h"
#include "support/live.h"
#include "support/scratch.h"

enum { DIM = 64, TEXTS = 64, PATIENCE_MS = 120000 /* a watchdog: only a hang takes so long */ };

typedef struct world {
    char *dir, log[300], gate[300];
    is_embedder *e;
} world;

typedef struct caller {
    world *w;
    pthread_t thread;
    char words[TEXTS][32];
    const char *texts[TEXTS];
    size_t n;
    bool background;
    volatile int cancel;
    float vectors[TEXTS * DIM];
    is_status status;
    int done;
} caller;

static void sleep_ms(void)
{
    const struct timespec ms = { 0, 1000000 };

    nanosleep(&ms, NULL);
}

static int start(void **state)
{
    world *w = is_calloc(1, sizeof *w);
    char spec[700];

    w->dir = scratch_make();
    snprintf(w->log, sizeof w->log, "%s/log", w->dir);
    snprintf(w->gate, sizeof w->gate, "%s/gate", w->dir);
    snprintf(spec, sizeof spec, "mock:embed-log=%s,embed-gate=%s", w->log, w->gate);
    OK(is_embedder_open(live_plugins(), "mock", spec, NULL, 1, &w->e));
    *state = w;
    return 0;
}

static int stop(void **state)
{
    world *w = *state;

    is_embedder_close(w->e);
    scratch_remove(w->dir);
    is_free(w);
    return 0;
}

/* So many more texts may be computed. */
static void let(const world *w, size_t n)
{
    FILE *f = fopen(w->gate, "a");

    assert_non_null(f);
    while (n--) fputc('.', f);
    fclose(f);
}

/* The lines of the log: texts that were begun, in order. A text that was begun twice stands there twice. */
static size_t read_log(const world *w, char lines[][48], size_t most)
{
    FILE *f = fopen(w->log, "r");
    size_t n = 0;

    while (f && n < most && fgets(lines[n], 48, f)) {
        lines[n][strcspn(lines[n], "\n")] = 0;
        n++;
    }
    if (f) fclose(f);
    return n;
}

static size_t begun(const world *w)
{
    static char lines[1024][48];

    return read_log(w, lines, 1024);
}

static void until_begun(const world *w, size_t n)
{
    for (int i = 0; i < PATIENCE_MS && begun(w) < n; i++) sleep_ms();
    assert_true(begun(w) >= n);
}

static void until_line(const world *w, uint32_t questions, uint32_t background)
{
    uint32_t q = UINT32_MAX, b = 0;

    for (int i = 0; i < PATIENCE_MS && (q != questions || b < background); i++) {
        is_embedder_line(w->e, &q, &b);
        sleep_ms();
    }
    assert_int_equal(q, questions);
    assert_true(b >= background);
}

static void until_questions(const world *w, uint32_t n)
{
    until_line(w, n, 0);
}

static void *call(void *ctx)
{
    caller *c = ctx;

    if (c->background) c->status = is_embedder_embed_background(c->w->e, c->texts, c->n, c->vectors, &c->cancel);
    else c->status = is_embedder_embed_until(c->w->e, c->texts, c->n, c->vectors, &c->cancel);
    __atomic_store_n(&c->done, 1, __ATOMIC_RELEASE);
    return NULL;
}

static caller *begin(world *w, const char *name, size_t n, bool background)
{
    caller *c = is_calloc(1, sizeof *c);

    c->w = w;
    c->n = n;
    c->background = background;
    for (size_t i = 0; i < n; i++) {
        snprintf(c->words[i], sizeof c->words[i], "%s %zu", name, i);
        c->texts[i] = c->words[i];
    }
    assert_int_equal(pthread_create(&c->thread, NULL, call, c), 0);
    return c;
}

/* Joins, and compares what came with what the embedder gives for each text alone. */
static void end_as(caller *c, is_status want)
{
    float v[DIM];
    is_embedder *alone = NULL;

    assert_int_equal(pthread_join(c->thread, NULL), 0);
    assert_int_equal(c->status, want);
    OK(is_embedder_open(live_plugins(), "mock", "mock", NULL, 1, &alone));
    for (size_t i = 0; want == INFERSCALE_OK && i < c->n; i++) {
        OK(is_embedder_embed(alone, &c->texts[i], 1, v));
        assert_memory_equal(v, c->vectors + i * DIM, sizeof v);
    }
    is_embedder_close(alone);
    is_free(c);
}

static size_t place(char lines[][48], size_t n, const char *line)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(lines[i], line) == 0) return i;
    return n;
}

/* ---- What must hold ------------------------------------------------------------------------------------------------------ */

static void a_question_goes_next_after_the_text_in_progress(void **state)
{
    world *w = *state;
    char lines[8][48];
    caller *b = begin(w, "b", 4, true), *q;

    until_begun(w, 1);                       /* the first text is computed alone: a question does not end it */
    q = begin(w, "q", 1, false);
    until_questions(w, 1);
    let(w, 5);
    end_as(q, INFERSCALE_OK);
    end_as(b, INFERSCALE_OK);
    assert_int_equal(read_log(w, lines, 8), 5); /* nothing twice */
    assert_string_equal(lines[0], "b 0");
    assert_string_equal(lines[1], "q 0");
}

/* A turn of several texts ends at once when a question comes, and the texts of it that were done are not computed again. */
static void a_long_turn_gives_way_and_loses_nothing_that_is_done(void **state)
{
    world *w = *state;
    static char lines[128][48];
    caller *b = begin(w, "b", 60, true), *q;
    size_t n, at, twice = 0;

    let(w, 30);                              /* long enough a calm for turns of many texts */
    until_begun(w, 31);
    q = begin(w, "q", 1, false);
    until_questions(w, 1);
    let(w, 100);
    end_as(q, INFERSCALE_OK);
    end_as(b, INFERSCALE_OK);
    n = read_log(w, lines, 128);
    at = place(lines, n, "q 0");
    for (size_t i = 0; i < n; i++)
        if (place(lines, i, lines[i]) < i) twice++;
    assert_true(at <= 31 + 1);               /* behind the text that was in progress; one more if its turn was ending by itself */
    assert_true(twice <= 1);                 /* only the text in progress */
    assert_int_equal(n, 61 + twice);
}

/* However many questions wait, background work goes on: and each of them waits behind one text at most. */
static void neither_side_starves(void **state)
{
    enum { CLIENTS = 4, EACH = 8 };
    world *w = *state;
    static char lines[128][48];
    caller *b = begin(w, "b", 6, true), *q[CLIENTS];
    size_t n, ahead = 0;

    until_begun(w, 1);
    for (int i = 0; i < CLIENTS; i++) {
        char name[8];

        snprintf(name, sizeof name, "q%d", i);
        q[i] = begin(w, name, EACH * 8, false); /* a question of many texts comes back to the line for every eight */
        until_questions(w, (uint32_t)i + 1);
    }
    let(w, 1);
    until_line(w, CLIENTS, 1);               /* the background text that was in progress is done, the next one waits */
    let(w, 8 * CLIENTS);                     /* each of the four has had a turn */
    until_begun(w, 2 + 8 * CLIENTS);
    n = read_log(w, lines, 128);
    for (size_t i = 1; i < n; i++) ahead += lines[i][0] == 'b';
    assert_true(ahead >= 1);                 /* the background text came between them */
    assert_true(place(lines, n, "q0 0") == 1);
    let(w, 1000);
    for (int i = 0; i < CLIENTS; i++) end_as(q[i], INFERSCALE_OK);
    end_as(b, INFERSCALE_OK);
}

static void a_cancelled_caller_waits_for_nothing(void **state)
{
    world *w = *state;
    caller *b = begin(w, "b", 3, true), *q, *other;

    until_begun(w, 1);
    q = begin(w, "q", 1, false);             /* waits for its turn */
    until_questions(w, 1);
    other = begin(w, "other", 2, true);
    __atomic_store_n(&q->cancel, 1, __ATOMIC_RELEASE);
    end_as(q, INFERSCALE_E_CANCELLED);
    __atomic_store_n(&other->cancel, 1, __ATOMIC_RELEASE);
    end_as(other, INFERSCALE_E_CANCELLED);
    until_questions(w, 0);
    let(w, 1);
    until_begun(w, 2);
    __atomic_store_n(&b->cancel, 1, __ATOMIC_RELEASE); /* computes */
    end_as(b, INFERSCALE_E_CANCELLED);
    q = begin(w, "again", 1, false);
    let(w, 10);
    end_as(q, INFERSCALE_OK);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, start, stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_question_goes_next_after_the_text_in_progress),
        TEST(a_long_turn_gives_way_and_loses_nothing_that_is_done),
        TEST(neither_side_starves),
        TEST(a_cancelled_caller_waits_for_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
