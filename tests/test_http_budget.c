/* One client cannot use up what all share: bodies, connections, waiting requests, replies and streams that nobody reads. Who is
 * answered is counted, never how fast. */
#include <arpa/inet.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "serve/http.h"
#include "serve/http_run.h"
#include "serve/server.h"
#include "support/scratch.h"
#include "support/serve_keys.h"

enum { ANNA = KEY_ANNA, BEN = KEY_BEN, ADMIN = KEY_ADMIN, NOBODY = KEY_NONE };
enum { BIG = 16000000 };

static serve_kit *kit;
static char *folder;
static atomic_int gate, began, cancelled;

/* ---- Routes and helpers -------------------------------------------------------------------------------------------------- */

static is_server *volatile server; /* of the route that ran last */

static void hold(is_server *s, is_request *r)
{
    server = s;
    atomic_fetch_add(&began, 1);
    while (!atomic_load(&gate) && !__atomic_load_n(is_request_cancel(r), __ATOMIC_ACQUIRE)) usleep(1000);
    is_reply_json(r, 200, json_pack("{}"));
}

static void take(is_server *s, is_request *r)
{
    size_t n;
    (void)s;
    is_request_body(r, &n);
    is_reply_json(r, 200, json_pack("{s:I}", "n", (json_int_t)n));
}

/* More than fits in a socket. */
static void big(is_server *s, is_request *r)
{
    char *text = calloc(1, BIG);
    (void)s;
    assert_non_null(text);
    atomic_fetch_add(&began, 1);
    is_reply_bytes(r, 200, "text/plain", text, BIG);
    free(text);
}

/* Tells for as long as somebody listens. */
static void endless(is_server *s, is_request *r)
{
    static const char piece[4096] = ": piece";
    (void)s;
    atomic_fetch_add(&began, 1);
    is_stream_begin(r, 200, "text/event-stream");
    while (is_stream_write(r, piece, sizeof piece))
        if (atomic_load(&gate)) break;
    is_stream_end(r);
    atomic_fetch_add(&cancelled, 1);
}

static const is_route routes[] = {
    { "GET", "/hold", hold, IS_FACE_OPENAI, IS_ROUTE_ENGINE | IS_ROUTE_ANSWERS },
    { "GET", "/endless", endless, IS_FACE_OPENAI, IS_ROUTE_ENGINE | IS_ROUTE_ANSWERS },
    { "GET", "/short", hold, IS_FACE_OPENAI, 0 },
    { "GET", "/big", big, IS_FACE_OPENAI, 0 },
    { "POST", "/take", take, IS_FACE_OPENAI, 0 },
    { 0 },
};

static const char *keys_file(void) { return serve_keys_file(folder); }

static void fresh(void)
{
    atomic_store(&gate, 0), atomic_store(&began, 0), atomic_store(&cancelled, 0);
    is_server_set_extra(routes);
}

