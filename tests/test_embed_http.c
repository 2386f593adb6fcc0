/* What must hold of the HTTP embedder, against a server of the test on the loopback: vectors of length 1 in the order asked,
 * the key sent and never shown, bounded patience and size, and a sentence with the next step for each way it can fail. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <jansson.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/mem.h"
#include "embed/embed.h"
#include "support/scratch.h"

enum { DIM = 5 };

/* How the server answers. */
typedef enum mood {
    GOOD, SHUFFLED, DENIED, MISSING, BUSY_ONCE, REDIRECT, NOT_JSON, WRONG_COUNT, WRONG_DIM, ZERO, TEXT_VALUES, HUGE_BODY,
        HANG_UP,
    DOUBLE_INDEX, NO_INDEX,
    SILENT,                             /* accepts, reads nothing, answers nothing */
    TOGETHER                            /* answers when all of TOGETHER_N requests are there */
} mood;

enum { TOGETHER_N = 12 };

typedef struct server {
    int fd, port;
    pthread_t thread;
    pthread_mutex_t lock;               /* of what follows; held while a request is answered */
    mood mood;
    int requests, texts, largest;       /* seen; read after a call has returned */
    int open[64], n_open;               /* connections of SILENT, closed at the end; run_server's own */
    char authorization[200], model[100];
} server;

/* The vector of a text: not of length 1, and different for different first letters. */
static void add_vector(json_t *list, const char *text, int dim)
{
    for (int d = 0; d < dim; d++) json_array_append_new(list, json_real(3.0 * (d == (unsigned char)text[0] % DIM) + 0.5));
}

static void append_entry(server *s, json_t *data, size_t i, size_t n, json_t *input)
{
    size_t at = s->mood == SHUFFLED ? n - 1 - i : i;
    json_t *entry = json_object(), *vector = json_array();

    add_vector(vector, json_string_value(json_array_get(input, at)), s->mood == WRONG_DIM && s->requests > 1 ? DIM - 1 : DIM);
    for (size_t d = 0; s->mood == ZERO && s->requests > 1 && d < DIM; d++) json_array_set_new(vector, d, json_integer(0));
    if (s->mood == TEXT_VALUES && s->requests > 1) json_array_set_new(vector, 2, json_string("x"));
    if (s->mood != NO_INDEX) json_object_set_new(entry, "index", json_integer(s->mood == DOUBLE_INDEX ? 0 : (json_int_t)at));
    json_object_set_new(entry, "embedding", vector);
    json_array_append_new(data, entry);
}

/* The body of a good answer to this request. */
static char *answer(server *s, const char *body)
{
    json_t *request = json_loads(body, 0, NULL), *input = json_object_get(request, "input"), *data = json_array();
    size_t n = json_array_size(input);

    snprintf(s->model, sizeof s->model, "%s", json_string_value(json_object_get(request, "model")));
    s->texts += (int)n;
    for (size_t i = 0; i < n; i++) {
        int len = (int)json_string_length(json_array_get(input, i));
        if (len > s->largest) s->largest = len;
        if (s->mood == WRONG_COUNT && i == 0 && s->requests > 1) continue;
        append_entry(s, data, i, n, input);
    }
    json_t *whole = json_pack("{s:s,s:o,s:s}", "object", "list", "data", data, "model", s->model);
    char *text = json_dumps(whole, JSON_COMPACT);
    json_decref(whole);
    json_decref(request);
    return text;
}

static void send_all(int fd, const char *p, size_t n)
{
    while (n) {
        ssize_t done = send(fd, p, n, MSG_NOSIGNAL);
        if (done <= 0) return;
        p += done;
        n -= (size_t)done;
    }
}

static void respond(int fd, int code, const char *extra, const char *body)
{
    is_buf b = IS_BUF_INIT;
    is_buf_fmt(&b, "HTTP/1.1 %d X\r\nContent-Type: application/json\r\nContent-Length: %zu\r\nConnection: close\r\n%s\r\n%s",
               code,
               strlen(body), extra, body);
    send_all(fd, (char *)b.data, b.len);
    is_buf_free(&b);
}

