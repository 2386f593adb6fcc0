/* Any public call may be the first one on a handle, with any of its options, and any option of
 * the store may be set: nothing is loaded yet, and nothing may depend on it. Each call is tried
 * in a process of its own; the options of a call share one, and so do the calls with one option
 * of the store. Each try has a handle and a store of its own, empty or filled. The process
 * lives, the call ends with the status that is expected of it on a filled store, with a sentence
 * where it fails; and the store can be used after it.
 *
 * The stores lie in memory where there is a place for that: hundreds of them are written to disk
 * slowly, and nothing here depends on a disk. Leaks are looked for when a process ends.
 *
 * What is tried stands in support/calls_first.c. That it is complete is read from
 * scripts/symbols.txt and include/inferscale.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/calls_first.h"
#include "support/live.h"
#include "support/scratch.h"
#include "support/store_kit.h"

static char *folder;
static size_t *at;               /* which try of the list the child is at; both processes see it */
static const char *filled;       /* a store with facts, turns, vectors and rows */

static int set_up(void **state)
{
    inferscale *is;

    (void)state;
    if (!getenv("TMPDIR") && access("/dev/shm", W_OK) == 0) setenv("TMPDIR", "/dev/shm", 1);
    at = mmap(NULL, sizeof *at, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(at != MAP_FAILED);
    folder = scratch_make();
    filled = strdup(scratch_path(folder, "filled"));
    is = store_open(filled, NULL, NULL, false);
    store_fill(is, 4, true);
    inferscale_close(is);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    free((char *)filled);
    scratch_remove(folder);
    return 0;
}

/* ---- One try ------------------------------------------------------------------------------------------------------------- */

typedef struct try {
    const first_call *call;
    size_t option;               /* of first_options; SIZE_MAX = none */
    bool is_filled;
} try;

static const first_option *option_of(const try *t)
{
    return t->option < n_first_options ? &first_options[t->option] : NULL;
}

static void die(const try *t, const char *how)
{
    const first_option *o = option_of(t);

    fprintf(stderr, "%s, first on a handle over %s store, with %s.%s = %s: %s\n", t->call->symbol, t->is_filled ? "a filled" : "an empty",
            o ? o->in : "no", o ? o->field : "option", o ? o->value : "", how);
    _exit(1);
}

/* After the call, with ordinary options: what can be asked of any store. */
static void expect_usable(const try *t, const char *home)
{
    inferscale_store_info info;
    inferscale *is = NULL;
    first_opts o;

    first_opts_init(&o, home, live_plugins());
    if (inferscale_open(&is, &o.open) != INFERSCALE_OK || inferscale_store(is, 1, &info) != INFERSCALE_OK) die(t, inferscale_error());
    if (!info.sqlite_ok) die(t, "the bank is damaged afterwards");
    inferscale_close(is);
}

/* What a call gives that is no fault: of a fact that is not there, of a store that may not be written to, of what is called off. */
static bool may_give(const try *t, inferscale_status st)
{
    const first_option *o = option_of(t);
    const bool opens = o && strcmp(o->in, "open") == 0;

    if (!t->is_filled) return st == INFERSCALE_E_NOTFOUND || st == INFERSCALE_OK || (o && st == o->want);
    if (opens && strcmp(o->field, "read_only") == 0) return st == INFERSCALE_E_READONLY || st == INFERSCALE_OK;
    if (opens && strcmp(o->field, "max_pending") == 0) return st == INFERSCALE_E_BUSY || st == INFERSCALE_OK;
    return st == (o ? o->want : INFERSCALE_OK);
}

static void in_child(const try *t, const char *home)
{
    first f = { .folder = home, .scope = { .user = "anna" }, .id = 4 };
    first_opts o;
    inferscale_status st;
    char how[700];

    first_opts_init(&o, home, live_plugins());
    if (t->option < n_first_options) first_set(&o, t->option);
    st = inferscale_open(&f.is, &o.open);
    if (st != INFERSCALE_OK && !t->is_filled && o.open.read_only) _exit(0); /* there is nothing to be read */
    if (st == INFERSCALE_OK) st = t->call->run(&f, &o);
    snprintf(how, sizeof how, "%s (%.500s)", inferscale_status_name(st), st == INFERSCALE_OK ? "" : inferscale_error());
    if (!may_give(t, st)) die(t, how);
    if (st != INFERSCALE_OK && !*inferscale_error()) die(t, "no sentence");
    inferscale_close(f.is);
    expect_usable(t, home);
}

static void in_child_all(const try *tries, size_t n, const char *home)
{
    for (*at = 0; *at < n; ++*at) {
        if (tries[*at].is_filled) store_copy(filled, home);
        in_child(&tries[*at], home);
        scratch_remove(strdup(home));
    }
    free((char *)home);
    exit(0); /* not _exit: the sanitizers look for leaks */
}

/* One after the other, in one process. */
static void try_all(const try *tries, size_t n)
{
    const try *t;
    const first_option *o;
    int how = 0;
    pid_t child;

    if (n == 0) return;
    *at = 0;
    fflush(NULL);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL); /* cmocka's handler would go on in the child */
        signal(SIGABRT, SIG_DFL);
        signal(SIGFPE, SIG_DFL);
        in_child_all(tries, n, strdup(scratch_path(folder, "try")));
    }
    assert_int_equal(waitpid(child, &how, 0), child);
    t = &tries[*at < n ? *at : n - 1];
    o = option_of(t);
    if (WIFSIGNALED(how))
        fail_msg("%s, first on a handle over %s store, with %s.%s = %s: ended by signal %d", t->call->symbol,
                 t->is_filled ? "a filled" : "an empty", o ? o->in : "no", o ? o->field : "option", o ? o->value : "", WTERMSIG(how));
    assert_int_equal(WEXITSTATUS(how), 0);
}

