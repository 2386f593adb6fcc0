/* A run of `eval accuracy` over the mock engine, whose logits are exact: arms over equal tokens and
 * equal rows are equal; a run that was interrupted, torn or killed goes on to the same results;
 * planted differences are found. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/mem.h"
#include "eval/accuracy.h"
#include "eval/synth_memory.h"
#include "support/kit.h"
#include "support/scratch.h"

static char plugins[1024];
static char *folder;
static quiz invented;

/* The first questions of an invented memory, with the facts that they need: few files. */
static is_status small_store(const quiz *q, uint32_t index, quiz_store **out)
{
    enum { QUESTIONS = 7, FACTS = 64 };
    synth_memory m;
    quiz_fact facts[FACTS];
    size_t n = 0;

    IS_TRY(synth_memory_make(q->seed, index, &m));
    for (size_t i = 0; i < QUESTIONS; i++) {
        quiz_question *ask = &m.store->questions[i];

        for (size_t k = 0; k < ask->n_evidence; k++) {
            facts[n] = m.store->facts[ask->evidence[k]];
            facts[n].text = is_strdup(facts[n].text);
            ask->evidence[k] = (uint32_t)n++;
        }
    }
    for (size_t i = 0; i < m.store->n_facts; i++) is_free(m.store->facts[i].text);
    memcpy(m.store->facts, facts, n * sizeof *facts);
    m.store->n_facts = n;
    for (size_t i = QUESTIONS; i < m.store->n_questions; i++) {
        quiz_question *gone = &m.store->questions[i];

        is_free(gone->text);
        for (size_t k = 0; k < QUIZ_ANSWERS; k++) is_free(gone->answers[k]);
        for (size_t k = 0; k < QUIZ_CHOICES; k++) is_free(gone->choices[k]);
        is_free(gone->evidence);
    }
    m.store->n_questions = QUESTIONS;
    *out = m.store;
    m.store = NULL;
    synth_memory_free(&m);
    return INFERSCALE_OK;
}

static int set_up(void **state)
{
    ssize_t n = readlink("/proc/self/exe", plugins, sizeof plugins - 1);

    if (n < 0) return -1;
    plugins[n] = 0;
    *strrchr(plugins, '/') = 0;
    *strrchr(plugins, '/') = 0;
    folder = scratch_make();
    KIT_OK(quiz_synthetic(3, &invented));
    invented.make = small_store;
    return 0;
}

static int tear_down(void **state)
{
    scratch_remove(folder);
    return 0;
}

static lab *open_lab(const char *model)
{
    inferscale_options o = INFERSCALE_OPTIONS_INIT;
    lab *l = NULL;

    o.engine = "mock";
    o.model = model;
    o.plugin_dir = plugins;
    o.n_threads = 1;
    KIT_OK(lab_open(&o, "tester", &l));
    return l;
}

/* Two policies without vectors, words alone. */
static accuracy_options small_run(size_t n_questions)
{
    accuracy_options o = { .quiz = &invented,
                           .n_policies = 2,
                           .k = 4,
                           .n_questions = n_questions,
                           .n_tokens = 6,
                           .method = INFERSCALE_LEXICAL };

    KIT_OK(fidelity_variant_parse("header", &o.policies[0]));
    KIT_OK(fidelity_variant_parse("F1:page:4+1/2", &o.policies[1]));
    return o;
}

static accuracy *run(const accuracy_options *o)
{
    lab *l = open_lab("mock");
    accuracy *a = NULL;

    KIT_OK(accuracy_run(l, o, &a));
    lab_close(l);
    return a;
}

static size_t arm_of(const accuracy *a, const char *name)
{
    for (size_t i = 0; i < a->n_arms; i++)
        if (strcmp(a->arms[i].name, name) == 0) return i;
    fail_msg("no arm %s", name);
    return 0;
}

static bool same_mark(const accuracy_mark *a, const accuracy_mark *b)
{
    return a->asked == b->asked && a->right == b->right && a->f1 == b->f1 && a->nll == b->nll &&
           a->choice == b->choice && a->judged == b->judged;
}

