/* The HTTP face is fair: keys take turns and share the queue, and neither slow requests nor idle connections keep a health check out.
 * Order and numbers are compared, never times. */
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
#include "serve/server.h"
#include "support/scratch.h"
#include "support/serve_keys.h"

static serve_kit *kit;
static char *folder;


/* ---- Routes and helpers -------------------------------------------------------------------------------------------------- */

static atomic_int gate, began;
static pthread_mutex_t order_lock = PTHREAD_MUTEX_INITIALIZER;
static char order[256]; /* who was served, by the letter of ?q= */

static void hold(is_server *s, is_request *r)
{
    const char *q = is_request_query(r, "q");
    (void)s;
    pthread_mutex_lock(&order_lock);
    if (q && atomic_load(&began) < (int)sizeof order - 1) order[atomic_load(&began)] = *q;
    atomic_fetch_add(&began, 1); /* releases what was written */
    pthread_mutex_unlock(&order_lock);
    while (!atomic_load(&gate) && !__atomic_load_n(is_request_cancel(r), __ATOMIC_ACQUIRE)) usleep(1000);
    is_reply_json(r, 200, json_pack("{}"));
}

static const is_route routes[] = {
    { "GET", "/hold", hold, IS_FACE_OPENAI, IS_ROUTE_ENGINE | IS_ROUTE_ANSWERS },
    { "GET", "/encode", hold, IS_FACE_OPENAI, IS_ROUTE_ENGINE }, /* needs the engine, and is no answer */
    { "GET", "/short", hold, IS_FACE_OPENAI, 0 },
    { 0 },
};

static const char *keys_file(void) { return serve_keys_file(folder); }

static void fresh(void)
{
    memset(order, 0, sizeof order);
    atomic_store(&gate, 0), atomic_store(&began, 0);
    is_server_set_extra(routes);
}

static int ask(int key, const char *path, char q)
{
    int fd = serve_connect(kit);
    serve_sendf(fd, "GET %s?q=%c HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n\r\n", path, q, serve_keys[key]);
    return fd;
}

static void until_waiting(int n) { serve_until_waiting(kit, KEY_ADMIN_HEADER, n); }

static void expect_shown(const char *name, int n)
{
    char want[64];
    serve_reply r = serve_call(kit, "GET", "/metrics", KEY_ADMIN_HEADER, NULL);

    snprintf(want, sizeof want, "\n%s %d\n", name, n);
    if (!strstr(r.body, want)) fail_msg("not%s", want);
    serve_reply_free(&r);
}

static void until_began(int n)
{
    for (int i = 0; i < 10000 && atomic_load(&began) < n; i++) usleep(2000);
    assert_int_equal(atomic_load(&began), n);
}

static void stop(void) { serve_end(&kit); }

static int clean(void **state)
{
    (void)state;
    atomic_store(&gate, 1);
    serve_end_hard(&kit);
    return 0;
}

/* ---- Keys ---------------------------------------------------------------------------------------------------------------- */

static void a_key_that_asks_much_leaves_every_other_turn_to_others(void **state)
{
    enum { MANY = 20, FEW = 4 };
    int a[MANY], b[FEW], first;
    (void)state;
    fresh();
    kit = serve_start("parallel", "1", "keys", keys_file(), NULL);
    first = ask(0, "/hold", 'A');
    until_began(1);
    for (int i = 0; i < MANY; i++) a[i] = ask(0, "/hold", 'a');
    until_waiting(MANY);
    for (int i = 0; i < FEW; i++) b[i] = ask(1, "/hold", 'b');
    until_waiting(MANY + FEW);
    atomic_store(&gate, 1);
    serve_expect(first, 200);
    for (int i = 0; i < MANY; i++) serve_expect(a[i], 200);
    for (int i = 0; i < FEW; i++) serve_expect(b[i], 200);
    int before = 0, seen = 0; /* between two of b's there is at most one of a's */
    for (const char *p = order + 1; *p && seen < FEW; p++) {
        before = *p == 'b' ? 0 : before + 1;
        seen += *p == 'b';
        if (before > 1) fail_msg("served in the order %s", order);
    }
    assert_int_equal(seen, FEW);
    assert_int_equal(strlen(order), 1 + MANY + FEW);
    stop();
}

/* One that sends its next request when the last is answered does not overtake those that wait: nobody waits for ever. */
static void who_asks_one_thing_after_another_does_not_starve_who_waits(void **state)
{
    int a[6], b;
    (void)state;
    fresh();
    kit = serve_start("parallel", "1", "keys", keys_file(), NULL);
    b = ask(1, "/hold", 'b');
    until_began(1);
    for (int i = 0; i < 6; i++) a[i] = ask(0, "/hold", 'a');
    until_waiting(6);
    atomic_store(&gate, 1);
    for (int i = 0; i < 12; i++) {
        serve_expect(b, 200);
        b = ask(1, "/hold", 'b');
    }
    serve_expect(b, 200);
    for (int i = 0; i < 6; i++) serve_expect(a[i], 200);
    int run = 0; /* of b's while an a waited */
    for (const char *p = order, *last = strrchr(order, 'a'); p < last; p++) {
        run = *p == 'b' ? run + 1 : 0;
        if (run > 2) fail_msg("served in the order %s", order); /* two: its line may be before a's that came after it */
    }
    stop();
}