static void respond_huge(int fd)
{
    static char megabyte[1 << 20];
    memset(megabyte, ' ', sizeof megabyte);
    const char *head = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n";
    send_all(fd, head, strlen(head));
    for (int i = 0; i < 70; i++) send_all(fd, megabyte, sizeof megabyte);
}

static void serve(server *s, int fd, char *request, char *body)
{
    char *auth = strcasestr(request, "\r\nAuthorization: "), *good;

    s->requests++;
    s->authorization[0] = 0;
    if (auth && auth < body) sscanf(auth + 17, "%199[^\r]", s->authorization);
    switch (s->mood) {
    case DENIED: respond(fd, 401, "", "{\"error\":{\"message\":\"bad\\nkey\"}}"); return;
    case MISSING: respond(fd, 404, "", "{\"detail\":\"no such model\"}"); return;
    case REDIRECT: respond(fd, 302, "Location: http://127.0.0.1:1/elsewhere\r\n", ""); return;
    case NOT_JSON: respond(fd, 200, "", "<html>hello</html>"); return;
    case HUGE_BODY: respond_huge(fd); return;
    case HANG_UP: return;
    case BUSY_ONCE:
        if (s->requests == 1) {
            respond(fd, 503, "Retry-After: 0\r\n", "{}");
            return;
        }
        break;
    default: break;
    }
    good = answer(s, body);
    respond(fd, 200, "", good);
    free(good);
}

static void *take_one(void *ctx);

typedef struct visit { server *s; int fd; pthread_t thread; } visit;

/* Each connection in a thread of its own. */
static void take_together(server *s, int fd)
{
    static visit visits[TOGETHER_N];
    static int n;

    visits[n] = (visit){ .s = s, .fd = fd };
    if (++n < TOGETHER_N) return;
    for (n = 0; n < TOGETHER_N; n++) pthread_create(&visits[n].thread, NULL, take_one, &visits[n]);
    for (n = 0; n < TOGETHER_N; n++) pthread_join(visits[n].thread, NULL);
    n = 0;
}

/* Reads one request whole and answers it. */
static void take(server *s, int fd)
{
    is_buf b = IS_BUF_INIT;
    char chunk[65536], *body = NULL;
    size_t length = 0;

    for (;;) {
        ssize_t n = recv(fd, chunk, sizeof chunk, 0);
        if (n <= 0) break;
        is_buf_add(&b, chunk, (size_t)n);
        body = strstr((char *)b.data, "\r\n\r\n");
        char *l = body ? strcasestr((char *)b.data, "Content-Length: ") : NULL;
        if (l) length = (size_t)strtoul(l + 16, NULL, 10);
        if (body && b.len >= (size_t)(body + 4 - (char *)b.data) + length) {
            pthread_mutex_lock(&s->lock);
            serve(s, fd, (char *)b.data, body + 4);
            pthread_mutex_unlock(&s->lock);
            break;
        }
    }
    is_buf_free(&b);
}

static void *take_one(void *ctx)
{
    visit *v = ctx;

    take(v->s, v->fd);
    close(v->fd);
    return NULL;
}

static mood mood_of(server *s)
{
    mood m;

    pthread_mutex_lock(&s->lock);
    m = s->mood;
    if (m == SILENT) s->requests++;
    pthread_mutex_unlock(&s->lock);
    return m;
}

static void *run_server(void *ctx)
{
    server *s = ctx;
    for (;;) {
        int fd = accept(s->fd, NULL, NULL);
        mood m = fd < 0 ? GOOD : mood_of(s);
        if (fd < 0) break; /* shut down */
        if (m == SILENT && s->n_open < 64) s->open[s->n_open++] = fd;
        else if (m == TOGETHER) take_together(s, fd);
        else {
            take(s, fd);
            close(fd);
        }
    }
    while (s->n_open) close(s->open[--s->n_open]);
    return NULL;
}