/* ---- Arms ------------------------------------------------------------------------------------ */

static void every_question_in_every_arm(void **state)
{
    accuracy_options o = small_run(7);
    accuracy *a = run(&o);
    const size_t text = arm_of(a, "text"), none = arm_of(a, "none"),
                 header = arm_of(a, "injected header");
    size_t moved = 0, memory = 0;

    assert_int_equal(a->n, 7);
    assert_int_equal(a->n_arms, 7);
    assert_int_equal(a->text, text);
    assert_true(a->complete);
    for (size_t i = 0; i < a->n; i++) {
        const accuracy_question *q = &a->questions[i];

        assert_int_equal(q->type, i % 6);
        assert_true(q->recall >= 0 && q->recall <= 1);
        for (size_t k = 0; k < a->n_arms; k++) {
            assert_true(q->marks[k].asked && isfinite(q->marks[k].nll));
            assert_true(q->marks[k].choice == 0 || q->marks[k].choice == 1);
        }
        /* `header` leaves the order alone, so its twin is the text. */
        assert_true(same_mark(&q->marks[text], &q->marks[arm_of(a, "twin header")]));
        moved += q->marks[header].nll != q->marks[text].nll;
        memory += q->marks[none].nll != q->marks[text].nll;
    }
    assert_true(moved > 0 && memory == 7); /* rows from behind the header are not the joint ones */
    accuracy_free(a);
}

/* The prompt of a usual stack: an arm of its own, behind the others, compared with text. */
static void a_usual_stack_is_an_arm(void **state)
{
    accuracy_options o = small_run(3);
    accuracy *without = run(&o), *a;
    accuracy_row *rows = is_calloc(ACCURACY_ROWS, sizeof *rows);
    size_t n = 0, plain, other = 0;

    o.plain = true;
    a = run(&o);
    plain = arm_of(a, "plain");
    assert_int_equal(a->n_arms, without->n_arms + 1);
    assert_int_equal(plain, without->n_arms);
    for (size_t i = 0; i < a->n; i++) {
        const accuracy_mark *m = a->questions[i].marks;

        assert_true(m[plain].asked && isfinite(m[plain].nll));
        other += m[plain].nll != m[a->text].nll && m[plain].nll != m[arm_of(a, "none")].nll;
        for (size_t k = 0; k < without->n_arms; k++)
            assert_true(same_mark(&m[k], &without->questions[i].marks[k]));
    }
    assert_int_equal(other, 3); /* it is another prompt, and has facts in it */
    assert_non_null(rows);
    accuracy_rows(a, &o, rows, &n);
    for (size_t i = 0; i < n; i++)
        if (rows[i].arm->kind == ARM_PLAIN) assert_true(rows[i].has_text && !rows[i].has_twin);
    is_free(rows);
    accuracy_free(a);
    accuracy_free(without);
}

/* With the best fact first another prompt is asked, and one order is every arm's: exact rows move no
 * fact, so each twin is the text. */
static void the_best_fact_stands_first(void **state)
{
    accuracy_options o = small_run(6);
    accuracy *last = run(&o), *a;
    size_t other = 0;

    o.best_first = true;
    a = run(&o);
    for (size_t i = 0; i < a->n; i++) {
        const accuracy_mark *m = a->questions[i].marks, *n = last->questions[i].marks;

        assert_true(same_mark(&m[arm_of(a, "none")], &n[arm_of(last, "none")]));
        assert_true(same_mark(&m[arm_of(a, "twin header")], &m[a->text]));
        assert_true(same_mark(&m[arm_of(a, "twin F1:page:4+1/2")], &m[a->text]));
        other += m[a->text].nll != n[last->text].nll;
    }
    assert_true(other > a->n / 2); /* one fact alone has one order */
    accuracy_free(a);
    accuracy_free(last);
}