static int connect_from(const char *address)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in me = { .sin_family = AF_INET }, to = { .sin_family = AF_INET, .sin_port = htons((uint16_t)kit->port) };
    struct timeval patience = { .tv_sec = 20 };
    assert_true(fd >= 0);
    inet_pton(AF_INET, address, &me.sin_addr);
    inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    assert_int_equal(bind(fd, (struct sockaddr *)&me, sizeof me), 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

/* A head, with `said` bytes of body to come, or none. */
static int head_from(const char *address, int key, const char *method, const char *path, size_t said)
{
    int fd = connect_from(address);
    serve_sendf(fd, "%s %s HTTP/1.1\r\nHost: localhost\r\n", method, path);
    if (key != NOBODY) serve_sendf(fd, "Authorization: Bearer %s\r\n", serve_keys[key]);
    if (said) serve_sendf(fd, "Content-Length: %zu\r\n", said);
    serve_sendf(fd, "\r\n");
    return fd;
}

static int ask(int key, const char *path) { return head_from("127.0.0.1", key, "GET", path, 0); }

static int body(int key, size_t said, size_t sent)
{
    int fd = head_from("127.0.0.1", key, "POST", "/take", said);
    char *text = calloc(1, sent + 1);
    assert_non_null(text);
    serve_send(fd, text, sent);
    free(text);
    return fd;
}

static int status_of(int fd)
{
    serve_reply r = serve_read(fd, "GET");
    int status = r.status;
    serve_reply_free(&r);
    close(fd);
    return status;
}

/* Of those that have heard something, all heard 503, and only once; closes all. */
static int count_refused(int *fds, int n)
{
    int refused = 0;
    for (int i = 0; i < n; i++) {
        char text[4096];
        ssize_t got = recv(fds[i], text, sizeof text - 1, MSG_DONTWAIT), more = 0;
        if (got > 0) {
            while (got + more < (ssize_t)sizeof text - 1 &&
                   (more = recv(fds[i], text + got, sizeof text - 1 - (size_t)got, 0)) > 0)
                got += more;
            text[got] = '\0';
            if (strncmp(text, "HTTP/1.1 503", 12) != 0 || strstr(text + 1, "HTTP/1.1")) fail_msg("heard %s", text);
            assert_non_null(strstr(text, "Retry-After"));
            refused++;
        }
        close(fds[i]);
    }
    return refused;
}

static void until(atomic_int *what, int n)
{
    for (int i = 0; i < 10000 && atomic_load(what) < n; i++) usleep(2000);
    assert_true(atomic_load(what) >= n);
}

static void stop(void) { serve_end(&kit); }

static int clean(void **state)
{
    (void)state;
    atomic_store(&gate, 1);
    serve_end_hard(&kit);
    return 0;
}

/* ---- Bodies -------------------------------------------------------------------------------------------------------------- */

/* 64 MiB are read at a time, of bodies beyond 64 KiB. */
static void long_bodies_of_one_key_keep_no_other_key_out(void **state)
{
    int a[4];
    (void)state;
    fresh();
    kit = serve_start("keys", keys_file(), NULL);
    for (int i = 0; i < 4; i++) a[i] = body(ANNA, BIG + 100000, BIG);
    serve_expect(body(ANNA, BIG, BIG), 503); /* her own fault: which also says that the four were read */
    for (int i = 0; i < 10; i++) { /* a body of up to 64 KiB always has room, hers too */
        serve_expect(body(BEN, 50, 50), 200);
        serve_expect(body(ADMIN, 64 << 10, 64 << 10), 200);
        serve_expect(body(ANNA, 64 << 10, 64 << 10), 200);
    }
    serve_expect(body(BEN, BIG, BIG), 200); /* one of hers makes room for it */
    serve_expect(body(ADMIN, BIG, BIG), 200);
    assert_int_equal(count_refused(a, 4), 1);
    serve_expect(body(ANNA, BIG, BIG), 200);
    stop();
}

/* Wait for a worker with it as well: who runs is counted no more. */
static void long_bodies_that_wait_make_room_too(void **state)
{
    int a[12];
    (void)state;
    fresh();
    kit = serve_start("keys", keys_file(), NULL);
    for (int i = 0; i < 8; i++) a[i] = ask(ANNA, "/short"); /* all workers of short requests */
    until(&began, 8);
    for (int i = 8; i < 12; i++) a[i] = body(ANNA, BIG, BIG);
    serve_expect(body(ANNA, BIG, BIG), 503);
    int b = body(BEN, BIG, BIG), c = body(ADMIN, 100, 100);
    serve_expect(a[11], 503); /* the newest */
    atomic_store(&gate, 1);
    serve_expect(b, 200);
    serve_expect(c, 200);
    for (int i = 0; i < 11; i++) serve_expect(a[i], 200);
    stop();
}

/* ---- Connections --------------------------------------------------------------------------------------------------------- */

/* Behind a proxy all come from one address: keys tell them apart. */
static void connections_of_one_key_within_bodies_keep_no_other_key_out(void **state)
{
    enum { MANY = 60, MAX = 16 };
    int a[MANY];
    (void)state;
    fresh();
    kit = serve_start("keys", keys_file(), "max_connections", "16", "read_s", "600", NULL);
    int kept = ask(BEN, "/hold");
    until(&began, 1);
    for (int i = 0; i < MANY; i++) a[i] = body(ANNA, 1000, 1);
    for (int i = 0; i < 20; i++) {
        serve_expect(body(BEN, 50, 50), 200);
        serve_expect(body(ADMIN, 50, 50), 200);
    }
    atomic_store(&gate, 1);
    serve_expect(kept, 200); /* nothing of his was touched */
    assert_true(count_refused(a, MANY) >= MANY - MAX);
    stop();
}

static void connections_of_one_address_within_bodies_keep_no_other_address_out(void **state)
{
    enum { MANY = 60 };
    int a[MANY];
    (void)state;
    fresh();
    kit = serve_start("max_connections", "16", "read_s", "600", NULL);
    for (int i = 0; i < 20; i++) a[i] = body(NOBODY, 1000, 1);
    for (int i = 0; i < 20; i++) {
        int fd = head_from("127.0.0.2", NOBODY, "POST", "/take", 4);
        serve_sendf(fd, "tiny");
        serve_expect(fd, 200);
    }
    for (int i = 0; i < 20; i++) close(a[i]);
    stop();
}

/* Each connection has a request that waits for a worker: the newest of them goes. */
static void connections_of_one_key_that_wait_keep_no_other_key_out(void **state)
{
    enum { MAX = 16 };
    int a[MAX], refused = 0;
    (void)state;
    fresh();
    kit = serve_start("keys", keys_file(), "max_connections", "16", NULL);
    for (int i = 0; i < MAX; i++) a[i] = ask(ANNA, "/short");
    until(&began, 8);
    for (int i = 0; i < 5000 && is_http_in_flight(server) < MAX; i++) usleep(2000); /* all are read */
    int b = ask(BEN, "/short");
    for (int i = 0; i < 5000 && is_http_in_flight(server) < MAX + 1; i++) usleep(2000);
    atomic_store(&gate, 1);
    serve_expect(b, 200);
    for (int i = 0; i < MAX; i++) refused += status_of(a[i]) == 503;
    assert_int_equal(refused, 1);
    stop();
}

static void replies_that_nobody_reads_keep_no_other_key_out(void **state)
{
    enum { MAX = 16 };
    int a[MAX], status = 0;
    (void)state;
    fresh();
    kit = serve_start("keys", keys_file(), "max_connections", "16", "idle_s", "600", NULL);
    for (int i = 0; i < MAX; i++) a[i] = ask(ANNA, "/big");
    until(&began, MAX);
    for (int i = 0; i < 200 && status != 200; i++) {
        status = status_of(body(BEN, 50, 50));
        if (status != 200) usleep(50000); /* they may be read yet */
    }
    assert_int_equal(status, 200);
    for (int i = 0; i < MAX; i++) close(a[i]);
    stop();
}

/* A metric by its whole name, 0 where it is not there. */
static double metric(const char *name)
{
    static const char admin[] = KEY_ADMIN_HEADER;
    serve_reply r = serve_call(kit, "GET", "/metrics", admin, NULL);
    const char *at = r.status == 200 ? strstr(r.body, name) : NULL;
    double x = 0;
    while (at && at != r.body && at[-1] != '\n') at = strstr(at + 1, name);
    if (at) sscanf(at + strlen(name), " %lf", &x);
    serve_reply_free(&r);
    return x;
}

/* 64 MiB of replies beyond 64 KiB each are kept for clients that do not read them. Those of the
 * key that has most go; what another key has, and whoever reads, is not touched. */
static void replies_that_nobody_reads_take_no_more_than_their_budget(void **state)
{
    enum { MANY = 8, MOST = (64 << 20) / (BIG - (64 << 10)) };
    static const char unread[] = "inferscale_http_refused_total{why=\"unread\"}";
    static const char bytes[] = "inferscale_http_reply_bytes";
    const double kept = (double)MOST * (BIG - (64 << 10));
    int a[MANY], b, went = 0;
    (void)state;
    fresh();
    kit = serve_start("keys", keys_file(), "idle_s", "600", NULL);
    b = ask(BEN, "/big");
    until(&began, 1);
    for (int i = 0; i < MANY; i++) a[i] = ask(ANNA, "/big");
    until(&began, MANY + 1);
    for (int i = 0; i < 400 && metric(unread) < MANY + 1 - MOST; i++) usleep(50000);
    assert_true(metric(unread) == MANY + 1 - MOST);
    for (int i = 0; i < 400 && metric(bytes) != kept; i++) usleep(50000);
    assert_true(metric(bytes) == kept);
    serve_expect(b, 200);
    for (int i = 0; i < MANY; i++) {
        serve_reply r = serve_read(a[i], "GET");
        went += !r.whole;
        serve_reply_free(&r);
        close(a[i]);
    }
    assert_int_equal(went, MANY + 1 - MOST);
    for (int i = 0; i < 400 && metric(bytes) > 0; i++) usleep(50000);
    assert_true(metric(bytes) == 0);
    stop();
}

/* ---- Workers ------------------------------------------------------------------------------------------------------------- */

/* A test's client gives up after 20 s; a stream that nobody reads may last for 30 s where nobody else waits. */
static void streams_that_nobody_reads_keep_no_other_key_out(void **state)
{
    int a[2];
    (void)state;
    fresh();
    kit = serve_start("parallel", "2", "keys", keys_file(), NULL);
    for (int i = 0; i < 2; i++) a[i] = ask(ANNA, "/endless");
    until(&began, 2);
    assert_int_equal(atomic_load(&cancelled), 0);
    int b = ask(BEN, "/hold");
    until(&began, 3);
    atomic_store(&gate, 1);
    serve_expect(b, 200);
    for (int i = 0; i < 2; i++) close(a[i]);
    stop();
}

/* Without keys the queue's places and turns are shared by address. */
static void a_queue_filled_from_one_address_has_places_for_others(void **state)
{
    int a[5], b;
    (void)state;
    fresh();
    kit = serve_start("parallel", "1", "max_queue", "4", NULL);
    a[0] = ask(NOBODY, "/hold");
    until(&began, 1);
    for (int i = 1; i < 5; i++) {
        a[i] = ask(NOBODY, "/hold");
        serve_until_waiting(kit, NULL, i);
    }
    serve_expect(ask(NOBODY, "/hold"), 429);
    b = head_from("127.0.0.2", NOBODY, "GET", "/hold", 0);
    serve_expect(a[4], 429);
    atomic_store(&gate, 1);
    serve_expect(b, 200);
    for (int i = 0; i < 4; i++) serve_expect(a[i], 200);
    stop();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(long_bodies_of_one_key_keep_no_other_key_out, clean),
        cmocka_unit_test_teardown(long_bodies_that_wait_make_room_too, clean),
        cmocka_unit_test_teardown(connections_of_one_key_within_bodies_keep_no_other_key_out, clean),
        cmocka_unit_test_teardown(connections_of_one_address_within_bodies_keep_no_other_address_out, clean),
        cmocka_unit_test_teardown(connections_of_one_key_that_wait_keep_no_other_key_out, clean),
        cmocka_unit_test_teardown(replies_that_nobody_reads_keep_no_other_key_out, clean),
        cmocka_unit_test_teardown(replies_that_nobody_reads_take_no_more_than_their_budget, clean),
        cmocka_unit_test_teardown(streams_that_nobody_reads_keep_no_other_key_out, clean),
        cmocka_unit_test_teardown(a_queue_filled_from_one_address_has_places_for_others, clean),
    };
    folder = scratch_make();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    scratch_remove(folder);
    return failed;
}