static void try_it(const try *t)
{
    try_all(t, 1);
}

/* ---- What is tried ------------------------------------------------------------------------------------------------------- */

static void each_call(void **state)
{
    (void)state;
    for (size_t c = 0; c < n_first_calls; c++)
        for (int full = 0; full < 2; full++) try_it(&(try){ &first_calls[c], SIZE_MAX, full });
}

static bool takes(const first_call *c, const char *options)
{
    char word[40];

    snprintf(word, sizeof word, "%s ", options);
    return strstr(c->structs, word) != NULL;
}

static void each_option_of_each_call(void **state)
{
    enum { MOST = 500 };
    size_t n = 0;

    (void)state;
    assert_true(n_first_options <= MOST);
    for (size_t c = 0; c < n_first_calls; c++) {
        try tries[2 * MOST];
        size_t k = 0;

        for (size_t o = 0; o < n_first_options; o++)
            for (int full = 0; full < 2 && takes(&first_calls[c], first_options[o].in); full++)
                tries[k++] = (try){ &first_calls[c], o, full };
        try_all(tries, k);
        n += k;
    }
    print_message("%zu options of calls\n", n);
    assert_true(n >= 2 * 100);
}

/* With those calls that load something; the others see no more of them than these do. */
static void each_option_of_the_store(void **state)
{
    static const char *const symbols[] = { "inferscale_complete", "inferscale_recall", "inferscale_encode", "inferscale_forget", "inferscale_remember" };

    (void)state;
    for (size_t o = 0; o < n_first_options; o++) {
        try tries[16];
        size_t k = 0;

        for (size_t c = 0; c < n_first_calls; c++)
            for (size_t s = 0; s < 5; s++)
                if (strcmp(first_options[o].in, "open") == 0 && strcmp(symbols[s], first_calls[c].symbol) == 0)
                    tries[k++] = (try){ &first_calls[c], o, true };
        assert_true(k < 16);
        try_all(tries, k);
    }
}

/* ---- That nothing is missing --------------------------------------------------------------------------------------------- */

static bool known(const char *symbol)
{
    for (size_t i = 0; i < n_first_calls; i++)
        if (!strcmp(first_calls[i].symbol, symbol)) return true;
    for (size_t i = 0; first_no_store[i]; i++)
        if (!strcmp(first_no_store[i], symbol)) return true;
    return false;
}

static FILE *source(const char *name)
{
    char path[1200];
    FILE *f;

    snprintf(path, sizeof path, "%s/../../%s", live_plugins(), name);
    f = fopen(path, "r");
    if (!f) fail_msg("cannot read %s", path);
    return f;
}

static void every_call_is_tried(void **state)
{
    FILE *f = source("scripts/symbols.txt");
    char line[200];
    size_t n = 0;

    (void)state;
    while (fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        if (strncmp(line, "inferscale", 10)) continue;
        n++;
        if (!known(line)) fail_msg("%s is in no table: add it to tests/support/calls_first.c", line);
    }
    fclose(f);
    assert_true(n > 25);
}

static bool has_row(const char *in, const char *field)
{
    for (size_t i = 0; i < n_first_options; i++)
        if (strcmp(first_options[i].in, in) == 0 && strcmp(first_options[i].field, field) == 0) return true;
    return false;
}

/* Results stand in some of them, behind a comment that says so or with one that begins with it. */
static size_t check_fields(const char *in, char *line)
{
    char *comment = strstr(line, "/*"), *end, *name;

    if (comment) *comment = 0;
    end = strrchr(line, ';');
    if (!end) return 0;
    *end = 0;
    if ((name = strstr(line, "(*"))) name += 2, name[strcspn(name, ")")] = 0;
    size_t n = 0;
    for (char *p = name ? name : line, *next; p; p = next, n++) {
        next = name ? NULL : strchr(p, ',');
        if (next) *next++ = 0;
        char *last = name ? p : strrchr(p, ' ');
        last = last ? last + (name == NULL) : p;
        while (*last == '*') last++;
        if (strcmp(last, "struct_size") == 0) continue;
        if (!has_row(in, last)) fail_msg("field %s of the %s options is never set: add it to tests/support/calls_first.c", last, in);
    }
    return n;
}

static void every_field_is_set(void **state)
{
    FILE *f = source("include/inferscale.h");
    char line[400], in[40] = "";
    bool results = false;
    size_t n = 0;

    (void)state;
    while (fgets(line, sizeof line, f)) {
        char name[40];

        if (sscanf(line, "typedef struct inferscale_%39[a-z_] {", name) == 1 && (!strcmp(name, "options") || strstr(name, "_options"))) {
            snprintf(in, sizeof in, "%s", name);
            if (strcmp(name, "options") == 0) snprintf(in, sizeof in, "open");
            else *strstr(in, "_options") = 0;
            results = false;
        } else if (line[0] == '}') in[0] = 0;
        else if (in[0]) {
            if (strstr(line, "/* results */") && strchr(line, ';') == NULL) results = true;
            if (strncmp(line, "    ", 4) || line[4] == ' ' || line[4] == '/') continue; /* the rest of a comment */
            if (!results && !strstr(line, "result")) n += check_fields(in, line);
        }
    }
    fclose(f);
    assert_true(n > 80);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_call_is_tried), cmocka_unit_test(every_field_is_set), cmocka_unit_test(each_call),
        cmocka_unit_test(each_option_of_each_call), cmocka_unit_test(each_option_of_the_store),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
