/* The base room: what every room above relies on. Oracles: the C library's calendar, published hash values, an independent
 * UTF-8 encoder, and files looked at through a second name. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/cpu.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "base/words.h"
#include "support/scratch.h"

/* ---- Memory and sentences ------------------------------------------------------------------------------------------------ */

static void test_allocation_fails_on_request(void **state)
{
    size_t before = is_mem_count();
    void *a, *b, *c;

    is_mem_fail_at(2);
    a = is_malloc(8);
    b = is_calloc(4, 4);
    c = is_malloc_aligned(64, 100);
    is_mem_fail_at(0);
    assert_non_null(a);
    assert_null(b);
    assert_non_null(c);
    assert_int_equal((uintptr_t)c % 64, 0);
    assert_int_equal(is_mem_count() - before, 3);
    is_mem_fail_at(1);
    assert_null(is_realloc(a, 16));
    is_free(a); /* still ours */
    is_free(c);
    assert_null(is_calloc(SIZE_MAX, 2));
    assert_null(is_malloc_aligned(64, SIZE_MAX));
    assert_null(is_strdup(NULL));
    a = is_strndup("abcdef", 3);
    assert_string_equal(a, "abc");
    is_free(a);
    is_free(NULL);
}

static is_status sunk;
static char sunk_sentence[1024];
static void sink(is_status status, const char *sentence)
{
    sunk = status;
    snprintf(sunk_sentence, sizeof sunk_sentence, "%s", sentence);
}

static void *other_thread(void *arg)
{
    assert_string_equal(is_error(), "");
    is_fail(INFERSCALE_E_IO, "theirs");
    return NULL;
}

static void test_sentences(void **state)
{
    char longer[4096];
    pthread_t t;

    errno = 7;
    assert_int_equal(is_fail(INFERSCALE_E_BUSY, "file %s, try %d", "x", 3), INFERSCALE_E_BUSY);
    assert_int_equal(errno, 7);
    assert_string_equal(is_error(), "file x, try 3");
    assert_string_equal(inferscale_error(), "file x, try 3");
    is_fail(INFERSCALE_E_IO, "outer: %s", is_error()); /* wrapping the sentence in itself */
    assert_string_equal(is_error(), "outer: file x, try 3");
    pthread_create(&t, NULL, other_thread, NULL);
    pthread_join(t, NULL);
    assert_string_equal(is_error(), "outer: file x, try 3");

    memset(longer, 'a', sizeof longer);
    memcpy(longer + 1021, "\xE2\x82\xAC", 3); /* a character that the cut would split */
    longer[sizeof longer - 1] = 0;
    is_fail(INFERSCALE_E_IO, "%s", longer);
    assert_int_equal(strlen(is_error()), 1021);

    is_error_set_sink(sink);
    is_fail(INFERSCALE_E_FULL, "to the host");
    is_error_set_sink(NULL);
    assert_int_equal(sunk, INFERSCALE_E_FULL);
    assert_string_equal(sunk_sentence, "to the host");
    is_error_clear();
    assert_string_equal(is_error(), "");
}

static void test_errno_gives_status_and_next_step(void **state)
{
    static const struct { int e; is_status st; } cases[] = {
        { ENOSPC, INFERSCALE_E_FULL }, { EDQUOT, INFERSCALE_E_FULL }, { EFBIG, INFERSCALE_E_FULL }, { EROFS, INFERSCALE_E_READONLY },
        { EACCES, INFERSCALE_E_DENIED }, { EPERM, INFERSCALE_E_DENIED }, { ENOENT, INFERSCALE_E_NOTFOUND },
        { ENOMEM, INFERSCALE_E_NOMEM }, { EIO, INFERSCALE_E_IO }, { EMFILE, INFERSCALE_E_IO }, { ENOTDIR, INFERSCALE_E_IO },
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        errno = cases[i].e;
        assert_int_equal(is_fail_errno("cannot read %s", "f"), cases[i].st);
        assert_int_equal(errno, cases[i].e);
        assert_non_null(strstr(is_error(), "cannot read f: "));
        assert_non_null(strstr(is_error(), strerror(cases[i].e)));
        assert_non_null(strstr(is_error(), "; ")); /* the next step */
    }
}