static int start(void **state)
{
    server *s = is_calloc(1, sizeof *s);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;

    pthread_mutex_init(&s->lock, NULL);
    s->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(s->fd, (struct sockaddr *)&a, sizeof a) || listen(s->fd, 16) || getsockname(s->fd, (struct sockaddr *)&a,
                                                                                         &len)) return -1;
    s->port = ntohs(a.sin_port);
    *state = s;
    return pthread_create(&s->thread, NULL, run_server, s);
}

static int stop(void **state)
{
    server *s = *state;
    shutdown(s->fd, SHUT_RDWR);
    pthread_join(s->thread, NULL);
    close(s->fd);
    is_free(s);
    return 0;
}

/* From now on the server answers like this; what was seen starts again. */
static void be(server *s, mood m)
{
    pthread_mutex_lock(&s->lock);
    s->mood = m;
    s->requests = s->texts = s->largest = 0;
    pthread_mutex_unlock(&s->lock);
}

/* Waits until the last request is done with. */
static void settle(server *s)
{
    pthread_mutex_lock(&s->lock);
    pthread_mutex_unlock(&s->lock);
}

/* Next to this program is tests/.., where plug-ins are built. */
static const char *plugins(void)
{
    static char dir[4096];
    ssize_t n = readlink("/proc/self/exe", dir, sizeof dir - 1);
    assert_true(n > 0);
    dir[n] = 0;
    *strrchr(dir, '/') = 0;
    *strrchr(dir, '/') = 0;
    return dir;
}

static is_status open_it(server *s, const char *tail, const char *key, is_embedder **e)
{
    char url[200];
    snprintf(url, sizeof url, "http://127.0.0.1:%d%s", s->port, tail);
    return is_embedder_open(plugins(), NULL, url, key, 0, e);
}

/* ---- What must hold ------------------------------------------------------------------------------------------------------ */

static void check_vector(const float *v, const char *text)
{
    double square = 0;
    int best = 0;
    for (int d = 0; d < DIM; d++) {
        square += (double)v[d] * v[d];
        if (v[d] > v[best]) best = d;
    }
    assert_true(fabs(square - 1) < 1e-5);
    assert_int_equal(best, (unsigned char)text[0] % DIM);
}

static void vectors_come_in_order(void **state)
{
    static const mood moods[] = {GOOD, SHUFFLED, NO_INDEX};
    server *s = *state;
    is_embedder *e;
    enum { N = 150 };
    const char *texts[N];
    char words[N][8];
    float *out = is_malloc(N * DIM * sizeof *out);

    for (int i = 0; i < N; i++) {
        snprintf(words[i], sizeof words[i], "%c%d", 'a' + i % 26, i);
        texts[i] = words[i];
    }
    for (int m = 0; m < 3; m++) {
        be(s, moods[m]);
        OK(open_it(s, "/v1#tiny", "s3cret", &e));
        assert_int_equal(is_embedder_dim(e), DIM);
        OK(is_embedder_embed(e, texts, N, out));
        for (int i = 0; i < N; i++) check_vector(out + i * DIM, texts[i]);
        settle(s);
        assert_int_equal(s->texts, N + 1);    /* one to learn the dimensions */
        assert_int_equal(s->requests, 1 + 3); /* in batches of 64 */
        assert_string_equal(s->authorization, "Bearer s3cret");
        assert_string_equal(s->model, "tiny");
        is_embedder_close(e);
    }
    is_free(out);
}

static void no_key_no_header(void **state)
{
    server *s = *state;
    is_embedder *e;

    OK(open_it(s, "/v1/embeddings#m", NULL, &e)); /* the full path is understood too */
    settle(s);
    assert_string_equal(s->authorization, "");
    is_embedder_close(e);
    FAILS(E_INVALID, open_it(s, "/v1#m", "two\r\nHost: evil", &e));
    assert_null(e);
}

