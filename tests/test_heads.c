/* What must hold of plans that are carried out elsewhere, and of files that are lost there. A plan reads heads of segments, each once, and no
 * rows; a file that is gone, torn or rotten is noticed, here or by the server that tells, and is encoded again without a restart; a server
 * that is itself at fault makes nobody encode anything; what fails again at once rests; and no sentence that clients are told names a file or
 * a server. The mock as a remote engine reads its rows from the store's folder, as a worker does. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "api/answer.h"
#include "api/damage.h"
#include "base/mem.h"
#include "kv/vault_files.h"
#include "support/scratch.h"
#include "support/store_kit.h"

enum { N_FACTS = 50 };

static char *home;

/* ---- A filesystem that counts what is read of the vault's files ----------------------------------------------------------- */

enum op { OPEN = 1, STAT, READ };

static struct counted {
    is_fs fs;
    is_file *files[64];
    uint64_t bytes, opens, stats;
    enum op failing; /* so many operations of this sort, behind the first `skip` of them */
    int errnum, skip, left;
} disk;

static bool fails(enum op op)
{
    if (disk.failing != op || disk.left == 0 || disk.skip-- > 0) return false;
    disk.left--;
    errno = disk.errnum;
    return true;
}

static void let_fail(enum op op, int errnum, int skip, int n)
{
    disk.failing = op;
    disk.errnum = errnum;
    disk.skip = skip;
    disk.left = n;
}

static is_status count_open(const is_fs *fs, const char *path, int mode, is_file **out)
{
    is_status st;

    (void)fs;
    *out = NULL;
    if (mode == IS_OPEN_READ && strstr(path, ".seg") && fails(OPEN)) return is_fail_errno("cannot open %s", path);
    st = is_fs_posix()->open(is_fs_posix(), path, mode, out);
    if (st != INFERSCALE_OK || mode != IS_OPEN_READ || !strstr(path, "/vault/")) return st;
    disk.opens++;
    for (int i = 0; i < 64; i++)
        if (!disk.files[i]) return disk.files[i] = *out, st;
    fail_msg("more than 64 files are open");
    return st;
}

static void count_close(const is_fs *fs, is_file *f)
{
    (void)fs;
    for (int i = 0; i < 64; i++)
        if (disk.files[i] == f) disk.files[i] = NULL;
    is_fs_posix()->close(is_fs_posix(), f);
}

static is_status count_pread(const is_fs *fs, is_file *f, void *p, size_t n, uint64_t offset)
{
    (void)fs;
    for (int i = 0; i < 64; i++) {
        if (disk.files[i] != f) continue;
        if (fails(READ)) return is_fail_errno("cannot read a file of the vault");
        disk.bytes += n;
    }
    return is_fs_posix()->pread(is_fs_posix(), f, p, n, offset);
}

static is_status count_stat(const is_fs *fs, const char *path, is_stat *out)
{
    (void)fs;
    disk.stats += strstr(path, ".seg") != NULL;
    if (strstr(path, ".seg") && fails(STAT)) return is_fail_errno("cannot stat %s", path);
    return is_fs_posix()->stat(is_fs_posix(), path, out);
}

static void start_counting(void)
{
    disk = (struct counted){ .fs = *is_fs_posix() };
    disk.fs.open = count_open;
    disk.fs.close = count_close;
    disk.fs.pread = count_pread;
    disk.fs.stat = count_stat;
    is_fs_set_default(&disk.fs);
}

static void from_now(void)
{
    disk.bytes = disk.opens = disk.stats = 0;
}

/* ---- Stores ---------------------------------------------------------------------------------------------------------------- */

static inferscale *open_with(const char *mock_options, bool background)
{
    inferscale_options o = INFERSCALE_OPTIONS_INIT;
    char model[100];
    inferscale *is = NULL;

    snprintf(model, sizeof model, "mock:%s", mock_options);
    o.home = home;
    o.engine = "mock";
    o.model = model;
    o.embedder = "mock";
    o.policy = "header";
    o.refine = "none";
    o.background = background;
    OK(inferscale_open(&is, &o));
    return is;
}