static void test_status_names_are_pinned(void **state)
{
    static const char *const names[] = { "OK", "E_INVALID", "E_NOMEM", "E_IO", "E_FULL", "E_READONLY", "E_NOTFOUND", "E_CORRUPT",
                                         "E_FOREIGN", "E_BUSY", "E_CONTEXT", "E_UNSUPPORTED", "E_MODEL", "E_ENGINE", "E_CANCELLED",
                                         "E_DENIED", "E_STALE", "E_PARSE", "E_INTERNAL", "E_TRACE" };

    for (int i = 0; i < 20; i++) {
        assert_string_equal(inferscale_status_name((inferscale_status)i), names[i]);
        assert_string_not_equal(inferscale_status_meaning((inferscale_status)i), "unknown");
    }
    assert_string_equal(inferscale_status_name((inferscale_status)20), "unknown");
    assert_string_equal(inferscale_status_meaning((inferscale_status)-1), "unknown");
    assert_string_equal(inferscale_version(), INFERSCALE_VERSION);
}

static int log_level;
static char log_line[1024];
static void on_log(void *ctx, int level, const char *message)
{
    assert_ptr_equal(ctx, &log_level);
    log_level = level;
    snprintf(log_line, sizeof log_line, "%s", message);
}

static void *other_thread_reads(void *out)
{
    *(const char **)out = is_words(IS_CALL_LIST);
    return NULL;
}

/* Nobody but a C program is told the name of a C function, and a C program is told no command. */
static void test_words_of_each_reader(void **state)
{
    const char *there = NULL;
    pthread_t t;

    (void)state;
    for (int what = 0; what < IS_CALL_COUNT; what++)
        for (int r = 0; r < IS_READER_COUNT; r++) {
            const char *words = is_words_for((is_call)what, (is_reader)r), *c = strstr(words, "inferscale_");
            assert_true(*words && strlen(words) < 80);
            assert_true((c && c[11] >= 'a' && c[11] <= 'z') == (r == IS_READER_C));
            assert_true(r != IS_READER_C || !strstr(words, "`inferscale "));
        }
    assert_string_equal(is_words(IS_CALL_LIST), "inferscale_ls");
    assert_int_equal(is_reader_set(IS_READER_CLI), IS_READER_C);
    assert_string_equal(is_words(IS_CALL_LIST), "`inferscale ls`");
    assert_int_equal(is_reader_here(IS_READER_MCP), -1);
    assert_string_equal(is_words(IS_CALL_LIST), "list_memories");
    assert_int_equal(pthread_create(&t, NULL, other_thread_reads, &there), 0);
    pthread_join(t, NULL);
    assert_string_equal(there, "`inferscale ls`"); /* a thread's reader is its own */
    assert_int_equal(is_reader_here(-1), IS_READER_MCP);
    assert_int_equal(is_reader_set(IS_READER_C), IS_READER_CLI);
}

static void test_log(void **state)
{
    is_log(IS_LOG_ERROR, "to nobody");
    is_log_set(on_log, &log_level);
    is_log(IS_LOG_WARN, "n = %d", 4);
    is_log_set(NULL, NULL);
    is_log(IS_LOG_ERROR, "to nobody");
    assert_int_equal(log_level, IS_LOG_WARN);
    assert_string_equal(log_line, "n = 4");
}

/* ---- Buffers ------------------------------------------------------------------------------------------------------------- */

static void test_buffer_against_oracle(void **state)
{
    unsigned long long seed = scratch_seed("buffer");
    uint8_t *oracle = malloc(1 << 20);
    is_buf b = IS_BUF_INIT;
    size_t n = 0;

    while (n < (1 << 20) - 4096) {
        uint8_t chunk[1024];
        size_t len = scratch_below(&seed, sizeof chunk);

        for (size_t i = 0; i < len; i++) chunk[i] = (uint8_t)scratch_next(&seed);
        is_buf_add(&b, chunk, len);
        memcpy(oracle + n, chunk, len);
        n += len;
        assert_int_equal(b.len, n);
        assert_int_equal(b.data[n], 0);
    }
    assert_true(is_buf_ok(&b));
    assert_memory_equal(b.data, oracle, n);
    free(oracle);
    is_buf_free(&b);
}

