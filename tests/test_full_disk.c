/* A disk that is full for real: a small filesystem of its own, filled to the last byte, with more and less room left at the moment the
 * store needs it. Adding and encoding are refused with a sentence that says what to do; what is there is listed, found and answered
 * from; when there is room again the same handle goes on, and nothing acknowledged is lost. Needs the right to mount. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cmocka.h>

#include "support/scratch.h"
#include "support/soak.h"

static const inferscale_scope anna = { .user = "anna" };
static char plugins[1024], folder[600], filler[700], home[700];
static inferscale *is;
static char *scratch;

#define MUST(expr)                                                                                                             \
    do {                                                                                                                       \
        if ((expr) != INFERSCALE_OK) fail_msg("%s: %s", #expr, inferscale_error());                                            \
    } while (0)

static inferscale_status open_store(int read_only)
{
    inferscale_options o = INFERSCALE_OPTIONS_INIT;

    o.home = home;
    o.engine = "mock";
    o.plugin_dir = plugins;
    o.policy = "facts:2";
    o.read_only = read_only;
    return inferscale_open(&is, &o);
}

/* ---- The disk ------------------------------------------------------------------------------------------------------------ */

static int set_up(void **state)
{
    (void)state;
    scratch = scratch_make();
    snprintf(folder, sizeof folder, "%s", scratch);
    snprintf(filler, sizeof filler, "%s/filler", folder);
    snprintf(home, sizeof home, "%s/store", folder);
    return 0;
}

static bool mount_small(void)
{
    return geteuid() == 0 && mount("tmpfs", folder, "tmpfs", 0, "size=4m") == 0;
}

static int tear_down(void **state)
{
    (void)state;
    inferscale_close(is);
    is = NULL;
    umount2(folder, MNT_DETACH);
    scratch_remove(scratch);
    return 0;
}

/* Takes all room but `leave` bytes (rounded up to pages). */
static void fill_but(off_t leave)
{
    static const char block[4096];
    int fd = open(filler, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    off_t n = 0;

    assert_true(fd >= 0);
    while (write(fd, block, sizeof block) == (ssize_t)sizeof block) n += (off_t)sizeof block;
    assert_int_equal(ftruncate(fd, n > leave ? n - leave : 0), 0);
    close(fd);
}

static void empty(void)
{
    assert_int_equal(unlink(filler), 0);
}

/* ---- What goes on and what does not -------------------------------------------------------------------------------------- */

static size_t count_facts(void)
{
    inferscale_list *l = NULL;
    size_t n;

    MUST(inferscale_ls(is, &anna, INFERSCALE_FACTS, 0, 0, &l));
    n = l->n;
    inferscale_list_free(l);
    return n;
}

static inferscale_status add(unsigned number)
{
    char text[600];
    inferscale_fact f = { .text = text };

    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = 0;
    text[snprintf(text, sizeof text, "Fact number %u is long.", number)] = ' ';
    return inferscale_remember(is, &anna, &f, 1, NULL);
}

static void serves(bool from_kv)
{
    inferscale_ask_options o = INFERSCALE_ASK_OPTIONS_INIT;
    inferscale_answer *a = NULL;
    inferscale_list *l = NULL;

    MUST(inferscale_recall(is, &anna, "Which number is long?", NULL, &l));
    assert_true(l->n > 0);
    inferscale_list_free(l);
    o.max_tokens = 8;
    o.k = 2;
    MUST(inferscale_ask(is, &anna, "Which number is long?", &o, &a));
    assert_true(a->n_facts > 0 && a->text[0]);
    if (from_kv) assert_true(a->tokens_injected > 0);
    inferscale_answer_free(a);
}

static void refused_clearly(inferscale_status st)
{
    if (st != INFERSCALE_E_FULL) fail_msg("%s: %s", inferscale_status_name(st), inferscale_error());
    if (!strstr(inferscale_error(), "free some space")) fail_msg("no next step in: %s", inferscale_error());
}

/* With so much room left when it begins: adds until it is refused. */
static unsigned fill_up(unsigned number, off_t leave, size_t *n_facts)
{
    inferscale_status st = INFERSCALE_OK;

    fill_but(leave);
    for (int i = 0; i < 3000 && st == INFERSCALE_OK; i++) {
        st = add(number++);
        *n_facts += st == INFERSCALE_OK;
    }
    refused_clearly(st);
    return number;
}

static void adds_are_refused_and_serving_goes_on(void **state)
{
    static const off_t rooms[] = { 0, 4096, 8192, 12288, 20480, 36864, 65536, 131072 };
    unsigned number = 0;
    size_t n = 0;

    (void)state;
    if (!mount_small()) skip(); /* reported as skipped: mounting is not allowed here */
    MUST(open_store(0));
    for (; n < 4; n++) MUST(add(number++));
    MUST(inferscale_encode(is, &anna, NULL));
    serves(true);
    for (size_t i = 0; i < sizeof rooms / sizeof *rooms; i++) {
        MUST(add(number++)); /* one that has no KV yet */
        n++;
        number = fill_up(number, rooms[i], &n);
        assert_int_equal(count_facts(), n); /* what was refused is not half there */
        serves(false);
        refused_clearly(inferscale_encode(is, &anna, NULL));
        serves(false);
        if (i % 2) { /* a restart on the full disk */
            inferscale_close(is);
            MUST(open_store(1));
            assert_int_equal(count_facts(), n);
            serves(false);
            inferscale_close(is);
            is = NULL;
            empty();
            MUST(open_store(0));
        } else {
            empty();
        }
        MUST(add(number++));
        assert_int_equal(count_facts(), ++n);
        MUST(inferscale_forget_all(is, &anna, NULL));
        for (n = 0; n < 4; n++) MUST(add(number++));
        MUST(inferscale_encode(is, &anna, NULL));
        serves(true);
    }
}

/* The vault is full, not the bank: KV cannot be stored, and the facts are served as text. */
static void encoding_is_refused_and_facts_are_served_as_text(void **state)
{
    inferscale_fsck_report *r = NULL;

    (void)state;
    if (!mount_small()) skip(); /* reported as skipped: mounting is not allowed here */
    MUST(open_store(0));
    for (unsigned i = 0; i < 12; i++) MUST(add(i));
    for (off_t leave = 0; leave < 400000; leave += 45056) {
        inferscale_status st;

        fill_but(leave);
        st = inferscale_encode(is, &anna, NULL);
        if (st != INFERSCALE_OK) refused_clearly(st);
        assert_int_equal(count_facts(), 12);
        serves(false);
        empty();
    }
    MUST(inferscale_encode(is, &anna, NULL));
    serves(true);
    MUST(inferscale_fsck(is, NULL, &r)); /* no half file was left */
    if (!r->ok) fail_msg("fsck: %s: %s", r->problems[0].kind, r->problems[0].what);
    inferscale_fsck_free(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(adds_are_refused_and_serving_goes_on, set_up, tear_down),
        cmocka_unit_test_setup_teardown(encoding_is_refused_and_facts_are_served_as_text, set_up, tear_down),
    };

    soak_plugins(plugins, sizeof plugins);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