static void remember(inferscale *is, int n)
{
    for (int i = 0; i < n; i++) {
        char text[160];

        snprintf(text, sizeof text, "anna told me about her grey dog and its %d puppies, which bark at the postman of her street", i);
        store_fact(is, &store_anna, text);
    }
    OK(inferscale_encode(is, &store_anna, NULL));
}

static inferscale_answer *ask(inferscale *is, uint32_t k)
{
    inferscale_ask_options o = INFERSCALE_ASK_OPTIONS_INIT;
    inferscale_answer *a = NULL;

    o.k = k;
    o.max_tokens = 40;
    if (inferscale_ask(is, &store_anna, "what about anna's grey dog", &o, &a) != INFERSCALE_OK) fail_msg("%s", inferscale_error());
    assert_null(strchr(a->fallback, '/'));
    return a;
}

static size_t n_from(const inferscale_answer *a, int source)
{
    size_t n = 0;

    for (size_t i = 0; i < a->n_facts; i++) n += a->facts[i].source == source;
    return n;
}

static inferscale_encoder_state state_of(inferscale *is)
{
    inferscale_encoder_state s = INFERSCALE_ENCODER_STATE_INIT;

    OK(inferscale_encode_status(is, &store_anna, &s));
    return s;
}

/* All stored, nothing amiss. */
static void expect_well(inferscale *is, uint32_t k)
{
    inferscale_answer *a = ask(is, k);

    if (a->fallbacks) fail_msg("%s", a->fallback);
    assert_int_equal(n_from(a, INFERSCALE_SOURCE_STORED), k);
    inferscale_answer_free(a);
}

static void flip_last_byte(const char *path)
{
    size_t n;
    unsigned char *bytes = store_read(path, &n);

    bytes[n - 1] ^= 0x40;
    store_write(path, bytes, n);
    free(bytes);
}

static int setup(void **state)
{
    (void)state;
    home = scratch_make();
    start_counting();
    return home == NULL;
}

static int teardown(void **state)
{
    (void)state;
    is_fs_set_default(NULL);
    scratch_remove(home);
    return 0;
}

/* ---- Reading --------------------------------------------------------------------------------------------------------------- */

/* Bytes of the files, and of their heads with the 24 that say how long a head is. */
static void measure(uint64_t *whole, uint64_t *heads)
{
    size_t n;
    char **files = store_files(home, ".seg", &n);

    *whole = *heads = 0;
    for (size_t i = 0; i < n; i++) {
        size_t bytes;
        unsigned char *p = store_read(files[i], &bytes);

        *whole += bytes;
        *heads += 24 + (p[12] | (uint32_t)p[13] << 8 | (uint32_t)p[14] << 16);
        free(p);
    }
    assert_int_equal(n, N_FACTS);
    store_files_free(files, n);
}

static void a_plan_reads_heads_and_each_once(void **state)
{
    uint64_t whole, heads;
    is_vault_stats v;
    inferscale *is = open_with("remote", false);

    (void)state;
    remember(is, N_FACTS);
    inferscale_close(is);
    measure(&whole, &heads);
    is = open_with("remote", false);
    from_now();
    expect_well(is, N_FACTS);
    printf("k = %d: %llu bytes of %llu read, %llu files opened", N_FACTS, (unsigned long long)disk.bytes, (unsigned long long)whole,
           (unsigned long long)disk.opens);
    assert_int_equal(disk.bytes, heads);
    assert_int_equal(disk.opens, N_FACTS);
    from_now();
    expect_well(is, N_FACTS);
    printf("; asked again: %llu bytes, %llu opened, %llu looked at\n", (unsigned long long)disk.bytes, (unsigned long long)disk.opens,
           (unsigned long long)disk.stats);
    assert_int_equal(disk.bytes + disk.opens, 0);
    assert_in_range(disk.stats, N_FACTS, 2 * N_FACTS);
    is_vault_get_stats(is->vault, &v);
    assert_int_equal(v.ram_bytes, 0); /* nothing that was encoded is kept either */
    assert_in_range(v.head_bytes, 1, IS_VAULT_PATH_BYTES * N_FACTS);
    inferscale_close(is);
}