/* One fact right behind the header has the rows that computing it there gives. */
static void one_exact_fact_is_the_text(void **state)
{
    accuracy_options o = small_run(6);
    accuracy *a;

    o.k = 1;
    a = run(&o);
    for (size_t i = 0; i < a->n; i++) {
        const accuracy_mark *m = a->questions[i].marks;

        assert_true(same_mark(&m[arm_of(a, "injected header")], &m[a->text]));
        assert_true(same_mark(&m[arm_of(a, "injected F1:page:4+1/2")], &m[a->text]));
    }
    accuracy_free(a);
}

/* ---- Results that stay ----------------------------------------------------------------------- */

static void check_same(const accuracy *a, const accuracy *b)
{
    assert_int_equal(a->n, b->n);
    for (size_t i = 0; i < a->n; i++) {
        assert_int_equal(a->questions[i].type, b->questions[i].type);
        for (size_t k = 0; k < a->n_arms; k++) {
            const accuracy_mark *x = &a->questions[i].marks[k], *y = &b->questions[i].marks[k];

            if (x->right != y->right || x->choice != y->choice || fabs(x->nll - y->nll) > 1e-4)
                fail_msg("question %zu, %s: NLL %g and %g", i, a->arms[k].name, x->nll, y->nll);
        }
    }
}

static size_t lines_of(const char *path)
{
    uint8_t *text = NULL;
    size_t n = 0, lines = 0;

    KIT_OK(is_file_read_all(is_fs_posix(), path, 1 << 24, &text, &n));
    for (size_t i = 0; i < n; i++) lines += text[i] == '\n';
    is_free(text);
    return lines;
}

static void cut(const char *path, off_t off_the_end)
{
    struct stat st;

    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(truncate(path, st.st_size - off_the_end), 0);
}

typedef struct stopper {
    size_t at;
} stopper;
static int stop_at(void *ctx, uint64_t done, uint64_t total, const char *what)
{
    assert_true(done <= total && what[0] != 0);
    return done >= ((stopper *)ctx)->at;
}

/* In pieces, with a torn line between them, over the border of two memories. */
static void a_run_in_pieces_is_a_run(void **state)
{
    accuracy_options whole = small_run(10), pieces = whole;
    accuracy *a = run(&whole), *b = NULL;
    const char *path = scratch_path(folder, "pieces.jsonl");
    stopper s = { .at = 3 };
    lab *l = open_lab("mock");

    pieces.results = path;
    pieces.on_progress = stop_at;
    pieces.progress_ctx = &s;
    KIT_FAILS(INFERSCALE_E_CANCELLED, accuracy_run(l, &pieces, &b));
    assert_int_equal(b->n, 3);
    assert_false(b->complete);
    accuracy_free(b);
    lab_close(l);
    assert_int_equal(lines_of(path), 4);
    cut(path, 5); /* the third is asked again */
    pieces.on_progress = NULL;
    pieces.n_questions = 8;
    b = run(&pieces);
    assert_int_equal(b->n_before, 2);
    accuracy_free(b);
    pieces.n_questions = 10;
    b = run(&pieces);
    assert_int_equal(b->n_before, 8);
    check_same(a, b);
    accuracy_free(b);
    b = run(&pieces); /* nothing is left */
    assert_int_equal(b->n_before, 10);
    assert_true(b->complete);
    check_same(a, b);
    assert_int_equal(lines_of(path), 11);
    accuracy_free(b);
    accuracy_free(a);
}

/* Killed while it works, again and again: what is in the file is whole, and it comes to its end. */
static void killed_again_and_again(void **state)
{
    accuracy_options o = small_run(12);
    const char *path = scratch_path(folder, "killed.jsonl");
    accuracy *a, *b;
    size_t killed = 0;

    o.results = path;
    for (useconds_t us = 20000; us < 400000; us += 60000) {
        int status;
        pid_t child = fork();

        if (child == 0) {
            accuracy *c = NULL;
            lab *l;

            setenv("TMPDIR", folder, 1); /* what it leaves behind goes with it */
            l = open_lab("mock:slow=2");

            _exit(accuracy_run(l, &o, &c) == INFERSCALE_OK ? 0 : 1);
        }
        usleep(us);
        kill(child, SIGKILL);
        assert_int_equal(waitpid(child, &status, 0), child);
        killed += WIFSIGNALED(status);
    }
    assert_true(killed > 0);
    b = run(&o);
    o.results = NULL;
    a = run(&o);
    check_same(a, b);
    accuracy_free(a);
    accuracy_free(b);
}

