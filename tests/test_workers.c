/* test_workers.c - what workers on other hosts fetch and bring: with a pass the very bytes and their seal, without one nothing, whoever asks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/mem.h"
#include "kv/pass.h"
#include "support/scratch.h"
#include "support/serve_kit.h"
#include "support/vllm_fake.h"

#define ADMIN "isk_test_0123456789abcdef"
#define NAME "ab0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcd"

static serve_kit *kit;
static vllm_fake *fake;
static char *home;
static uint8_t secret[IS_KEY_BYTES];

/* ---- One request ------------------------------------------------------------------------------------------------------------ */

typedef struct ask {
    const char *method, *path, *range, *body;
    size_t n;
    const char *more;               /* further headers */
    const char *signed_method, *signed_path, *signed_body;
    int64_t late;                   /* seconds that the pass is off */
    bool no_pass, foreign;
    is_pass pass;                   /* out */
} ask;

static serve_reply go(ask *a)
{
    const is_pass_for of = { a->signed_method ? a->signed_method : a->method, a->signed_path ? a->signed_path : a->path, a->range ? a->range : "" };
    const char *body = a->signed_body ? a->signed_body : a->body ? a->body : "";
    uint8_t key[IS_KEY_BYTES];
    char text[IS_PASS_TEXT];
    serve_reply r;
    int64_t now = (int64_t)time(NULL);
    int fd = serve_connect(kit);

    memcpy(key, secret, sizeof key);
    key[5] ^= a->foreign;
    assert_int_equal(is_pass_write(key, &of, body, a->signed_body ? strlen(body) : a->n, now + a->late, text), INFERSCALE_OK);
    assert_int_equal(is_pass_read(key, &of, text, now + a->late, &a->pass), INFERSCALE_OK);
    serve_sendf(fd, "%s %s HTTP/1.1\r\nHost: localhost\r\n%s", a->method, a->path, a->more ? a->more : "");
    if (!a->no_pass) serve_sendf(fd, "X-Inferscale-Pass: %s\r\n", text);
    if (a->range) serve_sendf(fd, "Content-Range: %s\r\n", a->range);
    if (a->body) serve_sendf(fd, "Content-Length: %zu\r\n", a->n);
    serve_send(fd, "\r\n", 2);
    if (a->body) serve_send(fd, a->body, a->n);
    r = serve_read(fd, a->method);
    close(fd);
    return r;
}

static int status(ask a)
{
    serve_reply r = go(&a);
    int s = r.status;

    serve_reply_free(&r);
    return s;
}

/* ---- Segments ----------------------------------------------------------------------------------------------------------------- */

static void put_file(const char *folder, const char *name, const uint8_t *p, size_t n)
{
    char path[512];
    FILE *f;

    snprintf(path, sizeof path, "%s/%s/%.2s", home, folder, name);
    assert_int_equal(is_file_mkdirs(is_fs_default(), path), INFERSCALE_OK);
    snprintf(path, sizeof path, "%s/%s/%.2s/%s.seg", home, folder, name, name);
    f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(p, 1, n, f), n);
    fclose(f);
}

static void the_bytes_and_their_seal(void **state)
{
    static const size_t sizes[] = { 0, 1, 31, 32, 33, 65535, (256 << 10) - 1, 256 << 10, (256 << 10) + 1, 3000001 };
    uint8_t *p = malloc(3000001);

    (void)state;
    is_random(p, 3000001);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int where = 0; where < 2; where++) {
            ask a = { .method = "GET", .path = where ? "/inferscale/kv/heads/" NAME : "/inferscale/kv/vault/" NAME };
            uint8_t seal[IS_HASH_BYTES];
            serve_reply r;
            is_hash *h;

            put_file(where ? "vllm/heads" : "vault", NAME, p, sizes[i]);
            r = go(&a);
            assert_int_equal(r.status, 200);
            assert_true(r.whole);
            assert_int_equal(r.n, sizes[i] + IS_HASH_BYTES);
            assert_memory_equal(r.body, p, sizes[i]);
            assert_int_equal(is_pass_seal(secret, &a.pass, &h), INFERSCALE_OK);
            is_hash_bytes(h, p, sizes[i]);
            is_hash_end(h, seal);
            assert_memory_equal(r.body + sizes[i], seal, sizeof seal);
            serve_reply_free(&r);
            assert_int_equal(status((ask){ .method = "HEAD", .path = a.path }), 200);
            a = (ask){ .method = "HEAD", .path = where ? "/inferscale/kv/vault/" NAME : "/inferscale/kv/heads/" NAME };
            if (i == 0 && where == 0) assert_int_equal(status(a), 404); /* each folder is its own */
        }
    free(p);
}