/* The same engine embedded needs the rows, and reads all there is. */
static void an_embedded_engine_reads_rows(void **state)
{
    uint64_t whole, heads;
    inferscale *is = open_with("", false);

    (void)state;
    remember(is, N_FACTS);
    inferscale_close(is);
    measure(&whole, &heads);
    is = open_with("", false);
    from_now();
    expect_well(is, N_FACTS);
    printf("embedded, k = %d: %llu bytes of %llu read\n", N_FACTS, (unsigned long long)disk.bytes, (unsigned long long)whole);
    assert_int_equal(disk.bytes, whole + 24 * N_FACTS);
    inferscale_close(is);
}

static void what_is_forgotten_leaves_the_heads(void **state)
{
    is_vault_stats before, after;
    inferscale *is = open_with("remote", false);
    inferscale_answer *a;

    (void)state;
    remember(is, 3);
    a = ask(is, 3);
    is_vault_get_stats(is->vault, &before);
    OK(inferscale_forget(is, &store_anna, &a->facts[0].id, 1, NULL));
    is_vault_get_stats(is->vault, &after);
    assert_true(after.head_bytes < before.head_bytes && after.head_bytes > 0);
    inferscale_answer_free(a);
    expect_well(is, 2);
    inferscale_close(is);
}

static void nothing_is_kept_of_a_file_that_is_gone(void **state)
{
    inferscale *is = open_with("remote", false);
    uint8_t name[IS_HASH_BYTES];
    is_vault_stats before, after;
    is_segment *s;
    char **files;
    size_t n;

    (void)state;
    remember(is, 3);
    inferscale_answer_free(ask(is, 3));
    is_vault_get_stats(is->vault, &before);
    files = store_files(home, ".seg", &n);
    for (size_t i = 0; i < IS_HASH_BYTES; i++) {
        unsigned byte;

        assert_int_equal(sscanf(strrchr(files[0], '/') + 1 + 2 * i, "%2x", &byte), 1);
        name[i] = (uint8_t)byte;
    }
    assert_int_equal(unlink(files[0]), 0);
    assert_int_equal(is_vault_get_bare(is->vault, name, NULL, &s), INFERSCALE_E_NOTFOUND);
    is_vault_get_stats(is->vault, &after);
    assert_true(after.head_bytes < before.head_bytes && after.head_bytes > 0);
    store_files_free(files, n);
    inferscale_close(is);
}

/* ---- Healing --------------------------------------------------------------------------------------------------------------- */

static void delete_it(const char *path) { assert_int_equal(unlink(path), 0); }
static void tear_it(const char *path)
{
    struct stat st;

    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(truncate(path, st.st_size / 2), 0);
}
static void empty_it(const char *path) { assert_int_equal(truncate(path, 0), 0); }
static void garble_its_beginning(const char *path) { store_write(path, "no segment at all, this", 24); }

/* One answer says what was amiss and is the same; then all is as it was, with the same handle. */
static void heals(void (*hurt)(const char *path), bool told)
{
    inferscale *is = open_with("remote", true);
    inferscale_answer *a;
    char **files, *text;
    size_t n, again;

    remember(is, 5);
    a = ask(is, 5);
    assert_int_equal(a->fallbacks, 0);
    text = is_strdup(a->text);
    inferscale_answer_free(a);
    files = store_files(home, ".seg", &n);
    assert_int_equal(n, 5);
    hurt(files[1]);
    hurt(files[3]);
    a = ask(is, 5);
    assert_string_equal(a->text, text);
    assert_true(a->fallbacks & INFERSCALE_FALLBACK_DAMAGED);
    assert_int_equal((a->fallbacks & INFERSCALE_FALLBACK_COMPUTED_AFTER_ALL) != 0, told);
    assert_true(n_from(a, INFERSCALE_SOURCE_COMPUTED) >= (told ? 1 : 2));
    assert_int_equal(a->tokens_computed + a->tokens_injected + a->tokens_resident, a->tokens_prompt);
    inferscale_answer_free(a);
    OK(inferscale_encode_wait(is, &store_anna, 60000));
    expect_well(is, 5);
    assert_int_equal(state_of(is).damaged_queued, 2);
    assert_int_equal(state_of(is).damaged_disputed, 0);
    store_files_free(files, n);
    files = store_files(home, "", &again);
    for (size_t i = 0; i < again; i++) assert_null(strstr(files[i], ".bad"));
    store_files_free(files, again);
    inferscale_close(is);
    is_free(text);
}