static void refuse(const accuracy_options *o, is_status want, const char *part)
{
    lab *l = open_lab("mock");
    accuracy *a = NULL;

    KIT_FAILS(want, accuracy_run(l, o, &a));
    if (!strstr(is_error(), part)) fail_msg("\"%s\" is not in: %s", part, is_error());
    accuracy_free(a);
    lab_close(l);
}

static void write_text(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void another_configuration_is_refused(void **state)
{
    accuracy_options o = small_run(2), other;
    const char *path = scratch_path(folder, "other.jsonl");
    quiz next;
    int fd;

    o.results = path;
    accuracy_free(run(&o));
    other = o;
    other.k = 5;
    refuse(&other, INFERSCALE_E_INVALID, "\"k\" is 4 there and 5 here");
    other = o;
    other.n_policies = 1;
    refuse(&other, INFERSCALE_E_INVALID, "\"policies\" is");
    other = o;
    other.no_twins = true;
    refuse(&other, INFERSCALE_E_INVALID, "\"twins\" is true there and false here");
    other = o;
    other.best_first = true;
    refuse(&other, INFERSCALE_E_INVALID, "\"best_first\" is ");
    KIT_OK(quiz_synthetic(4, &next));
    other = o;
    other.quiz = &next;
    refuse(&other, INFERSCALE_E_INVALID, "there and");
    fd = open(path, O_WRONLY | O_APPEND);
    assert_true(write(fd, "{\"index\":7}\n", 12) == 12);
    close(fd);
    refuse(&o, INFERSCALE_E_PARSE, "line 4");
    write_text(path, "my notes, without a line end");
    refuse(&o, INFERSCALE_E_PARSE, "no file of results");
    assert_int_equal(lines_of(path), 0);
    cut(path, 28); /* and not a byte of them was gone */
    accuracy_free(run(&o));
    o.results = scratch_path(folder, "nowhere/results.jsonl");
    refuse(&o, INFERSCALE_E_NOTFOUND, "cannot open");
}

/* ---- What is reported ------------------------------------------------------------------------ */

/* Marks as an engine might give them: text is right in `text` of a hundred, no memory in 10, and
 * the injected arms lose and win so many of a thousand. */
static accuracy *planted(const accuracy_options *o, size_t n, unsigned text, unsigned lost,
                         unsigned won, uint64_t seed)
{
    accuracy *a = is_calloc(1, sizeof *a);
    rng r = rng_stream(seed, 1, 1);

    static const accuracy_kind kinds[] = { ARM_NONE, ARM_TEXT, ARM_INJECTED };
    for (size_t i = 0; i < 3; i++) {
        a->arms[i] =
            (accuracy_arm){ .kind = kinds[i], .policy = i == 2 ? o->policies[0].name : "" };
        snprintf(a->arms[i].name, sizeof a->arms[i].name, "%zu", i);
    }
    a->n_arms = 3;
    a->text = 1;
    a->n = n;
    a->complete = true;
    a->questions = is_calloc(n, sizeof *a->questions);
    for (size_t i = 0; i < n; i++) {
        accuracy_mark *m = a->questions[i].marks;
        const uint64_t moved = rng_below(&r, 1000);

        a->questions[i].type = i % 6;
        for (size_t k = 0; k < 3; k++)
            m[k] = (accuracy_mark){ .asked = true, .choice = -1, .judged = -1, .nll = 1 };
        m[0].right = rng_below(&r, 100) < 10;
        m[1].right = i % 6 != 5 && rng_below(&r, 100) < text; /* nobody can count */
        m[2].right = m[1].right;
        if (moved < lost) m[1].right = i % 6 != 5, m[2].right = false;
        else if (moved < lost + won) m[1].right = false, m[2].right = true;
    }
    return a;
}

static const accuracy_row *row_of(const accuracy_row *rows, size_t n, const char *type, size_t arm,
                                  const accuracy *a)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(rows[i].type, type) == 0 && rows[i].arm == &a->arms[arm]) return &rows[i];
    fail_msg("no row %s", type);
    return NULL;
}