static void workers_are_shared_by_keys_too(void **state)
{
    int a[8], b[2];
    (void)state;
    fresh();
    kit = serve_start("parallel", "4", "keys", keys_file(), NULL);
    for (int i = 0; i < 4; i++) a[i] = ask(0, "/hold", 'A');
    until_began(4);
    for (int i = 4; i < 8; i++) a[i] = ask(0, "/hold", 'a');
    until_waiting(4);
    for (int i = 0; i < 2; i++) b[i] = ask(1, "/hold", 'b');
    until_waiting(6);
    close(a[0]); /* two workers become free, one after the other: both are b's, who has fewer */
    until_began(5);
    close(a[1]);
    until_began(6);
    if (strncmp(order, "AAAAbb", 6) != 0) fail_msg("served in the order %s", order);
    atomic_store(&gate, 1);
    for (int i = 2; i < 8; i++) serve_expect(a[i], 200);
    for (int i = 0; i < 2; i++) serve_expect(b[i], 200);
    stop();
}

static void a_full_queue_makes_room_for_the_key_that_has_less_of_it(void **state)
{
    int a[5], b[2];
    (void)state;
    fresh();
    kit = serve_start("parallel", "1", "max_queue", "4", "keys", keys_file(), NULL);
    a[0] = ask(0, "/hold", 'a');
    until_began(1);
    for (int i = 1; i < 5; i++) {
        a[i] = ask(0, "/hold", 'a');
        until_waiting(i);
    }
    serve_expect(ask(0, "/hold", 'a'), 429); /* its own fault */
    b[0] = ask(1, "/hold", 'b');
    serve_reply r = serve_read(a[4], "GET"); /* the newest goes */
    assert_int_equal(r.status, 429);
    assert_string_equal(json_string_value(json_object_get(json_object_get(r.json, "error"), "code")), "queue_full");
    assert_true(strtol(serve_head(&r, "Retry-After"), NULL, 10) >= 1);
    serve_reply_free(&r);
    close(a[4]);
    b[1] = ask(1, "/hold", 'b');
    serve_expect(a[3], 429);
    until_waiting(4);
    serve_expect(ask(1, "/hold", 'b'), 429); /* two each: neither has less */
    serve_expect(ask(0, "/hold", 'a'), 429);
    atomic_store(&gate, 1);
    for (int i = 0; i < 3; i++) serve_expect(a[i], 200);
    for (int i = 0; i < 2; i++) serve_expect(b[i], 200);
    stop();
}

/* ---- Health checks ------------------------------------------------------------------------------------------------------- */

static void health(void)
{
    static const char *const paths[] = { "/health", "/ready" };
    for (int i = 0; i < 2; i++) {
        serve_reply r = serve_call(kit, "GET", paths[i], NULL, NULL);
        if (r.status != 200) fail_msg("%s: %d %s", paths[i], r.status, r.body);
        serve_reply_free(&r);
    }
}

static void short_work_that_takes_long_keeps_no_health_check_out(void **state)
{
    int fds[20];
    (void)state;
    fresh();
    kit = serve_start(NULL);
    for (int i = 0; i < 20; i++) fds[i] = ask(0, "/short", 'x');
    until_began(8); /* all its workers */
    health();
    atomic_store(&gate, 1);
    for (int i = 0; i < 20; i++) serve_expect(fds[i], 200);
    stop();
}