static void only_with_a_pass_for_this_request(void **state)
{
    static const char *const path = "/inferscale/kv/vault/" NAME, *const other = "/inferscale/kv/heads/" NAME,
                      *const key = "Authorization: Bearer " ADMIN "\r\n", *const spool = "/inferscale/kv/spool/0123456789abcdef0123456789abcdef.0.0";
    const ask refused[] = {
        { .method = "GET", .path = path, .no_pass = true },
        { .method = "GET", .path = path, .no_pass = true, .more = key },
        { .method = "HEAD", .path = path, .no_pass = true, .more = key },
        { .method = "GET", .path = path, .foreign = true, .more = key },
        { .method = "GET", .path = path, .no_pass = true, .more = "X-Inferscale-Pass: \r\n" },
        { .method = "GET", .path = path, .no_pass = true, .more = "X-Inferscale-Pass: 1.0.0.0.0\r\n" },
        { .method = "GET", .path = path, .signed_path = other },
        { .method = "GET", .path = path, .signed_method = "HEAD" },
        { .method = "HEAD", .path = path, .signed_method = "GET" },
        { .method = "GET", .path = path, .late = IS_PASS_SKEW + 20 },
        { .method = "GET", .path = path, .late = -IS_PASS_SKEW - 20 },
        { .method = "PUT", .path = spool, .range = "bytes 0-3/4", .body = "rows", .n = 4, .no_pass = true, .more = key },
        { .method = "PUT", .path = spool, .range = "bytes 0-3/4", .body = "rows", .n = 4, .foreign = true },
        { .method = "PUT", .path = spool, .range = "bytes 0-3/4", .body = "rows", .n = 4, .signed_body = "rowz" },
        { .method = "PUT", .path = spool, .range = "bytes 0-3/4", .body = "rows", .n = 4, .signed_body = "" },
    };

    (void)state;
    put_file("vault", NAME, (const uint8_t *)"rows", 4);
    assert_int_equal(status((ask){ .method = "GET", .path = path }), 200);
    assert_int_equal(status((ask){ .method = "GET", .path = path, .late = IS_PASS_SKEW - 20 }), 200);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (status(refused[i]) != 401) fail_msg("request %zu is let in", i);
    /* A pass is no key, and two of them are none. */
    assert_int_equal(status((ask){ .method = "GET", .path = "/inferscale/usage" }), 401);
    assert_int_equal(status((ask){ .method = "GET", .path = path, .more = "X-Inferscale-Pass: x\r\n" }), 400);
    assert_int_equal(status((ask){ .method = "DELETE", .path = path }), 405);
    assert_int_equal(status((ask){ .method = "GET", .path = spool }), 405);
}

static void names_lead_nowhere_else(void **state)
{
    static const char *const names[] = { "..%2f..%2fbank.sqlite", "..%2Fvllm%2Fsecret", "%2e%2e", NAME "0", "AB0123456789ABCDEF0123456789ABCDEF0123456789ABCDEF0123456789ABCD",
                                         "ab", "ab0123456789abcdef0123456789abcdef0123456789abcdef0123456789abc%2f", "%00" NAME, "-" };

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[256];
        int s;

        snprintf(path, sizeof path, "/inferscale/kv/vault/%s", names[i]);
        s = status((ask){ .method = "GET", .path = path });
        if (s != 400 && s != 404) fail_msg("%s: %d", path, s);
        snprintf(path, sizeof path, "/inferscale/kv/spool/%s", names[i]);
        s = status((ask){ .method = "PUT", .path = path, .range = "bytes 0-3/4", .body = "rows", .n = 4 });
        if (s != 400 && s != 404) fail_msg("%s: %d", path, s);
    }
    assert_int_equal(status((ask){ .method = "GET", .path = "/inferscale/kv/vault/" NAME "/x" }), 404);
}

/* ---- Rows --------------------------------------------------------------------------------------------------------------------- */