static void a_deleted_file_heals(void **state) { (void)state, heals(delete_it, false); }
static void a_torn_file_heals(void **state) { (void)state, heals(tear_it, false); }
static void an_empty_file_heals(void **state) { (void)state, heals(empty_it, false); }
static void what_is_no_segment_heals(void **state) { (void)state, heals(garble_its_beginning, false); }
static void rotten_rows_heal(void **state) { (void)state, heals(flip_last_byte, true); } /* only who reads them can know */

/* ---- What cannot be read just now ------------------------------------------------------------------------------------------ */

typedef struct seen_files { char **paths; size_t n; struct stat was[5]; } seen_files;

static seen_files look_at_files(void)
{
    seen_files f;

    f.paths = store_files(home, ".seg", &f.n);
    assert_int_equal(f.n, 5);
    for (size_t i = 0; i < f.n; i++) assert_int_equal(stat(f.paths[i], &f.was[i]), 0);
    return f;
}

static void expect_untouched(const seen_files *f)
{
    for (size_t i = 0; i < f->n; i++) {
        struct stat now;

        assert_int_equal(stat(f->paths[i], &now), 0);
        assert_true(now.st_ino == f->was[i].st_ino && now.st_size == f->was[i].st_size);
    }
}

/* One operation fails as the system's own would: that answer computes a fact and says so, the file and the books stay, the next one injects. */
static void one_failure(const char *engine, enum op op, int errnum, const char *text, const seen_files *f)
{
    inferscale *is = open_with(engine, true); /* nothing is in memory */
    uint64_t encoded = state_of(is).facts_encoded;
    inferscale_answer *a;

    let_fail(op, errnum, 2, 1);
    a = ask(is, 5);
    assert_int_equal(disk.left, 0);
    assert_string_equal(a->text, text);
    if (!(a->fallbacks & INFERSCALE_FALLBACK_DAMAGED) || !strstr(a->fallback, "1 segments cannot be read just now"))
        fail_msg("operation %d, errno %d: %s", op, errnum, a->fallback);
    assert_null(strstr(a->fallback, "encoded again"));
    assert_int_equal(n_from(a, INFERSCALE_SOURCE_STORED), 4);
    assert_int_equal(n_from(a, INFERSCALE_SOURCE_COMPUTED), 1);
    inferscale_answer_free(a);
    expect_well(is, 5);
    OK(inferscale_encode_wait(is, &store_anna, 60000));
    assert_int_equal(state_of(is).facts_encoded, encoded);
    assert_int_equal(state_of(is).damaged_queued + state_of(is).damaged_resting, 0);
    expect_untouched(f);
    inferscale_close(is);
}

static void each_failure(const char *engine)
{
    static const int errnums[] = { EIO, EMFILE, ESTALE, EACCES };
    inferscale *is = open_with(engine, true);
    inferscale_answer *a;
    seen_files f;
    char *text;

    remember(is, 5);
    a = ask(is, 5);
    assert_int_equal(a->fallbacks, 0);
    text = is_strdup(a->text);
    inferscale_answer_free(a);
    inferscale_close(is);
    f = look_at_files();
    for (size_t e = 0; e < sizeof errnums / sizeof *errnums; e++)
        for (enum op op = OPEN; op <= READ; op++)
            if (op != STAT || *engine) one_failure(engine, op, errnums[e], text, &f); /* rows are read without a look before */
    store_files_free(f.paths, f.n);
    is_free(text);
}

static void what_cannot_be_read_just_now_stays(void **state) { (void)state, each_failure(""); }
static void a_head_that_cannot_be_read_just_now_stays(void **state) { (void)state, each_failure("remote"); }