static void fingerprint_is_url_model_dimensions(void **state)
{
    server *s = *state;
    is_embedder *a, *b, *c, *d;

    OK(open_it(s, "/v1#one", NULL, &a));
    OK(open_it(s, "/v1/#one", "key", &b)); /* the key makes no other vectors */
    OK(open_it(s, "/v1#two", NULL, &c));
    OK(open_it(s, "/v2#one", NULL, &d));
    assert_memory_equal(is_embedder_fingerprint(a), is_embedder_fingerprint(b), IS_HASH_BYTES);
    assert_memory_not_equal(is_embedder_fingerprint(a), is_embedder_fingerprint(c), IS_HASH_BYTES);
    assert_memory_not_equal(is_embedder_fingerprint(a), is_embedder_fingerprint(d), IS_HASH_BYTES);
    is_embedder_close(a);
    is_embedder_close(b);
    is_embedder_close(c);
    is_embedder_close(d);
}

static void texts_are_checked_and_cut(void **state)
{
    server *s = *state;
    is_embedder *e;
    float out[2 * DIM];
    char *big = is_malloc((1 << 20) + 1);
    const char *bad[] = {"fine", " \t\xe2\x80\x83\n"}, *latin[] = {"caf\xe9"};

    OK(open_it(s, "/v1#m", NULL, &e));
    FAILS(E_INVALID, is_embedder_embed(e, bad, 2, out));
    FAILS(E_INVALID, is_embedder_embed(e, latin, 1, out));
    for (int i = 0; i < 1 << 20; i++) big[i] = "\xc3\xa9"[i % 2];
    big[1 << 20] = 0;
    OK(is_embedder_embed(e, (const char *const *)&big, 1, out));
    settle(s);
    assert_true(s->largest <= 8000 && s->largest > 7900); /* at a character's end: the server could parse it */
    OK(is_embedder_embed(e, NULL, 0, out));
    is_embedder_close(e);
    is_free(big);
}

static void a_busy_server_is_asked_again(void **state)
{
    server *s = *state;
    is_embedder *e;

    be(s, BUSY_ONCE);
    OK(open_it(s, "/v1#m", NULL, &e));
    settle(s);
    assert_int_equal(s->requests, 2);
    is_embedder_close(e);
}

static void expect(const char *part)
{
    if (!strstr(is_error(), part)) print_message("%s\n", is_error());
    assert_non_null(strstr(is_error(), part));
    assert_null(strstr(is_error(), "hush-hush"));
    assert_null(strchr(is_error(), '\n'));
}

static void failures_at_opening(void **state)
{
    static const struct { mood mood; is_status want; const char *says; } cases[] = {
        {DENIED, INFERSCALE_E_DENIED, "INFERSCALE_EMBEDDER_KEY"}, {MISSING, INFERSCALE_E_ENGINE, "no such model"},
        {REDIRECT, INFERSCALE_E_ENGINE, "redirects"},             {NOT_JSON, INFERSCALE_E_ENGINE, "/v1"},
        {HANG_UP, INFERSCALE_E_ENGINE, "cannot reach"},           {HUGE_BODY, INFERSCALE_E_ENGINE, "more than 64 MiB"},
    };
    server *s = *state;
    is_embedder *e;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        be(s, cases[i].mood);
        scratch_expect(cases[i].want, open_it(s, "/v1#m", "hush-hush", &e), cases[i].says, __FILE__, __LINE__);
        assert_null(e);
        expect(cases[i].says);
    }
    FAILS(E_INVALID, open_it(s, "/v1", NULL, &e));
    expect("#MODEL");
    FAILS(E_INVALID, is_embedder_open(plugins(), NULL, "http://user:hush-hush@127.0.0.1/v1#m", NULL, 0, &e));
    expect("--embedder-key");
    FAILS(E_INVALID, is_embedder_open(plugins(), NULL, "http:///v1#m", NULL, 0, &e));
    FAILS(E_ENGINE, is_embedder_open(plugins(), NULL, "http://127.0.0.1:1/v1#m", NULL, 0, &e));
    expect("start it, or check the address");
}