static void planted_differences(void **state)
{
    static const struct {
        unsigned lost, won;
        paired_verdict want;
    } known[] = { { 80, 20, PAIRED_WORSE }, { 20, 20, PAIRED_EQUAL }, { 20, 60, PAIRED_NO_WORSE } };
    accuracy_options o = small_run(8000);
    accuracy_row *rows = is_calloc(ACCURACY_ROWS, sizeof *rows);

    o.rule = &paired_sequential;
    for (size_t i = 0; i < 3; i++) {
        accuracy *a = planted(&o, 8000, 60, known[i].lost, known[i].won, 5 + i);
        const accuracy_row *all, *count;
        size_t n = 0;

        assert_true(accuracy_decided(a, &o));
        accuracy_rows(a, &o, rows, &n);
        all = row_of(rows, n, "testable", 2, a);
        count = row_of(rows, n, "count", 2, a);
        if (all->text.verdict != known[i].want)
            fail_msg("lost %u, won %u: verdict %d", known[i].lost, known[i].won,
                     (int)all->text.verdict);
        assert_true(all->text.decided_at >= 500 && all->text.decided_at < 8000);
        assert_true(all->n < a->n && all->n >= a->n * 4 / 6);
        assert_false(count->testable);
        assert_int_equal(count->text.verdict, PAIRED_OPEN);
        assert_true(row_of(rows, n, "single", 2, a)->testable);
        accuracy_free(a);
    }
    is_free(rows);
}

/* The verdict is of the first look that gives one; what comes behind does not change it, and
 * between looks nothing is decided. */
static void decisions_are_made_at_looks(void **state)
{
    accuracy_options o = small_run(8000);
    accuracy_row *rows = is_calloc(ACCURACY_ROWS, sizeof *rows);
    accuracy *a = planted(&o, 8000, 60, 120, 10, 9);
    size_t n = 0;

    o.rule = &paired_sequential;
    a->n = 499;
    assert_false(accuracy_decided(a, &o));
    a->n = 500;
    assert_true(accuracy_decided(a, &o));
    for (size_t i = 500; i < 8000; i++) a->questions[i].marks[2] = a->questions[i].marks[1];
    a->n = 8000;
    accuracy_rows(a, &o, rows, &n);
    assert_int_equal(row_of(rows, n, "testable", 2, a)->text.decided_at, 500);
    assert_int_equal(row_of(rows, n, "testable", 2, a)->text.verdict, PAIRED_WORSE);
    o.rule = NULL; /* one look at the end: 60 lost of 8,000 */
    accuracy_rows(a, &o, rows, &n);
    assert_int_equal(row_of(rows, n, "testable", 2, a)->text.verdict, PAIRED_EQUAL);
    a->complete = false;
    accuracy_rows(a, &o, rows, &n);
    assert_int_equal(row_of(rows, n, "testable", 2, a)->text.verdict, PAIRED_OPEN);
    accuracy_free(a);
    is_free(rows);
}

