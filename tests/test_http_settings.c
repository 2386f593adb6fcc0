/* The HTTP face as it is set up: TLS, CORS, further host names, IPv6. */
#include <arpa/inet.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>
#include <curl/curl.h>

#include "serve/http.h"
#include "serve/server.h"
#include "support/scratch.h"
#include "support/serve_kit.h"

static char *folder;

static void echo(is_server *s, is_request *r)
{
    size_t n;
    (void)s;
    is_request_body(r, &n);
    is_reply_json(r, 200, json_pack("{s:I}", "n", (json_int_t)n));
}

static void stream(is_server *s, is_request *r)
{
    (void)s;
    is_stream_begin(r, 200, "text/event-stream");
    for (int i = 0; i < 1000; i++) is_stream_event(r, json_pack("{s:i}", "i", i));
    is_stream_end(r);
}

static const is_route routes[] = {
    { "GET", "/echo", echo, IS_FACE_OPENAI, 0 },
    { "POST", "/echo", echo, IS_FACE_OPENAI, 0 },
    { "GET", "/stream", stream, IS_FACE_OPENAI, IS_ROUTE_ENGINE },
    { 0 },
};

/* ---- TLS ----------------------------------------------------------------------------------------------------------------- */

static size_t count_bytes(char *p, size_t size, size_t n, void *ctx)
{
    (void)p;
    *(size_t *)ctx += size * n;
    return size * n;
}

static CURLcode fetch(const serve_kit *k, const char *cert, const char *path, const char *body, long *status, size_t *n)
{
    CURL *c = curl_easy_init();
    char url[100];
    snprintf(url, sizeof url, "https://localhost:%d%s", k->port, path);
    *n = 0;
    *status = 0;
    curl_easy_setopt(c, CURLOPT_URL, url);
    curl_easy_setopt(c, CURLOPT_PROXY, "");
    curl_easy_setopt(c, CURLOPT_CAINFO, cert);
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, count_bytes);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, n);
    curl_easy_setopt(c, CURLOPT_TIMEOUT, 20L);
    curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c, CURLOPT_RESOLVE, NULL);
    if (body) curl_easy_setopt(c, CURLOPT_COPYPOSTFIELDS, body);
    CURLcode rc = curl_easy_perform(c);
    curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, status);
    curl_easy_cleanup(c);
    return rc;
}

static void https_is_spoken_with_a_certificate_and_http_is_not(void **state)
{
    char cert[600], key[600], command[2000], *body = malloc(300001);
    long status;
    size_t n;
    snprintf(cert, sizeof cert, "%s/cert.pem", folder);
    snprintf(key, sizeof key, "%s/key.pem", folder);
    snprintf(command, sizeof command,
             "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost -addext "
             "subjectAltName=DNS:localhost -keyout %s -out %s 2>%s/log",
             key, cert, folder);
    if (system(command) != 0) fail_msg("no certificate could be made; apt-get install openssl");
    is_server_set_extra(routes);
    serve_kit *k = serve_start("tls_cert", cert, "tls_key", key, "host", "localhost", "read_s", "2", NULL);
    assert_int_equal(fetch(k, cert, "/health", NULL, &status, &n), CURLE_OK);
    assert_int_equal(status, 200);
    memset(body, 'x', 300000);
    body[300000] = '\0';
    assert_int_equal(fetch(k, cert, "/echo", body, &status, &n), CURLE_OK);
    assert_int_equal(status, 200);
    assert_int_equal(fetch(k, cert, "/stream", NULL, &status, &n), CURLE_OK);
    assert_true(n > 1000 * 15);
    int fd = serve_connect(k); /* plain words get no reply, and do no harm */
    serve_sendf(fd, "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_true(serve_ended(fd, 10000));
    close(fd);
    fd = serve_connect(k); /* half a handshake */
    serve_send(fd, "\x16\x03\x01", 3);
    assert_int_equal(fetch(k, cert, "/health", NULL, &status, &n), CURLE_OK);
    close(fd);
    serve_stop(k);
    char error[1024];
    assert_int_equal(serve_start_fails(error, "tls_cert", key, "tls_key", cert, NULL),
                     INFERSCALE_E_INVALID); /* the wrong way round */
    assert_non_null(strstr(error, "PEM"));
    free(body);
}

/* The number that the next descriptor gets: the lowest that is free. */
static int next_fd(void)
{
    int fd = dup(STDERR_FILENO);
    close(fd);
    return fd;
}

/* libmicrohttpd closes the socket of a server that it cannot start. Closed once more, it is somebody else's file by then (a model that was
 * just being opened); not closed at all, it would keep the port. */
static void a_certificate_that_is_none_costs_no_descriptor(void **state)
{
    char none[600], error[1024];
    int before;
    snprintf(none, sizeof none, "%s/none.pem", folder);
    FILE *f = fopen(none, "w");
    assert_non_null(f);
    fputs("no certificate", f);
    fclose(f);
    for (int i = 0; i < 3; i++) {
        before = next_fd();
        assert_int_equal(serve_start_fails(error, "tls_cert", none, "tls_key", none, NULL), INFERSCALE_E_INVALID);
        assert_non_null(strstr(error, "PEM"));
        if (i) assert_int_equal(next_fd(), before);
    }
}

/* ---- CORS ---------------------------------------------------------------------------------------------------------------- */

static void one_origin_is_let_in(void **state)
{
    serve_kit *k = serve_start("cors", "https://app.example", NULL);
    serve_reply r =
        serve_call(k, "OPTIONS", "/echo", "Origin: https://app.example\r\nAccess-Control-Request-Method: POST\r\n", NULL);
    assert_int_equal(r.status, 204);
    assert_string_equal(serve_head(&r, "Access-Control-Allow-Origin"), "https://app.example");
    assert_non_null(strstr(serve_head(&r, "Access-Control-Allow-Methods"), "POST"));
    assert_non_null(strstr(serve_head(&r, "Access-Control-Allow-Headers"), "Authorization"));
    assert_string_equal(serve_head(&r, "Vary"), "Origin");
    serve_reply_free(&r);
    r = serve_call(k, "POST", "/echo", "Origin: https://app.example\r\n", "{}");
    assert_int_equal(r.status, 200);
    assert_string_equal(serve_head(&r, "Access-Control-Allow-Origin"), "https://app.example");
    serve_reply_free(&r);
    static const char *const others[] = { "Origin: https://app.example.evil\r\n", "Origin: http://app.example\r\n",
                                          "Origin: https://app.example:81\r\n", "Origin: null\r\n" };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        r = serve_call(k, "POST", "/echo", others[i], "{}");
        assert_int_equal(r.status, 403);
        assert_null(serve_head(&r, "Access-Control-Allow-Origin"));
        serve_reply_free(&r);
        r = serve_call(k, "OPTIONS", "/echo", others[i], NULL);
        assert_null(serve_head(&r, "Access-Control-Allow-Origin"));
        assert_null(serve_head(&r, "Access-Control-Allow-Methods"));
        serve_reply_free(&r);
    }
    serve_stop(k);
}