static void test_buffer_integers(void **state)
{
    is_buf b = IS_BUF_INIT;

    is_buf_u8(&b, 0xAB);
    is_buf_u16(&b, 0x1234);
    is_buf_u32(&b, 0x89ABCDEFu);
    is_buf_u64(&b, 0x0123456789ABCDEFull);
    is_buf_fmt(&b, "%s-%d", "x", 7);
    assert_memory_equal(b.data, "\xAB\x34\x12\xEF\xCD\xAB\x89\xEF\xCD\xAB\x89\x67\x45\x23\x01x-7", 18);
    assert_int_equal(is_get_u16(b.data + 1), 0x1234);
    assert_int_equal(is_get_u32(b.data + 3), 0x89ABCDEFu);
    assert_true(is_get_u64(b.data + 7) == 0x0123456789ABCDEFull);
    is_buf_free(&b);
}

static void test_buffer_limits(void **state)
{
    is_buf b = { .max = 100 };
    char *s;

    is_buf_str(&b, "0123456789");
    for (int i = 0; i < 9; i++) is_buf_str(&b, "0123456789");
    assert_true(is_buf_ok(&b)); /* exactly full */
    assert_int_equal(b.len, 100);
    is_buf_u8(&b, 1);
    assert_false(is_buf_ok(&b));
    is_buf_str(&b, ""); /* stays poisoned */
    assert_false(is_buf_ok(&b));
    assert_null(is_buf_take(&b));
    is_buf_add(&b, "a", SIZE_MAX);
    assert_false(is_buf_ok(&b));
    is_buf_clear(&b);
    s = is_buf_take(&b);
    assert_string_equal(s, "");
    is_free(s);
    is_mem_fail_at(1);
    is_buf_str(&b, "x");
    assert_false(is_buf_ok(&b));
    is_buf_free(&b);
}

/* ---- Hashes -------------------------------------------------------------------------------------------------------------- */

static void once_hex(const uint8_t *key, const char *s, char hex[IS_HASH_HEX])
{
    uint8_t h[IS_HASH_BYTES];

    is_hash_once(key, s, strlen(s), h);
    is_hex(h, sizeof h, hex);
}

static void fields(const uint8_t *key, const char *a, const char *b, uint8_t out[IS_HASH_BYTES])
{
    is_hash *h = NULL;

    OK(is_hash_new(key, &h));
    is_hash_field(h, a, strlen(a));
    is_hash_field(h, b, strlen(b));
    is_hash_end(h, out);
}

/* What is_hex writes is read back, and nothing else is: every character in every place. */
static void test_hex(void **state)
{
    uint8_t bytes[4], back[4];
    char hex[9];

    (void)state;
    for (unsigned i = 0; i < 256; i++) {
        memset(bytes, (int)i, sizeof bytes);
        is_hex(bytes, sizeof bytes, hex);
        assert_true(is_unhex(hex, sizeof back, back));
        assert_memory_equal(bytes, back, sizeof bytes);
        for (int at = 0; at < 8; at++) {
            char was = hex[at];

            hex[at] = (char)i;
            assert_int_equal(is_unhex(hex, sizeof back, back), i && strchr("0123456789abcdef", (int)i) != NULL);
            hex[at] = was;
        }
    }
    assert_true(is_unhex("00ff!", 2, back)); /* what follows is not looked at */
    assert_false(is_unhex("00f", 2, back));
    assert_false(is_unhex("", 1, back));
    is_wipe(bytes, sizeof bytes);
    assert_memory_equal(bytes, "\0\0\0\0", 4);
    is_wipe(NULL, 0);
}

enum { STACK_WORDS = 100 << 10 >> 3 };
static const uint64_t stack_word = 0x5ca1ab1e0ddba11;

static __attribute__((noinline)) uint64_t leave_words_on_the_stack(void)
{
    volatile uint64_t room[STACK_WORDS];

    for (size_t i = 0; i < STACK_WORDS; i++) room[i] = stack_word;
    return room[STACK_WORDS / 2];
}

/* Of the stack below the caller's frame; read by pread, as the compiler knows of no object there. */
static __attribute__((noinline)) size_t words_left_on_the_stack(void)
{
    enum { LOOK = IS_STACK_WIPE + (8 << 10) };
    uint64_t *copy = malloc(LOOK);
    const uintptr_t end = (uintptr_t)__builtin_frame_address(0) & ~(uintptr_t)7;
    int fd = open("/proc/self/mem", O_RDONLY);
    size_t found = 0;

    assert_non_null(copy);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, copy, LOOK, (off_t)(end - LOOK)), LOOK);
    for (size_t i = 0; i < LOOK / sizeof *copy; i++) found += copy[i] == stack_word;
    close(fd);
    free(copy);
    return found;
}