static void failures_while_embedding(void **state)
{
    static const mood moods[] = {WRONG_COUNT, WRONG_DIM, ZERO, TEXT_VALUES, DOUBLE_INDEX};
    server *s = *state;
    const char *texts[] = {"alpha", "beta"};
    is_embedder *e;
    float out[2 * DIM];

    for (size_t i = 0; i < sizeof moods / sizeof *moods; i++) {
        be(s, moods[i]);
        OK(open_it(s, "/v1#m", NULL, &e));
        FAILS(E_ENGINE, is_embedder_embed(e, texts, 2, out));
        be(s, GOOD); /* and it goes on afterwards */
        OK(is_embedder_embed(e, texts, 2, out));
        check_vector(out + DIM, "beta");
        is_embedder_close(e);
    }
}

typedef struct asker {
    is_embedder *e;
    pthread_t thread;
    float out[DIM];
    volatile int cancel;
    is_status status;
    char why[300];
} asker;

static void *ask(void *ctx)
{
    static const char *const text = "gamma";
    asker *a = ctx;

    a->status = is_embedder_embed_until(a->e, &text, 1, a->out, &a->cancel);
    snprintf(a->why, sizeof a->why, "%s", a->status == INFERSCALE_OK ? "" : is_error());
    return NULL;
}

/* The server answers none of them before it has all: a lock held over a request would keep the second from coming. */
static void requests_go_out_together(void **state)
{
    server *s = *state;
    asker askers[TOGETHER_N] = { 0 };
    is_embedder *e;

    OK(open_it(s, "/v1#m", NULL, &e));
    be(s, TOGETHER);
    for (int i = 0; i < TOGETHER_N; i++) {
        askers[i].e = e;
        assert_int_equal(pthread_create(&askers[i].thread, NULL, ask, &askers[i]), 0);
    }
    for (int i = 0; i < TOGETHER_N; i++) {
        pthread_join(askers[i].thread, NULL);
        if (askers[i].status != INFERSCALE_OK) print_message("%s\n", askers[i].why);
        assert_int_equal(askers[i].status, INFERSCALE_OK);
        check_vector(askers[i].out, "gamma");
    }
    settle(s);
    assert_int_equal(s->requests, TOGETHER_N);
    is_embedder_close(e);
}

/* An endpoint that accepts and never answers: opening and asking end by themselves, and a caller that is cancelled ends at once. The
 * watchdog of the whole is the test runner's: each of these used to take two minutes. */
static void a_silent_server_is_not_waited_for(void **state)
{
    server *s = *state;
    char url[200];
    is_embedder_plug plug = { .plugin_dir = plugins(), .spec = url, .wait_ms = 300 };
    asker a = { 0 };
    is_embedder *e;

    snprintf(url, sizeof url, "http://127.0.0.1:%d/v1#m", s->port);
    be(s, SILENT);
    FAILS(E_ENGINE, is_embedder_open_with(&plug, &e));
    expect("did not answer in time");
    be(s, GOOD);
    OK(is_embedder_open_with(&plug, &e));
    be(s, SILENT);
    a.e = e;
    ask(&a);
    assert_int_equal(a.status, INFERSCALE_E_ENGINE);
    assert_non_null(strstr(a.why, "did not answer in time"));
    is_embedder_close(e);
    be(s, GOOD);
    plug.wait_ms = 3600 * 1000;              /* now nothing but the flag can end it */
    OK(is_embedder_open_with(&plug, &e));
    be(s, SILENT);
    a.e = e;
    assert_int_equal(pthread_create(&a.thread, NULL, ask, &a), 0);
    for (int seen = 0; !seen;) {
        pthread_mutex_lock(&s->lock);
        seen = s->requests;
        pthread_mutex_unlock(&s->lock);
    }
    __atomic_store_n(&a.cancel, 1, __ATOMIC_RELEASE);
    pthread_join(a.thread, NULL);
    assert_int_equal(a.status, INFERSCALE_E_CANCELLED);
    is_embedder_close(e);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, start, stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(vectors_come_in_order),     TEST(no_key_no_header),             TEST(fingerprint_is_url_model_dimensions),
        TEST(texts_are_checked_and_cut), TEST(a_busy_server_is_asked_again), TEST(failures_at_opening),
        TEST(failures_while_embedding),  TEST(requests_go_out_together),     TEST(a_silent_server_is_not_waited_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
