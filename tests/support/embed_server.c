/* embed_server.c - a thread a connection; see embed_server.h. */
#include "support/embed_server.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <jansson.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

enum { DIM = 16, REQUEST = 1 << 16 };

struct embed_server {
    int fd;
    char spec[80], hang[40], refuse[40];
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool released;
    int n_held, n_open, n_requests;
};

typedef struct connection { embed_server *s; int fd; } connection;

static json_t *vector_of(const char *text)
{
    double v[DIM] = { 0.1 };
    json_t *list = json_array();

    for (; *text; text++) v[((unsigned char)*text * 7) % DIM] += 1;
    for (int d = 0; d < DIM; d++) json_array_append_new(list, json_real(v[d]));
    return list;
}

static void answer(int fd, json_t *input)
{
    json_t *data = json_array(), *whole;
    char head[160], *body;

    for (size_t i = 0; i < json_array_size(input); i++)
        json_array_append_new(data, json_pack("{s:i, s:o}", "index", (int)i, "embedding",
                                              vector_of(json_string_value(json_array_get(input, i)))));
    whole = json_pack("{s:o}", "data", data);
    body = json_dumps(whole, JSON_COMPACT);
    snprintf(head, sizeof head, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n", strlen(body));
    (void)!send(fd, head, strlen(head), MSG_NOSIGNAL);
    (void)!send(fd, body, strlen(body), MSG_NOSIGNAL);
    free(body);
    json_decref(whole);
}

static void hold(embed_server *s)
{
    pthread_mutex_lock(&s->lock);
    s->n_held++;
    pthread_cond_broadcast(&s->changed);
    while (!s->released) pthread_cond_wait(&s->changed, &s->lock);
    s->n_held--;
    pthread_mutex_unlock(&s->lock);
}

static bool holds(json_t *input, const char *word)
{
    for (size_t i = 0; *word && i < json_array_size(input); i++)
        if (strstr(json_string_value(json_array_get(input, i)), word)) return true;
    return false;
}

static void take(embed_server *s, int fd, char *body)
{
    static const char bad[] = "HTTP/1.1 400 X\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}";
    json_t *request = json_loads(body, 0, NULL), *input = json_object_get(request, "input");
    bool refused;

    pthread_mutex_lock(&s->lock);
    s->n_requests++;
    refused = holds(input, s->refuse);
    pthread_mutex_unlock(&s->lock);
    if (holds(input, s->hang)) hold(s);
    if (refused) (void)!send(fd, bad, sizeof bad - 1, MSG_NOSIGNAL);
    else answer(fd, input);
    json_decref(request);
}

static void *serve(void *ctx)
{
    connection *c = ctx;
    embed_server *s = c->s;
    char *text = calloc(1, REQUEST), *body = NULL, *length;
    size_t n = 0, want = 0;

    while (n < REQUEST - 1) {
        const ssize_t got = recv(c->fd, text + n, REQUEST - 1 - n, 0);

        if (got <= 0) break;
        n += (size_t)got;
        body = strstr(text, "\r\n\r\n");
        length = body ? strcasestr(text, "Content-Length: ") : NULL;
        if (length) want = strtoul(length + 16, NULL, 10);
        if (body && n >= (size_t)(body + 4 - text) + want) {
            take(s, c->fd, body + 4);
            break;
        }
    }
    close(c->fd);
    free(text);
    free(c);
    pthread_mutex_lock(&s->lock);
    s->n_open--;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

static void *run(void *ctx)
{
    embed_server *s = ctx;

    for (;;) {
        connection *c = malloc(sizeof *c);
        pthread_t t;

        *c = (connection){ s, accept(s->fd, NULL, NULL) };
        if (c->fd < 0) {
            free(c);
            return NULL; /* shut down */
        }
        pthread_mutex_lock(&s->lock);
        s->n_open++;
        pthread_mutex_unlock(&s->lock);
        if (pthread_create(&t, NULL, serve, c) == 0) pthread_detach(t);
    }
}

embed_server *embed_server_start(const char *hang)
{
    embed_server *s = calloc(1, sizeof *s);
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t len = sizeof a;

    snprintf(s->hang, sizeof s->hang, "%s", hang);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    s->fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(s->fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(s->fd, 16), 0);
    assert_int_equal(getsockname(s->fd, (struct sockaddr *)&a, &len), 0);
    snprintf(s->spec, sizeof s->spec, "http://127.0.0.1:%d/v1#test", ntohs(a.sin_port));
    assert_int_equal(pthread_create(&s->thread, NULL, run, s), 0);
    return s;
}

const char *embed_server_spec(const embed_server *s) { return s->spec; }

int embed_server_requests(embed_server *s)
{
    int n;

    pthread_mutex_lock(&s->lock);
    n = s->n_requests;
    pthread_mutex_unlock(&s->lock);
    return n;
}

void embed_server_refuse(embed_server *s, const char *word)
{
    pthread_mutex_lock(&s->lock);
    snprintf(s->refuse, sizeof s->refuse, "%s", word);
    pthread_mutex_unlock(&s->lock);
}

int embed_server_held(embed_server *s)
{
    int n;

    pthread_mutex_lock(&s->lock);
    n = s->n_held;
    pthread_mutex_unlock(&s->lock);
    return n;
}

void embed_server_release(embed_server *s)
{
    pthread_mutex_lock(&s->lock);
    s->released = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

void embed_server_stop(embed_server *s)
{
    embed_server_release(s);
    shutdown(s->fd, SHUT_RDWR);
    pthread_join(s->thread, NULL);
    close(s->fd);
    pthread_mutex_lock(&s->lock);
    while (s->n_open) pthread_cond_wait(&s->changed, &s->lock);
    pthread_mutex_unlock(&s->lock);
    free(s);
}