/* A server complains, and here the file cannot be looked at either: nothing is done until it can be. */
static void nor_is_hearsay_believed_that_cannot_be_checked(void **state)
{
    inferscale *is = open_with("remote", true);
    inferscale_answer *a;
    seen_files f;

    (void)state;
    remember(is, 5);
    f = look_at_files();
    inferscale_close(is);
    is = open_with("remote,blind", true);
    let_fail(OPEN, EMFILE, 5, 5); /* the heads are read, and then no more */
    a = ask(is, 5);
    assert_int_equal(disk.left, 0);
    assert_int_equal(a->fallbacks, INFERSCALE_FALLBACK_COMPUTED_AFTER_ALL | INFERSCALE_FALLBACK_DAMAGED);
    assert_non_null(strstr(a->fallback, "5 segments cannot be read just now"));
    inferscale_answer_free(a);
    assert_int_equal(state_of(is).damaged_queued + state_of(is).damaged_resting + state_of(is).damaged_disputed, 0);
    inferscale_answer_free(ask(is, 5));
    assert_int_equal(state_of(is).damaged_disputed, 5);
    expect_untouched(&f);
    store_files_free(f.paths, f.n);
    inferscale_close(is);
}

/* Its server sees no folder: every answer is computed, every time it says so, and nobody encodes anything or reads the files each time. */
static void a_blind_server_makes_nobody_encode(void **state)
{
    inferscale *is = open_with("remote,blind", true);
    struct stat before[5], now;
    uint64_t encoded;
    char **files;
    size_t n;

    (void)state;
    remember(is, 5);
    files = store_files(home, ".seg", &n);
    for (size_t i = 0; i < n; i++) stat(files[i], &before[i]);
    encoded = state_of(is).facts_encoded;
    for (int turn = 0; turn < 4; turn++) {
        inferscale_answer *a = ask(is, 5);

        assert_int_equal(a->fallbacks, INFERSCALE_FALLBACK_COMPUTED_AFTER_ALL);
        assert_non_null(strstr(a->fallback, "missing"));
        assert_int_equal(n_from(a, INFERSCALE_SOURCE_COMPUTED), 5);
        inferscale_answer_free(a);
        if (turn == 0) from_now();
    }
    assert_int_equal(disk.bytes, 0); /* they were looked at once */
    OK(inferscale_encode_wait(is, &store_anna, 60000));
    assert_int_equal(state_of(is).facts_encoded, encoded);
    assert_int_equal(state_of(is).damaged_queued, 0);
    assert_int_equal(state_of(is).damaged_disputed, 4 * 5);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(stat(files[i], &now), 0);
        assert_true(now.st_ino == before[i].st_ino && now.st_size == before[i].st_size);
    }
    store_files_free(files, n);
    inferscale_close(is);
    is = open_with("remote", true); /* its eyes opened */
    expect_well(is, 5);
    inferscale_close(is);
}

/* A disk that rots what was just written: encoded again once, then it rests, and is text. */
static void what_fails_again_at_once_rests(void **state)
{
    inferscale *is = open_with("remote", true);
    char **files;
    size_t n;

    (void)state;
    remember(is, 3);
    files = store_files(home, ".seg", &n);
    for (int turn = 0; turn < 4; turn++) {
        inferscale_answer *a;

        if (access(files[0], F_OK) == 0) flip_last_byte(files[0]);
        a = ask(is, 3);
        assert_true(a->fallbacks & INFERSCALE_FALLBACK_DAMAGED);
        assert_non_null(strstr(a->fallback, turn ? "1 segments were missing or damaged and are not encoded again for now"
                                                 : "1 segments were missing or damaged and are to be encoded again"));
        assert_true(turn == 0 || !strstr(a->fallback, "to be encoded"));
        inferscale_answer_free(a);
        OK(inferscale_encode_wait(is, &store_anna, 60000));
    }
    assert_int_equal(state_of(is).damaged_queued, 1);
    assert_true(state_of(is).damaged_resting >= 2);
    store_files_free(files, n);
    inferscale_close(is);
}

