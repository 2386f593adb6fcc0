/* What must hold when the disk is full: a store opened for writing can still be read and asked, and says so; forgetting works where the
 * space that was held back, or the KV that goes in any case, makes room; nothing acknowledged is lost. And of ask --dry-run: it shows what
 * asking runs, and runs nothing. */
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "support/scratch.h"
#include "support/store_kit.h"

static char *folder;
static char home[600];

static int set_up(void **state)
{
    inferscale *is;

    folder = scratch_make();
    snprintf(home, sizeof home, "%s/home", folder);
    is = store_open(home, NULL, NULL, false);
    store_fill(is, 12, true);
    inferscale_close(is);
    return 0;
}

static int tear_down(void **state)
{
    scratch_remove(folder);
    return 0;
}

/* A disk on which no file may grow past n bytes: SQLite cannot make its 32 KiB of shared memory, nor a log. */
static void full_at(rlim_t n)
{
    struct rlimit limit = { n, n };

    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

/* In a child, for a limit cannot be raised again. Its exit code: 0 = all held. */
static void in_child(void (*body)(void))
{
    int status;
    pid_t pid = fork();

    if (pid == 0) {
        body();
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

#define MUST(code, expr)                                                                                                       \
    do {                                                                                                                       \
        if (!(expr)) {                                                                                                         \
            fprintf(stderr, "%s: %s\n", #expr, inferscale_error());                                                            \
            _exit(code);                                                                                                       \
        }                                                                                                                      \
    } while (0)

static void read_and_ask(void)
{
    inferscale_options o = store_options(home);
    inferscale_ask_options ask = INFERSCALE_ASK_OPTIONS_INIT;
    inferscale_fact f = { .text = "This cannot be kept." };
    inferscale_answer *a = NULL;
    inferscale_list *l = NULL;
    inferscale *is = NULL;
    inferscale_status st;

    full_at(16384);
    MUST(10, inferscale_open(&is, &o) == INFERSCALE_OK);
    MUST(11, strstr(inferscale_notice(is), "disk is full") != NULL);
    MUST(12, inferscale_ls(is, &store_anna, INFERSCALE_FACTS, 0, 0, &l) == INFERSCALE_OK && l->n == 12);
    MUST(13, inferscale_ask(is, &store_anna, "What does Anna think of on day number 3?", &ask, &a) == INFERSCALE_OK);
    MUST(14, a->tokens_injected > 0);
    st = inferscale_remember(is, &store_anna, &f, 1, NULL);
    MUST(15, st == INFERSCALE_E_READONLY || st == INFERSCALE_E_FULL);
    MUST(16, *inferscale_error() != 0);
    inferscale_answer_free(a);
    inferscale_list_free(l);
    inferscale_close(is);
}

static void a_full_disk_can_be_read_and_asked(void **state)
{
    in_child(read_and_ask);
    store_expect_sound(home);
}

/* The process before was killed: its log still has writes that no database file holds yet. */
static void writes_in_the_log_are_read_too(void **state)
{
    pid_t pid = fork();
    int status;

    if (pid == 0) {
        inferscale *is = store_open(home, NULL, NULL, false);

        store_fact(is, &store_anna, "Anna wrote this just before.");
        kill(getpid(), SIGKILL);
    }
    waitpid(pid, &status, 0);
    struct stat s;
    assert_int_equal(stat(scratch_path(home, "bank.sqlite-wal"), &s), 0);
    assert_true(s.st_size > 0);
    unlink(scratch_path(home, "bank.sqlite-shm")); /* as after a restart of the machine's temporary files, or a copy of the folder */
    pid = fork();
    if (pid == 0) {
        inferscale_options o = store_options(home);
        inferscale_list *l = NULL;
        inferscale *is = NULL;

        full_at(16384);
        MUST(20, inferscale_open(&is, &o) == INFERSCALE_OK);
        MUST(21, inferscale_ls(is, &store_anna, INFERSCALE_FACTS, 0, 0, &l) == INFERSCALE_OK && l->n == 13);
        inferscale_list_free(l);
        inferscale_close(is);
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(WEXITSTATUS(status), 0);
    store_expect_sound(home);
    inferscale *is = store_open(home, NULL, NULL, false);
    inferscale_list *l = NULL;
    OK(inferscale_ls(is, &store_anna, INFERSCALE_FACTS, 0, 0, &l));
    assert_int_equal(l->n, 13);
    inferscale_list_free(l);
    inferscale_close(is);
}

static void space_is_held_back(void **state)
{
    struct stat s;
    inferscale *is;

    assert_int_equal(stat(scratch_path(home, "reserve"), &s), 0);
    assert_int_equal(s.st_size, 512 * 1024);
    assert_int_equal(s.st_mode & 0777, 0600);
    unlink(scratch_path(home, "reserve"));
    is = store_open(home, NULL, NULL, true); /* a reader writes nothing */
    inferscale_close(is);
    assert_int_equal(access(scratch_path(home, "reserve"), F_OK), -1);
    is = store_open(home, NULL, NULL, false);
    assert_string_equal(inferscale_notice(is), "");
    inferscale_close(is);
    assert_int_equal(access(scratch_path(home, "reserve"), F_OK), 0);
    assert_string_equal(inferscale_notice(NULL), "");
}

/* ---- A disk that is really full ----------------------------------------------------------------------------------------------------- */

/* Fills the disk to the last byte it gives. */
static void fill(const char *name)
{
    FILE *f = fopen(scratch_path(home, name), "wb");
    char block[1024];

    memset(block, 'f', sizeof block);
    MUST(30, f != NULL);
    setbuf(f, NULL);
    while (fwrite(block, 1, sizeof block, f) == sizeof block) continue;
    while (fwrite(block, 1, 1, f) == 1) continue;
    fclose(f);
}

static bool is_there(inferscale *is, int64_t id)
{
    inferscale_list *l = NULL;
    bool there = inferscale_show(is, &store_anna, id, &l) == INFERSCALE_OK;

    inferscale_list_free(l);
    return there;
}

static void ask_works(inferscale *is)
{
    inferscale_ask_options ask = INFERSCALE_ASK_OPTIONS_INIT;
    inferscale_answer *a = NULL;

    MUST(31, inferscale_ask(is, &store_anna, "What does Anna think of on day number 3?", &ask, &a) == INFERSCALE_OK);
    MUST(32, a->n_facts > 0);
    inferscale_answer_free(a);
}

/* Everything of it in a mount of its own, gone with the child. */
static void live_on_a_full_disk(void)
{
    inferscale_options o;
    inferscale_fact f = { .text = "There is no room for this, however much one would like it." };
    inferscale *is;
    int64_t first, second, third;
    inferscale_status st = INFERSCALE_OK;

    is = store_open(home, NULL, NULL, false);
    store_fill(is, 12, true);
    first = store_sql_int(home, "SELECT min(item_id) FROM fact_versions WHERE partition_id = 1");
    second = first + 1;
    third = store_sql_int(home, "SELECT max(item_id) FROM fact_versions WHERE partition_id = 1");
    fill("filler"); /* while it is open */
    for (int i = 0; st == INFERSCALE_OK && i < 5000; i++) {
        char text[80];

        snprintf(text, sizeof text, "Fact %d that fills what is left.", i);
        f.text = text;
        st = inferscale_remember(is, &store_anna, &f, 1, NULL);
    }
    MUST(40, st == INFERSCALE_E_FULL);
    ask_works(is);
    MUST(41, inferscale_forget(is, &store_anna, &first, 1, NULL) == INFERSCALE_OK); /* the reserve is used */
    MUST(42, !is_there(is, first) && is_there(is, second));
    inferscale_close(is);
    fill("filler2");
    o = store_options(home);
    MUST(43, inferscale_open(&is, &o) == INFERSCALE_OK);
    MUST(44, is_there(is, second) && !is_there(is, first));
    ask_works(is);
    if (!*inferscale_notice(is)) { /* there was room to write after all: then forgetting must work */
        MUST(45, inferscale_forget(is, &store_anna, &second, 1, NULL) == INFERSCALE_OK);
    } else {
        st = inferscale_forget(is, &store_anna, &second, 1, NULL);
        MUST(46, st == INFERSCALE_E_READONLY);
    }
    inferscale_close(is);
    MUST(47, unlink(scratch_path(home, "filler")) == 0 && unlink(scratch_path(home, "filler2")) == 0);
    is = store_open(home, NULL, NULL, false);
    MUST(48, *inferscale_notice(is) == 0);
    MUST(49, access(scratch_path(home, "reserve"), F_OK) == 0);
    inferscale_close(is);
    fill("filler3"); /* with a reserve: it is given up to open */
    MUST(50, inferscale_open(&is, &o) == INFERSCALE_OK);
    MUST(51, *inferscale_notice(is) == 0);
    MUST(52, inferscale_forget(is, &store_anna, &third, 1, NULL) == INFERSCALE_OK);
    MUST(53, !is_there(is, third));
    inferscale_close(is);
    MUST(54, unlink(scratch_path(home, "filler3")) == 0);
    store_expect_sound(home);
}

static void forgetting_works_on_a_full_disk(void **state)
{
    int status;
    pid_t pid;

    scratch_remove(strdup(home));
    assert_int_equal(mkdir(home, 0700), 0);
    pid = fork();
    if (pid == 0) {
        if (unshare(CLONE_NEWNS) != 0 && unshare(CLONE_NEWNS | CLONE_NEWUSER) != 0) _exit(77);
        if (mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0) _exit(77);
        if (mount("tmpfs", home, "tmpfs", 0, "size=6m,mode=0700") != 0) _exit(77);
        live_on_a_full_disk();
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77) {
        print_message("no mount of its own is allowed here: not tried\n");
        skip();
    }
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* ---- Dry run -------------------------------------------------------------------------------------------------------------------- */

static void a_dry_run_shows_what_asking_runs(void **state)
{
    static const char question[] = "What does Anna think of on day number 3?";
    inferscale_ask_options o = INFERSCALE_ASK_OPTIONS_INIT;
    char model[700], witness[640];
    inferscale *is;
    struct stat s;

    snprintf(witness, sizeof witness, "%s/witness", folder);
    snprintf(model, sizeof model, "mock:witness=%s", witness);
    is = store_open(home, model, NULL, false);
    for (int mode = INFERSCALE_MODE_KV; mode <= INFERSCALE_MODE_NONE; mode++)
        for (uint32_t repair = 0; repair < 3; repair += 2) {
            inferscale_preview *p = NULL;
            inferscale_answer *a = NULL;
            size_t length = 0, n_facts = 0;
            uint32_t at = 0, stored = 0;
            off_t before;

            o.mode = mode;
            o.k = 5;
            o.repair = repair;
            before = stat(witness, &s) == 0 ? s.st_size : 0;
            OK(inferscale_dry_run(is, &store_anna, question, &o, &p));
            assert_int_equal(stat(witness, &s) == 0 ? s.st_size : 0, before); /* the engine computed nothing */
            OK(inferscale_ask(is, &store_anna, question, &o, &a));
            assert_int_equal(p->tokens_prompt, a->tokens_prompt);
            assert_int_equal(p->mode, a->mode);
            assert_string_equal(p->fallback, a->fallback);
            for (size_t i = 0; i < p->n_parts; i++) {
                const inferscale_preview_part *part = &p->parts[i];

                assert_int_equal(part->position, at);
                at += part->tokens;
                assert_memory_equal(p->prompt + length, part->text, strlen(part->text));
                length += strlen(part->text);
                if (part->source == INFERSCALE_SOURCE_STORED) stored += part->tokens;
                if (strcmp(part->role, "fact") != 0) continue;
                assert_int_equal(part->id, a->facts[n_facts].id);
                assert_int_equal(part->source, a->facts[n_facts].source);
                assert_true(part->score == a->facts[n_facts].score);
                assert_non_null(strstr(part->text, "Anna"));
                n_facts++;
            }
            assert_int_equal(n_facts, a->n_facts);
            assert_int_equal(length, strlen(p->prompt));
            assert_int_equal(at, p->tokens_prompt);
            assert_int_equal(stored, p->tokens_stored);
            assert_int_equal(stored, a->tokens_injected);
            assert_int_equal(p->tokens_stored + p->tokens_computed, p->tokens_prompt);
            assert_non_null(strstr(p->prompt, question));
            assert_non_null(strstr(p->prompt, "<|user|>")); /* control tokens are written out */
            assert_string_equal(p->parts[p->n_parts - 1].role, "tail");
            assert_string_equal(p->parts[0].role, "header");
            inferscale_preview_free(p);
            inferscale_answer_free(a);
        }
    FAILS(E_INVALID, inferscale_dry_run(is, &store_anna, question, &o, NULL));
    FAILS(E_INVALID, inferscale_dry_run(is, &store_anna, " ", &o, &(inferscale_preview *){ NULL }));
    FAILS(E_INVALID, inferscale_dry_run(NULL, &store_anna, question, &o, &(inferscale_preview *){ NULL }));
    inferscale_preview_free(NULL);
    inferscale_close(is);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_full_disk_can_be_read_and_asked, set_up, tear_down),
        cmocka_unit_test_setup_teardown(writes_in_the_log_are_read_too, set_up, tear_down),
        cmocka_unit_test_setup_teardown(space_is_held_back, set_up, tear_down),
        cmocka_unit_test_setup_teardown(forgetting_works_on_a_full_disk, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_dry_run_shows_what_asking_runs, set_up, tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
