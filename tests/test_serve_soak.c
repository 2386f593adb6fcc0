/* test_serve_soak.c - a server under mixed requests does not grow: the process of `inferscale serve` (mock engine) answers chats, searches, writes,
 * forgetting, lists, MCP, broken requests and clients that hang up; its threads and descriptors are counted, and its memory is sampled. In an
 * ordinary run threads and descriptors must come back to where they were. With INFERSCALE_SOAK=seconds it goes on as long as that, and the
 * median resident memory of the last third must be at most 10 % and 8 MiB above that of the first third. */
#include <dirent.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "support/scratch.h"
#include "support/serve_program.h"
#include "support/soak.h"

enum { CLIENTS = 6, FACTS = 12, WARM = 20, SAMPLES = 1 << 16, ORDINARY_MS = 8000, SLACK_KB = 8 << 10, SLACK_PERCENT = 10 };

static serve_program server;
static unsigned long requests; /* atomic */
static int over;               /* atomic */

/* ---- What the process holds ------------------------------------------------------------------------------------------------ */

static unsigned count_in(const char *what)
{
    char path[64];
    unsigned n = 0;

    snprintf(path, sizeof path, "/proc/%d/%s", (int)server.pid, what);
    DIR *d = opendir(path);
    if (!d) fail_msg("%s cannot be read", path);
    while (readdir(d)) n++;
    closedir(d);
    return n - 2;
}