static size_t bring_all(void)
{
    is_buf names = IS_BUF_INIT;
    size_t n_files = 0;
    char cmd[700], name[128];
    FILE *list;

    snprintf(cmd, sizeof cmd, "ls '%s'", fake->elsewhere);
    list = popen(cmd, "r");
    while (fgets(name, sizeof name, list)) {
        char path[700], target[200];
        uint8_t *p;
        size_t n;

        name[strcspn(name, "\n")] = 0;
        if (strstr(name, ".part")) continue;
        snprintf(path, sizeof path, "%s/%s", fake->elsewhere, name);
        snprintf(target, sizeof target, "/inferscale/kv/spool/%s", name);
        assert_int_equal(is_file_read_all(is_fs_default(), path, 1 << 24, &p, &n), INFERSCALE_OK);
        unlink(path);
        for (size_t at = 0, step = n / 3 + 1; at < n; at += step) {
            size_t m = n - at < step ? n - at : step;
            char range[80];
            ask a = { .method = "PUT", .path = target, .range = range, .body = (const char *)p + at, .n = m };

            snprintf(range, sizeof range, "bytes %zu-%zu/%zu", at, at + m - 1, n);
            if (at) { /* what stands before it has come, what stands behind it has not */
                ask later = a;
                char far_range[80];

                snprintf(far_range, sizeof far_range, "bytes %zu-%zu/%zu", n - 1, n - 1, n);
                later.range = far_range;
                later.n = 1;
                if (at + m < n) assert_int_equal(status(later), 409);
            }
            assert_int_equal(status(a), 200);
        }
        is_free(p);
        n_files++;
    }
    pclose(list);
    is_buf_free(&names);
    return n_files;
}

static void captures_are_made_of_what_is_brought(void **state)
{
    size_t brought = 0;
    bool done = false;
    serve_reply r;

    (void)state;
    fake->elsewhere = scratch_make();
    r = serve_call(kit, "POST", "/memories", "Authorization: Bearer " ADMIN "\r\n", "{\"messages\": [{\"role\": \"user\", \"content\": \"Anna likes tea.\"}], "
                   "\"user_id\": \"anna\", \"infer\": false}");
    assert_int_equal(r.status, 200);
    serve_reply_free(&r);
    for (int k = 0; k < 400 && !done; k++) {
        brought += bring_all();
        r = serve_call(kit, "GET", "/inferscale/encode", "Authorization: Bearer " ADMIN "\r\n", NULL);
        assert_int_equal(r.status, 200);
        done = json_integer_value(json_object_get(r.json, "facts_encoded")) == 1 && !json_integer_value(json_object_get(r.json, "n_unencoded"));
        if (!done && k == 399) fail_msg("%zu files were brought, and: %s", brought, r.body);
        serve_reply_free(&r);
        usleep(50000);
    }
    assert_true(done);
    assert_true(brought > 0);
    r = serve_call(kit, "GET", "/inferscale/usage", "Authorization: Bearer " ADMIN "\r\n", NULL);
    assert_int_equal(r.status, 200);
    if (!strstr(r.body, "anna")) fail_msg("%s", r.body);
    serve_reply_free(&r);
    scratch_remove(fake->elsewhere);
    fake->elsewhere = NULL;
    assert_int_equal(status((ask){ .method = "PUT", .path = "/inferscale/kv/spool/0123456789abcdef0123456789abcdef.0.0", .range = "bytes 0-3/4",
                                   .body = "rows", .n = 4 }), 404);
}

static void an_engine_without_workers_has_none_of_it(void **state)
{
    (void)state;
    serve_stop(kit);
    kit = serve_start("embedder", "mock", NULL);
    assert_int_equal(status((ask){ .method = "GET", .path = "/inferscale/kv/vault/" NAME }), 404);
    assert_int_equal(status((ask){ .method = "GET", .path = "/inferscale/kv/vault/" NAME, .no_pass = true }), 404);
}

/* ---- All ------------------------------------------------------------------------------------------------------------------------ */

static int start(void **state)
{
    char path[512], hex[65] = "";
    FILE *f;

    (void)state;
    home = scratch_make();
    snprintf(path, sizeof path, "%s/keys", home);
    f = fopen(path, "w");
    assert_non_null(f);
    fputs(ADMIN " admin\n", f);
    fclose(f);
    chmod(path, 0600);
    fake = fake_start(home);
    kit = serve_start("home", home, "engine", "vllm", "upstream", fake->url, "embedder", "mock", "keys", path, NULL);
    snprintf(path, sizeof path, "%s/vllm/secret", home);
    f = fopen(path, "r");
    assert_non_null(f);
    assert_int_equal(fread(hex, 1, 64, f), 64);
    fclose(f);
    for (int i = 0; i < 32; i++) {
        unsigned v;

        assert_int_equal(sscanf(hex + 2 * i, "%2x", &v), 1);
        secret[i] = (uint8_t)v;
    }
    return 0;
}

static int stop(void **state)
{
    (void)state;
    serve_stop(kit);
    fake_stop(fake);
    scratch_remove(home);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bytes_and_their_seal),
        cmocka_unit_test(only_with_a_pass_for_this_request),
        cmocka_unit_test(names_lead_nowhere_else),
        cmocka_unit_test(captures_are_made_of_what_is_brought),
        cmocka_unit_test(an_engine_without_workers_has_none_of_it),
    };

    return cmocka_run_group_tests(tests, start, stop);
}