static void *wipe_a_stack(void *found)
{
    size_t *n = found;

    assert_true(leave_words_on_the_stack() == stack_word);
    n[0] = words_left_on_the_stack();
    is_stack_wipe();
    n[1] = words_left_on_the_stack();
    return NULL;
}

static void test_a_stack_is_wiped(void **state)
{
    size_t found[2];
    pthread_t thread;

    (void)state;
#if defined(__SANITIZE_ADDRESS__)
    skip(); /* its frames need not be on the stack */
#endif
    assert_int_equal(pthread_create(&thread, NULL, wipe_a_stack, found), 0);
    pthread_join(thread, NULL);
    assert_true(found[0] > STACK_WORDS / 2); /* the search finds them where they are */
    assert_int_equal(found[1], 0);
}

static void test_hashes(void **state)
{
    uint8_t key[IS_KEY_BYTES] = { 1 }, a[IS_HASH_BYTES], b[IS_HASH_BYTES], zero[IS_HASH_BYTES] = { 0 };
    char hex[IS_HASH_HEX], keyed[IS_HASH_HEX];

    once_hex(NULL, "", hex); /* BLAKE2b-256, published */
    assert_string_equal(hex, "0e5751c026e543b2e8ab2eb06099daa1d1e5df47778f7787faab45cdf12fe3a8");
    once_hex(NULL, "abc", hex);
    assert_string_equal(hex, "bddd813c634239723171ef3fee98579b94964e3bb1cb3e427262c8c068d52319");
    once_hex(key, "abc", keyed);
    assert_string_not_equal(hex, keyed);

    fields(key, "ab", "c", a);
    fields(key, "a", "bc", b);
    assert_memory_not_equal(a, b, sizeof a);
    is_hash_once(key, "\2\0\0\0\0\0\0\0ab\1\0\0\0\0\0\0\0c", 19, b); /* the framing, spelled out */
    assert_memory_equal(a, b, sizeof a);
    is_hash_end(NULL, b);
    assert_memory_equal(b, zero, sizeof b);

    assert_true(is_checksum("", 0) == 0x2D06800538D394C2ull); /* XXH3-64, published */
    is_random(a, sizeof a);
    is_random(b, sizeof b);
    assert_memory_not_equal(a, b, sizeof a);
}

/* ---- Time ---------------------------------------------------------------------------------------------------------------- */

static void test_clocks(void **state)
{
    assert_true(is_now_epoch() > 1700000000);
    assert_true(is_now_ms() <= is_now_ms());
}

/* ---- UTF-8 --------------------------------------------------------------------------------------------------------------- */

static size_t encode(uint32_t c, char out[4])
{
    if (c < 0x80) return out[0] = (char)c, 1;
    if (c < 0x800) return out[0] = (char)(0xC0 | c >> 6), out[1] = (char)(0x80 | (c & 63)), 2;
    if (c < 0x10000) {
        out[0] = (char)(0xE0 | c >> 12), out[1] = (char)(0x80 | (c >> 6 & 63)), out[2] = (char)(0x80 | (c & 63));
        return 3;
    }
    out[0] = (char)(0xF0 | c >> 18), out[1] = (char)(0x80 | (c >> 12 & 63));
    out[2] = (char)(0x80 | (c >> 6 & 63)), out[3] = (char)(0x80 | (c & 63));
    return 4;
}

static void test_utf8_every_code_point(void **state)
{
    uint64_t valid3 = 0;
    char s[4];

    for (uint32_t c = 0; c < 0x120000; c++) {
        size_t n = encode(c, s);
        bool want = c != 0 && c <= 0x10FFFF && !(c >= 0xD800 && c <= 0xDFFF);

        if (is_utf8_valid(s, n, NULL) != want) fail_msg("U+%04X", c);
        for (size_t cut = 1; cut < n && want; cut++) {
            assert_false(is_utf8_valid(s, cut, NULL));
            assert_int_equal(is_utf8_whole(s, cut), 0);
        }
        if (want) assert_int_equal(is_utf8_whole(s, n), n);
    }
    /* All three-byte strings from a three-byte lead: as many are valid as there are code points of that length. */
    for (uint32_t x = 0; x < 0x100000; x++) {
        s[0] = (char)(0xE0 | x >> 16), s[1] = (char)(x >> 8), s[2] = (char)x;
        valid3 += is_utf8_valid(s, 3, NULL);
    }
    assert_int_equal(valid3, 0x10000 - 0x800 - 0x800);
}