static void further_names_of_the_host_are_taken(void **state)
{
    serve_kit *k = serve_start("hosts", "memory.lan, box", NULL);
    static const struct {
        const char *host;
        int status;
    } cases[] = {
        { "memory.lan", 200 }, { "MEMORY.lan:8080", 200 }, { "box", 200 },
        { "memory.la", 403 },  { "memory.lan.evil", 403 }, { "memory.lan, box", 400 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int fd = serve_connect(k);
        serve_sendf(fd, "GET /health HTTP/1.1\r\nHost: %s\r\n\r\n", cases[i].host);
        serve_reply r = serve_read(fd, "GET");
        if (r.status != cases[i].status) fail_msg("%s gave %d", cases[i].host, r.status);
        serve_reply_free(&r);
        close(fd);
    }
    serve_stop(k);
}

static void ipv6_is_listened_on(void **state)
{
    struct sockaddr_in6 at = { .sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT };
    int fd = socket(AF_INET6, SOCK_STREAM, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&at, sizeof at) != 0) { /* this machine has none */
        if (fd >= 0) close(fd);
        skip();
    }
    close(fd);
    serve_kit *k = serve_start("host", "::1", NULL);
    at.sin6_port = htons((uint16_t)k->port);
    fd = socket(AF_INET6, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
    serve_sendf(fd, "GET /health HTTP/1.1\r\nHost: [::1]:%d\r\n\r\n", k->port);
    serve_reply r = serve_read(fd, "GET");
    assert_int_equal(r.status, 200);
    serve_reply_free(&r);
    close(fd);
    serve_stop(k);
}

/* Opening a store begins to load a model, which takes long: what is wrong with the port or the files is told before. */
static void what_cannot_be_served_is_told_before_a_store_is_opened(void **state)
{
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
    socklen_t len = sizeof at;
    char error[1024], port[16], home[600], none[600];
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(fd, 1), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &len), 0);
    snprintf(port, sizeof port, "%d", ntohs(at.sin_port));
    snprintf(home, sizeof home, "%s/never", folder);
    snprintf(none, sizeof none, "%s/absent.pem", folder);
    assert_int_equal(serve_start_fails(error, "home", home, "port", port, NULL), INFERSCALE_E_BUSY);
    assert_non_null(strstr(error, "--port"));
    close(fd);
    assert_int_not_equal(serve_start_fails(error, "home", home, "tls_cert", none, "tls_key", none, NULL), INFERSCALE_OK);
    assert_non_null(strstr(error, none));
    assert_int_not_equal(access(home, F_OK), 0);
}

static int set_up(void **state)
{
    curl_global_init(CURL_GLOBAL_ALL);
    folder = scratch_make();
    return 0;
}

static int tear_down(void **state)
{
    scratch_remove(folder);
    curl_global_cleanup();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(https_is_spoken_with_a_certificate_and_http_is_not),
        cmocka_unit_test(a_certificate_that_is_none_costs_no_descriptor),
        cmocka_unit_test(one_origin_is_let_in),
        cmocka_unit_test(further_names_of_the_host_are_taken),
        cmocka_unit_test(ipv6_is_listened_on),
        cmocka_unit_test(what_cannot_be_served_is_told_before_a_store_is_opened),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