static int connect_from(const char *address)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    struct sockaddr_in me = { .sin_family = AF_INET }, to = { .sin_family = AF_INET, .sin_port = htons((uint16_t)kit->port) };
    struct timeval patience = { .tv_sec = 20 };
    assert_true(fd >= 0);
    inet_pton(AF_INET, address, &me.sin_addr);
    inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    assert_int_equal(bind(fd, (struct sockaddr *)&me, sizeof me), 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

static void ask_on(int fd, const char *path, bool again)
{
    serve_sendf(fd, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", path);
    serve_reply r = serve_read(fd, "GET");
    if (r.status != 200) fail_msg("%s: %d %s", path, r.status, r.body);
    assert_true(!again || !r.closes);
    serve_reply_free(&r);
}

static int still_open(const int *fds, int n)
{
    int open = 0;
    char c;
    for (int i = 0; i < n; i++) open += recv(fds[i], &c, 1, MSG_DONTWAIT) < 0;
    return open;
}

static void idle_connections_keep_nobody_out_of(const char *host)
{
    enum { FLOOD = 300, MAX = 16 };
    static int fds[FLOOD];
    fresh();
    kit = serve_start("host", host, "keys", keys_file(), "max_connections", "16", NULL); /* with the spare ones 48 */
    int other = connect_from("127.0.0.2"), busy = ask(0, "/hold", 'x');
    ask_on(other, "/health", true);
    until_began(1);
    for (int i = 0; i < FLOOD; i++) {
        fds[i] = connect_from("127.0.0.1");
        if (i % 3 == 1) serve_sendf(fds[i], "GET /hea"); /* half a request line, half a head */
        if (i % 3 == 2) serve_sendf(fds[i], "GET /health HTTP/1.1\r\nHost: loc");
        if (i % 50 == 49) health();
    }
    health();
    ask_on(other, "/health", true); /* who has one connection keeps it, however long it was idle */
    atomic_store(&gate, 1);
    serve_expect(busy, 200); /* what is at work is never cut */
    serve_expect(ask(0, "/short", 'x'), 200);
    int open = FLOOD;
    for (int wait = 0; wait < 2000 && open > MAX; wait++, usleep(10000)) open = still_open(fds, FLOOD);
    assert_true(open > 0 && open <= MAX); /* and no more were cut than had to */
    for (int i = 0; i < FLOOD; i++) close(fds[i]);
    close(other);
    stop();
}

static void idle_connections_keep_nobody_out(void **state)
{
    (void)state;
    idle_connections_keep_nobody_out_of("127.0.0.1");
}

/* All of IPv4 is one /64 there, and yet many clients. */
static void ipv4_clients_of_an_ipv6_listener_are_told_apart(void **state)
{
    struct sockaddr_in6 at = { .sin6_family = AF_INET6, .sin6_addr = IN6ADDR_ANY_INIT };
    int fd = socket(AF_INET6, SOCK_STREAM, 0);
    bool none = fd < 0 || bind(fd, (struct sockaddr *)&at, sizeof at) != 0; /* this machine has none */
    (void)state;
    if (fd >= 0) close(fd);
    if (none) skip();
    idle_connections_keep_nobody_out_of("::");
}

/* Where nothing is idle the bound holds for those who want something, and a health check is still answered. It comes before the others
 * were read (they come in one burst, all are accepted first): who was there before it is none of those beyond the bound. */
static void beyond_the_bound_a_health_check_is_answered(void **state)
{
    enum { MAX = 4 };
    int fds[MAX];
    (void)state;
    fresh();
    kit = serve_start("max_connections", "4", "parallel", "2", NULL);
    for (int i = 0; i < MAX; i++) fds[i] = ask(0, "/hold", 'x');
    health();
    serve_reply r = serve_call(kit, "GET", "/short", NULL, NULL);
    assert_int_equal(r.status, 503);
    assert_true(r.closes && serve_head(&r, "Retry-After"));
    serve_reply_free(&r);
    atomic_store(&gate, 1);
    for (int i = 0; i < MAX; i++) serve_expect(fds[i], 200);
    stop();
}

/* ---- What is shown ------------------------------------------------------------------------------------------------------- */

static void only_answers_run_and_wait(void **state)
{
    int others[4], answers[3];
    (void)state;
    fresh();
    kit = serve_start("parallel", "2", "keys", keys_file(), NULL);
    answers[0] = ask(0, "/hold", 'x');
    until_began(1);
    others[0] = ask(0, "/encode", 'e');
    until_began(2);
    for (int i = 1; i < 4; i++) others[i] = ask(0, "/encode", 'e');
    for (int i = 1; i < 3; i++) answers[i] = ask(1, "/hold", 'x');
    until_waiting(2); /* five wait */
    expect_shown("inferscale_requests_running", 1); /* two run */
    atomic_store(&gate, 1);
    for (int i = 0; i < 4; i++) serve_expect(others[i], 200);
    for (int i = 0; i < 3; i++) serve_expect(answers[i], 200);
    until_waiting(0);
    stop();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(only_answers_run_and_wait, clean),
        cmocka_unit_test_teardown(a_key_that_asks_much_leaves_every_other_turn_to_others, clean),
        cmocka_unit_test_teardown(who_asks_one_thing_after_another_does_not_starve_who_waits, clean),
        cmocka_unit_test_teardown(workers_are_shared_by_keys_too, clean),
        cmocka_unit_test_teardown(a_full_queue_makes_room_for_the_key_that_has_less_of_it, clean),
        cmocka_unit_test_teardown(short_work_that_takes_long_keeps_no_health_check_out, clean),
        cmocka_unit_test_teardown(idle_connections_keep_nobody_out, clean),
        cmocka_unit_test_teardown(ipv4_clients_of_an_ipv6_listener_are_told_apart, clean),
        cmocka_unit_test_teardown(beyond_the_bound_a_health_check_is_answered, clean),
    };
    folder = scratch_make();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    scratch_remove(folder);
    return failed;
}