/* Counted by hand. */
static void rows_by_hand(void **state)
{
    accuracy_options o = small_run(4);
    accuracy *a = planted(&o, 4, 0, 0, 0, 1);
    accuracy_row *rows = is_calloc(ACCURACY_ROWS, sizeof *rows);
    const accuracy_row *r;
    size_t n = 0;

    for (size_t i = 0; i < 4; i++) {
        a->questions[i] = (accuracy_question){ .type = 2, .recall = i / 4.0 };
        for (size_t k = 0; k < 3; k++)
            a->questions[i].marks[k] = (accuracy_mark){ .asked = true,
                                                        .right = k == 1 ? i < 3 : k == 2 && i % 2,
                                                        .f1 = 0.25 * (double)i,
                                                        .nll = (double)(k + i),
                                                        .choice = i == 0 };
    }
    a->questions[3].marks[2].asked = false;
    accuracy_rows(a, &o, rows, &n);
    r = row_of(rows, n, "time", 2, a);
    assert_int_equal(r->n, 3);
    assert_float_equal(r->right, 1.0 / 3, 1e-9);
    assert_float_equal(r->f1, 0.25, 1e-9);
    assert_float_equal(r->nll, 3, 1e-9);
    assert_float_equal(r->choice, 1.0 / 3, 1e-9);
    assert_float_equal(r->recall, 0.25, 1e-9);
    assert_int_equal(r->text.counts.n, 3);
    assert_int_equal(r->text.counts.lost, 2); /* questions 0 and 2 */
    assert_int_equal(r->text.counts.won, 0);
    assert_true(r->testable && !r->has_twin);
    assert_float_equal(row_of(rows, n, "time", 1, a)->right_i.lo, 0.3006,
                       1e-4); /* Wilson's, 3 of 4 */
    assert_true(isnan(row_of(rows, n, "single", 2, a)->right));
    accuracy_free(a);
    is_free(rows);
}

/* ---- A judge --------------------------------------------------------------------------------- */

/* A server that answers so many requests, one after another, with these words in turn; NULL is an
 * HTTP error. */
typedef struct court {
    const char *const *words;
    size_t n, asked, proper;
    int fd;
    char url[64];
    pthread_t thread;
} court;

static void read_request(int fd, char *request, size_t cap)
{
    size_t n = 0;

    request[0] = 0;
    while (n + 1 < cap) {
        ssize_t got = read(fd, request + n, cap - 1 - n);
        const char *end, *size;

        if (got <= 0) return;
        n += (size_t)got;
        request[n] = 0;
        end = strstr(request, "\r\n\r\n");
        size = strcasestr(request, "Content-Length: ");
        if (end && size && strlen(end + 4) >= (size_t)strtol(size + 16, NULL, 10)) return;
    }
}

static void serve_one(court *c, int fd)
{
    const char *says = c->words[c->asked++];
    char request[8192], reply[512], body[256];

    read_request(fd, request, sizeof request);
    c->proper += strstr(request, "Bearer secret") && strstr(request, "Right answer: ") &&
                 strstr(request, "\"model\":\"solomon\"");
    snprintf(body, sizeof body, "{\"choices\":[{\"message\":{\"content\":\"%s\"}}]}",
             says ? says : "");
    snprintf(reply, sizeof reply,
             "HTTP/1.1 %s\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n%s",
             says ? "200 OK" : "503 Busy", strlen(body), body);
    assert_true(write(fd, reply, strlen(reply)) == (ssize_t)strlen(reply));
    close(fd);
}

static void *sit(void *ctx)
{
    court *c = ctx;

    while (c->asked < c->n) {
        int fd = accept(c->fd, NULL, NULL);

        if (fd < 0) break;
        serve_one(c, fd);
    }
    return NULL;
}