static long resident_kb(void)
{
    char path[64];
    long pages = 0;

    snprintf(path, sizeof path, "/proc/%d/statm", (int)server.pid);
    FILE *f = fopen(path, "r");
    if (!f || fscanf(f, "%*s %ld", &pages) != 1) fail_msg("%s cannot be read", path);
    fclose(f);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

static int compare(const void *a, const void *b)
{
    long x = *(const long *)a, y = *(const long *)b;

    return (x > y) - (x < y);
}

static long median(const long *of, size_t n)
{
    long *copy = malloc(n * sizeof *copy);
    memcpy(copy, of, n * sizeof *copy);
    qsort(copy, n, sizeof *copy, compare);
    long m = copy[n / 2];
    free(copy);
    return m;
}

/* ---- Clients --------------------------------------------------------------------------------------------------------------- */

typedef struct client {
    int n;
    unsigned long long seed;
    pthread_t thread;
    char ids[FACTS][24]; /* what it remembers stays as much: one comes, one goes */
    unsigned at, number;
    char trouble[600];
} client;

static void call(client *c, const char *method, const char *target, const char *body, int want, char id[24])
{
    serve_reply r = serve_program_call(&server, method, target, NULL, body);

    if (r.status != want) snprintf(c->trouble, sizeof c->trouble, "%s %.80s: %d, not %d: ...%.150s", method, target, r.status, want, !r.body ? "" : r.n > 120 ? r.body + r.n - 120 : r.body);
    if (id) {
        const char *s = json_string_value(json_object_get(json_array_get(json_object_get(r.json, "results"), 0), "id"));
        snprintf(id, 24, "%s", s ? s : "");
    }
    serve_reply_free(&r);
    __atomic_add_fetch(&requests, 1, __ATOMIC_RELAXED);
}

static void replace(client *c)
{
    char target[80], body[200];

    c->at = (c->at + 1) % FACTS;
    if (*c->ids[c->at]) {
        snprintf(target, sizeof target, "/memories/%s?user_id=s%d", c->ids[c->at], c->n);
        call(c, "DELETE", target, NULL, 200, NULL);
    }
    snprintf(body, sizeof body, "{\"user_id\": \"s%d\", \"text\": \"Lamp %u of owner %d is green.\"}", c->n, c->number++, c->n);
    call(c, "POST", "/memories", body, 200, c->ids[c->at]);
}

static void hang_up(client *c, const char *body)
{
    int fd = serve_connect(&server.kit);

    serve_sendf(fd, "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
                strlen(body) + (scratch_below(&c->seed, 2) ? 0 : 100), body);
    usleep(scratch_below(&c->seed, 20000));
    close(fd);
    __atomic_add_fetch(&requests, 1, __ATOMIC_RELAXED);
}

static void one_request(client *c)
{
    char body[400];
    unsigned dice = scratch_below(&c->seed, 10);

    snprintf(body, sizeof body, "{\"messages\": [{\"role\": \"user\", \"content\": \"Which lamp is green, number %u?\"}], \"max_tokens\": 16, \"stream\": %s, "
             "\"memory\": {\"user_id\": \"s%d\", \"k\": 4, \"mode\": \"%s\"}}", scratch_below(&c->seed, 1000), dice & 1 ? "true" : "false", c->n,
             dice & 2 ? "kv" : "text");
    if (dice < 4) call(c, "POST", "/v1/chat/completions", body, 200, NULL);
    else if (dice == 4) replace(c);
    else if (dice == 5) hang_up(c, body);
    else if (dice == 6) {
        snprintf(body, sizeof body, "{\"user_id\": \"s%d\", \"query\": \"green lamp\"}", c->n);
        call(c, "POST", "/search", body, 200, NULL);
    } else if (dice == 7) {
        snprintf(body, sizeof body, "/memories?user_id=s%d", c->n);
        call(c, "GET", body, NULL, 200, NULL);
    } else if (dice == 8) {
        call(c, "POST", "/v1/chat/completions", scratch_below(&c->seed, 2) ? "{\"messages\": [" : "{\"messages\": [], \"no such\": 1}", 400, NULL);
    } else {
        call(c, "GET", scratch_below(&c->seed, 2) ? "/metrics" : "/health", NULL, 200, NULL);
    }
}

static void *work(void *ctx)
{
    client *c = ctx;

    while (!__atomic_load_n(&over, __ATOMIC_ACQUIRE) && !*c->trouble) one_request(c);
    return NULL;
}

/* ---- The run --------------------------------------------------------------------------------------------------------------- */

/* Waits until nothing more than `most` is there; what it is then. */
static unsigned settled(const char *what, unsigned most)
{
    double patience = is_now_ms() + 20000;
    unsigned n;

    while ((n = count_in(what)) > most && is_now_ms() < patience) usleep(50000);
    return n;
}

static void what_it_holds_stays(void **state)
{
    unsigned long long seed = scratch_seed("what_it_holds_stays");
    static client clients[CLIENTS];
    static long rss[SAMPLES];
    char *home = scratch_make();
    double ms = soak_seconds() > 0 ? 1000 * soak_seconds() : ORDINARY_MS;
    size_t n = 0;

    (void)state;
    serve_program_start(&server, home, "--refine", "none", "--ram", "4M", NULL);
    for (int i = 0; i < CLIENTS; i++) {
        clients[i] = (client){ .n = i, .seed = scratch_next(&seed) };
        for (int k = 0; k < FACTS; k++) replace(&clients[i]);
        for (int k = 0; k < WARM; k++) one_request(&clients[i]);
        if (*clients[i].trouble) fail_msg("%s", clients[i].trouble);
    }
    usleep(300000);
    unsigned fds = count_in("fd"), threads = count_in("task");
    double end = is_now_ms() + ms;
    for (int i = 0; i < CLIENTS; i++) assert_int_equal(pthread_create(&clients[i].thread, NULL, work, &clients[i]), 0);
    while (is_now_ms() < end && n < SAMPLES) {
        rss[n++] = resident_kb();
        usleep(soak_seconds() > 0 ? 500000 : 100000);
    }
    __atomic_store_n(&over, 1, __ATOMIC_RELEASE);
    for (int i = 0; i < CLIENTS; i++) pthread_join(clients[i].thread, NULL);
    for (int i = 0; i < CLIENTS; i++)
        if (*clients[i].trouble) fail_msg("%s", clients[i].trouble);
    /* Threads and readers' connections to the store are made as so many requests come at once, and kept: one each a client at most. */
    unsigned most_fds = fds + 4 * CLIENTS, most_threads = threads + 2 * CLIENTS;
    unsigned fds_now = settled("fd", most_fds), threads_now = settled("task", most_threads);
    long first = median(rss, n / 3), last = median(rss + n - n / 3, n / 3);
    print_message("%lu requests; descriptors %u, then %u; threads %u, then %u; resident memory %ld KiB, then %ld KiB (medians of thirds)\n", requests, fds,
                  fds_now, threads, threads_now, first, last);
    if (fds_now > most_fds) fail_msg("descriptors grow: %u, then %u", fds, fds_now);
    if (threads_now > most_threads) fail_msg("threads grow: %u, then %u", threads, threads_now);
    assert_true(requests > 50);
    bool flat = last <= first + first * SLACK_PERCENT / 100 + SLACK_KB;
    soak_report("serve_soak", "\"points\":%lu,\"faults\":0,\"lost\":0,\"descriptors\":[%u,%u],\"threads\":[%u,%u],\"rss_kib\":[%ld,%ld],\"flat\":%s", requests,
                fds, fds_now, threads, threads_now, first, last, flat ? "true" : "false");
    if (soak_seconds() > 0 && !flat) fail_msg("resident memory grows: %ld KiB, then %ld KiB", first, last);
    serve_program_end(&server);
    scratch_remove(home);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(what_it_holds_stays) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