/* It is the server that says what is bad; what it names that the plan does not hold is nobody's business. */
static void late_hearsay_harms_nobody(void **state)
{
    inferscale *is = open_with("remote,late=torn", true);

    (void)state;
    remember(is, 3);
    for (int turn = 0; turn < 2; turn++) inferscale_answer_free(ask(is, 3));
    assert_int_equal(state_of(is).damaged_queued + state_of(is).damaged_disputed, 0);
    inferscale_close(is);
}

/* ---- What clients are told ------------------------------------------------------------------------------------------------- */

static void sentences_name_no_files_and_servers(void **state)
{
    static const struct { const char *said, *told; } cases[] = {
        { "cannot open /srv/store/vault/ab/abcd.seg: No such file or directory", "cannot open (a file): No such file or directory" },
        { "cannot open /srv/my store/vault/ab/abcd.seg: gone", "cannot open (a file): gone" },
        { "store/vault/ab/abcd.seg is torn", "(a file) is torn" },
        { "see '/etc/x' and (~/y), then ./z.", "see '(a file)' and ((a file)), then (a file)." },
        { "../up/there", "(a file)" },
        { "http://10.0.0.3:8000/v1 does not answer", "(a server) does not answer" },
        { "ask http://h:1: it is down", "ask (a server): it is down" },
        { "the embedder of /m/a b/c.gguf, 12 of 13", "the embedder of (a file), 12 of 13" },
        { "vault/abcd.seg", "(a file)" },
        { "K/V and/or text: 3 of 4 facts; 50% of them", "K/V and/or text: 3 of 4 facts; 50% of them" },
        { "", "" },
        { "   ", "   " },
        { "/", "/" },
        { "a  b\tc", "a  b\tc" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        inferscale_answer answer = { 0 };
        is_asking a = { .answer = &answer };

        is_asking_note(&a, INFERSCALE_FALLBACK_REFUSED, "%s", cases[i].said);
        is_buf_str(&a.why, "");
        assert_string_equal((const char *)a.why.data, cases[i].told);
        assert_int_equal(answer.fallbacks, INFERSCALE_FALLBACK_REFUSED);
        is_buf_free(&a.why);
    }
}

/* An embedder that cannot be reached is told of without where it is, here and elsewhere. */
static void nor_does_a_search_without_its_embedder(void **state)
{
    (void)state;
    for (int remote = 0; remote < 2; remote++) {
        inferscale_options o = INFERSCALE_OPTIONS_INIT;
        inferscale_answer *a;
        inferscale *is;

        o.home = home;
        o.engine = "mock";
        o.model = remote ? "mock:remote" : "mock:";
        o.embedder = "http://127.0.0.1:9";
        o.policy = "header";
        o.refine = "none";
        OK(inferscale_open(&is, &o));
        store_fact(is, &store_anna, "anna has a grey dog");
        a = ask(is, 1);
        assert_true(a->fallbacks & INFERSCALE_FALLBACK_WORDS_ONLY);
        assert_null(strstr(a->fallback, "127.0.0.1"));
        inferscale_answer_free(a);
        inferscale_close(is);
    }
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(a_plan_reads_heads_and_each_once),
        CASE(an_embedded_engine_reads_rows),
        CASE(what_is_forgotten_leaves_the_heads),
        CASE(nothing_is_kept_of_a_file_that_is_gone),
        CASE(a_deleted_file_heals),
        CASE(a_torn_file_heals),
        CASE(an_empty_file_heals),
        CASE(what_is_no_segment_heals),
        CASE(rotten_rows_heal),
        CASE(what_cannot_be_read_just_now_stays),
        CASE(a_head_that_cannot_be_read_just_now_stays),
        CASE(nor_is_hearsay_believed_that_cannot_be_checked),
        CASE(a_blind_server_makes_nobody_encode),
        CASE(what_fails_again_at_once_rests),
        CASE(late_hearsay_harms_nobody),
        CASE(sentences_name_no_files_and_servers),
        CASE(nor_does_a_search_without_its_embedder),
    };

    unsetenv("INFERSCALE_MOCK");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
