/* What was forgotten is not in the server's memory any more: its whole memory is read, as a core dump would hold it, and searched for the
 * words of what was remembered, found, answered with and forgotten. Replies and requests are as gone as facts,
 * from the stacks of the server's threads too. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "support/scratch.h"
#include "support/serve_program.h"

enum { FACTS = 40 };

static serve_program server;
static char *folder;

/* Made of two halves, so that this text is not what is found. */
static const char *marker(int i, char out[32])
{
    snprintf(out, 32, "zq%s%02d", "marmoset", i);
    return out;
}

static void expect(const char *method, const char *path, const char *fmt, ...)
{
    char body[2000];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(body, sizeof body, fmt, ap);
    va_end(ap);
    serve_reply r = serve_call(&server.kit, method, path, NULL, *body ? body : NULL);
    if (r.status != 200) fail_msg("%s %s: %d %s", method, path, r.status, r.body);
    serve_reply_free(&r);
}

/* How often the word stands in memory that the server can write to. where: of the first one. */
static size_t count_in(const void *word, size_t n, char *where, size_t cap)
{
    char path[64], line[512], *piece = malloc(1 << 20);
    size_t found = 0;

    snprintf(path, sizeof path, "/proc/%d/maps", (int)server.pid);
    FILE *maps = fopen(path, "r");
    snprintf(path, sizeof path, "/proc/%d/mem", (int)server.pid);
    FILE *mem = fopen(path, "rb");
    assert_true(maps && mem && piece);
    while (fgets(line, sizeof line, maps)) {
        unsigned long long from, to;
        char may[8], name[256] = "";

        if (sscanf(line, "%llx-%llx %7s %*s %*s %*s %255[^\n]", &from, &to, may, name) < 3 || may[0] != 'r' || may[1] != 'w') continue;
        for (size_t kept = 0; from < to;) {
            size_t want = to - from < (1 << 20) - kept ? (size_t)(to - from) : (1 << 20) - kept;

            if (fseeko(mem, (off_t)from, SEEK_SET) != 0) break;
            size_t got = fread(piece + kept, 1, want, mem);
            if (got == 0) break;
            for (char *p = piece; (p = memmem(p, kept + got - (size_t)(p - piece), word, n)) != NULL; p++) {
                if (!found++) {
                    size_t at = (size_t)(p - piece), room = kept + got - at;

                    snprintf(where, cap, "%.40s in %s: ", name, may);
                    for (size_t k = 0, len = strlen(where); k < 120 && k < room && len + k + 1 < cap; k++)
                        where[len + k] = p[k] >= ' ' && p[k] < 127 ? p[k] : '.', where[len + k + 1] = '\0';
                }
            }
            from += got;
            got += kept;
            kept = got < n ? got : n - 1; /* a word may stand across two pieces */
            memmove(piece, piece + got - kept, kept);
        }
    }
    fclose(maps);
    fclose(mem);
    free(piece);
    return found;
}

static size_t count_all(char *where, size_t cap)
{
    return count_in("zqmarmoset", 10, where, cap);
}

static void what_is_forgotten_is_in_no_memory(void **state)
{
    char word[32], where[400] = "";

    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip(); /* sanitizers keep what is freed */
#endif
    serve_program_start(&server, scratch_path(folder, "store"), NULL);
    for (int i = 0; i < FACTS; i++)
        expect("POST", "/memories", "{\"text\":\"Otto keeps the %s in garden number %d, beside the old wall.\",\"user_id\":\"otto\"}", marker(i, word), i);
    for (int i = 0; i < FACTS; i++) {
        expect("POST", "/search", "{\"query\":\"where is the %s?\",\"user_id\":\"otto\"}", marker(i, word));
        expect("POST", "/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":\"Tell me of the %s.\"}],\"max_tokens\":8,\"user\":\"otto\"}",
               marker(i, word));
    }
    expect("GET", "/memories?user_id=otto", "%s", "");
    if (count_all(where, sizeof where) == 0) fail_msg("the search finds nothing, even where it must");
    expect("DELETE", "/memories?user_id=otto", "%s", "");
    size_t n = 1; /* a connection that is at work drops its pages when its call ends */
    for (int i = 0; i < 40 && n; i++) {
        if (i) usleep(500000);
        n = count_all(where, sizeof where);
    }
    serve_program_end(&server);
    server.pid = 0;
    print_message("found %zu times\n", n);
    if (n) fail_msg("found %zu times; %s", n, where);
}

/* One page holds rows of both: holes in it and longer rows make SQLite move all rows, by way of a page that it keeps. */
static void what_was_moved_or_written_last_is_in_no_memory(void **state)
{
    enum { OTTOS = 3, BENS = 27 };
    char word[32], path[64], where[400] = "";
    size_t n = 1;

    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip();
#endif
    serve_program_start(&server, scratch_path(folder, "moved"), NULL);
    for (int i = 0; i < OTTOS; i++)
        expect("POST", "/memories", "{\"text\":\"Otto keeps the %s in garden number %d.\",\"user_id\":\"otto\"}", marker(i, word), i);
    for (int i = 0; i < BENS; i++)
        expect("POST", "/memories", "{\"text\":\"Ben keeps a cat in the garden number %d, by the old wall.\",\"user_id\":\"ben\"}", 10 + i);
    for (int i = 0; i < BENS; i += 3) { /* a new store counts from 1 */
        snprintf(path, sizeof path, "/memories/%d?user_id=ben", OTTOS + i + 1);
        expect("DELETE", path, "%s", "");
    }
    for (int i = 0; i < 6; i++)
        expect("POST", "/memories", "{\"text\":\"Ben keeps a dog in the garden number %d, by the new wall that his father built there.\",\"user_id\":\"ben\"}", i);
    /* The row written last stays in another page that it keeps: only its beginning is written over by shorter rows. */
    expect("POST", "/memories", "{\"text\":\"Otto %0600d keeps the %s.\",\"user_id\":\"otto\"}", 7, marker(OTTOS, word));
    expect("DELETE", "/memories?user_id=otto", "%s", "");
    for (int i = 0; i < 120 && n; i++) {
        if (i) usleep(500000);
        n = count_all(where, sizeof where);
    }
    serve_program_end(&server);
    server.pid = 0;
    if (n) fail_msg("found %zu times; %s", n, where);
}

static int clean(void **state)
{
    (void)state;
    if (server.pid > 0 && kill(server.pid, 0) == 0) serve_program_kill(&server);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(what_is_forgotten_is_in_no_memory, clean),
        cmocka_unit_test_teardown(what_was_moved_or_written_last_is_in_no_memory, clean),
    };
    folder = scratch_make();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    scratch_remove(folder);
    return failed;
}