static void test_utf8_bad_forms(void **state)
{
    static const char *const bad[] = { "\xC0\xAF", "\xC1\xBF", "\xE0\x80\xAF", "\xF0\x80\x80\xAF", "\xED\xA0\x80", "\xF4\x90\x80\x80",
                                       "\xF5\x80\x80\x80", "\xFF", "\x80", "\xE2\x82", "\xE2\x28\xA1" };
    size_t at = 99;

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char s[16] = "ok ";

        strcat(s, bad[i]);
        assert_false(is_utf8_valid(s, strlen(s), &at));
        assert_int_equal(at, 3);
    }
    assert_false(is_utf8_valid("a\0b", 3, &at));
    assert_int_equal(at, 1);
    assert_true(is_utf8_valid("", 0, NULL));
    assert_true(is_utf8_blank(" \t\n\xC2\xA0\xE2\x80\x83\xE3\x80\x80\xEF\xBB\xBF", 14));
    assert_true(is_utf8_blank("", 0));
    assert_false(is_utf8_blank("  x ", 4));
    assert_int_equal(is_utf8_whole("ab\xE2\x82", 4), 2);
    assert_int_equal(is_utf8_whole("ab\xFF", 3), 3); /* wrong bytes are not held back for ever */
    assert_int_equal(is_utf8_whole("\x80\x80\x80\x80", 4), 4);
}

/* ---- Processor ----------------------------------------------------------------------------------------------------------- */

/* The answer in a process of its own: it is decided once. */
static int simd_with(const char *wish)
{
    int status = 0;
    pid_t pid = fork();

    if (pid == 0) {
        if (wish) setenv("INFERSCALE_SIMD", wish, 1);
        else unsetenv("INFERSCALE_SIMD");
        _exit((int)is_cpu_simd());
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WEXITSTATUS(status);
}

static void test_cpu(void **state)
{
    int best = simd_with(NULL);
    char model[64];
    cpu_set_t all, one;
    unsigned cores = is_cpu_physical_cores();

    assert_int_equal(simd_with("scalar"), IS_SIMD_SCALAR);
    assert_int_equal(simd_with("avx2"), best < IS_SIMD_AVX2 ? best : IS_SIMD_AVX2);
    assert_int_equal(simd_with("avx512"), best < IS_SIMD_AVX512 ? best : IS_SIMD_AVX512);
    assert_int_equal(simd_with("nonsense"), best);
    assert_string_equal(is_cpu_simd_name(IS_SIMD_AVX2), "AVX2");
    assert_string_equal(is_cpu_simd_name((is_simd)9), "unknown");
    is_cpu_model(model);
    assert_true(strlen(model) > 0);
    assert_in_range(is_cpu_pressure() + 1, 0, 101);

    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    assert_true(cores >= 1 && cores <= (unsigned)CPU_COUNT(&all));
    CPU_ZERO(&one);
    for (int i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &all)) {
            CPU_SET(i, &one);
            break;
        }
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_int_equal(is_cpu_physical_cores(), 1);
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cpu), /* first: it forks before the level is decided */
        cmocka_unit_test(test_allocation_fails_on_request),
        cmocka_unit_test(test_sentences),
        cmocka_unit_test(test_errno_gives_status_and_next_step),
        cmocka_unit_test(test_status_names_are_pinned),
        cmocka_unit_test(test_words_of_each_reader),
        cmocka_unit_test(test_log),
        cmocka_unit_test(test_buffer_against_oracle),
        cmocka_unit_test(test_buffer_integers),
        cmocka_unit_test(test_buffer_limits),
        cmocka_unit_test(test_hex),
        cmocka_unit_test(test_a_stack_is_wiped),
        cmocka_unit_test(test_hashes),
        cmocka_unit_test(test_clocks),
        cmocka_unit_test(test_utf8_every_code_point),
        cmocka_unit_test(test_utf8_bad_forms),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