static void open_court(court *c, const char *const *words, size_t n)
{
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t size = sizeof at;

    *c = (court){ .words = words, .n = n, .fd = socket(AF_INET, SOCK_STREAM, 0) };
    assert_int_equal(bind(c->fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(c->fd, 8), 0);
    assert_int_equal(getsockname(c->fd, (struct sockaddr *)&at, &size), 0);
    snprintf(c->url, sizeof c->url, "http://127.0.0.1:%u", ntohs(at.sin_port));
    assert_int_equal(pthread_create(&c->thread, NULL, sit, c), 0);
}

static void close_court(court *c)
{
    pthread_join(c->thread, NULL);
    close(c->fd);
}

/* What it said of a question: the words in turn, one for each prompt that was not run before. */
static const char *const *check_judged(const accuracy_question *q, const char *const *words)
{
    for (size_t i = 0; i < 4; i++) { /* none, gold, text and one injected arm */
        const accuracy_mark *m = &q->marks[i];

        if (i == 2 && m->nll == q->marks[1].nll) { /* the right facts alone were found */
            assert_int_equal(m->judged, q->marks[1].judged);
            continue;
        }
        assert_int_equal(m->judged, strcasecmp(*words, "yes") == 0  ? 1
                                    : strcasecmp(*words, "no") == 0 ? 0
                                                                    : -1);
        words++;
    }
    return words;
}

/* It is kept, in the file too; an error ends the run, which goes on later. */
static void a_judge_is_asked_of_every_answer(void **state)
{
    static const char *const words[] = { "Yes", "no", "I think so", "YES", "no", NULL };
    static const char *const more[] = { "no", "yes", "perhaps", "no" };
    accuracy_options o = small_run(2);
    accuracy_row *rows = is_calloc(ACCURACY_ROWS, sizeof *rows);
    accuracy *a = NULL;
    size_t n = 0, said = 0;
    lab *l = open_lab("mock");
    court c;

    o.n_policies = 1;
    o.no_twins = true;
    o.results = scratch_path(folder, "judged.jsonl");
    open_court(&c, words, 6);
    o.judge = (accuracy_judge){ c.url, "secret", "solomon" };
    KIT_FAILS(INFERSCALE_E_IO, accuracy_run(l, &o, &a));
    assert_non_null(strstr(is_error(), "503"));
    assert_int_equal(a->n, 1);
    check_judged(&a->questions[0], words);
    accuracy_free(a);
    lab_close(l);
    close_court(&c);
    assert_int_equal(c.proper, 6);
    open_court(&c, more, 4);
    o.judge.url = c.url;
    a = run(&o);
    shutdown(c.fd, SHUT_RDWR); /* one fewer was asked if two prompts were the same */
    close_court(&c);
    check_judged(&a->questions[0], words);
    assert_true(check_judged(&a->questions[1], more) == more + c.asked);
    for (size_t i = 0; i < 2; i++) said += a->questions[i].marks[3].judged >= 0;
    accuracy_rows(a, &o, rows, &n);
    for (size_t i = 0; i < n; i++) {
        if (strcmp(rows[i].type, "all") != 0 || rows[i].arm->kind != ARM_INJECTED) continue;
        assert_int_equal(rows[i].n_judged, said);
    }
    is_free(rows);
    accuracy_free(a);
    o.judge.model = "another";
    refuse(&o, INFERSCALE_E_INVALID, "\"judge\" is \"solomon\" there");
}

/* ---- Failures -------------------------------------------------------------------------------- */

static void failures(void **state)
{
    static const char *const calls[] = { "tokenize", "capture", "start", "feed" };
    accuracy_options o = small_run(2);
    accuracy *a = NULL;
    lab *l = open_lab("mock:noinject");

    KIT_FAILS(INFERSCALE_E_UNSUPPORTED, accuracy_run(l, &o, &a));
    accuracy_free(a);
    lab_close(l);
    for (size_t i = 0; i < 4; i++) {
        char model[64];

        snprintf(model, sizeof model, "mock:fail-%s=2", calls[i]);
        l = open_lab(model);
        KIT_FAILS(INFERSCALE_E_ENGINE, accuracy_run(l, &o, &a));
        accuracy_free(a);
        lab_close(l);
    }
    o.policies[1] = o.policies[0];
    refuse(&o, INFERSCALE_E_INVALID, "is given twice");
    o = small_run(2);
    o.k = 0;
    refuse(&o, INFERSCALE_E_INVALID, "k is from 1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_question_in_every_arm),
        cmocka_unit_test(a_usual_stack_is_an_arm),
        cmocka_unit_test(the_best_fact_stands_first),
        cmocka_unit_test(one_exact_fact_is_the_text),
        cmocka_unit_test(a_run_in_pieces_is_a_run),
        cmocka_unit_test(killed_again_and_again),
        cmocka_unit_test(another_configuration_is_refused),
        cmocka_unit_test(planted_differences),
        cmocka_unit_test(decisions_are_made_at_looks),
        cmocka_unit_test(rows_by_hand),
        cmocka_unit_test(a_judge_is_asked_of_every_answer),
        cmocka_unit_test(failures),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
