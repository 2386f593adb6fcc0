/* serve.c - `inferscale serve`: the server as a program. Signals end it; its log goes to stderr. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/mem.h"
#include "cli/args.h"
#include "cli/out.h"
#include "cli/serve_config.h"
#include "serve/log.h"
#include "serve/server.h"

static void write_line(void *ctx, const char *line, size_t len)
{
    (void)ctx;
    while (len) {
        ssize_t n = write(STDERR_FILENO, line, len);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return; /* whoever read the log has gone; the server has not */
        line += n;
        len -= (size_t)n;
    }
}

static is_log_form log_form(const is_config *c)
{
    if (strcmp(c->log, "off") == 0) return IS_LOG_FORM_OFF;
    if (strcmp(c->log, "json") == 0 || (strcmp(c->log, "auto") == 0 && !isatty(STDERR_FILENO))) return IS_LOG_FORM_JSON;
    return *cli_on_in(stderr, CLI_BOLD) ? IS_LOG_FORM_COLOUR : IS_LOG_FORM_TEXT;
}

/* The first asks to end, the second to be quick; after a third nothing is waited for: the store takes no harm from a kill. */
static void on_signal(int sig)
{
    static volatile sig_atomic_t n;
    if (++n > 2) _exit(128 + sig);
    is_server_stop();
}

static void catch_signals(void)
{
    struct sigaction s = { .sa_handler = on_signal, .sa_flags = SA_RESTART };
    sigemptyset(&s.sa_mask);
    sigaction(SIGTERM, &s, NULL);
    sigaction(SIGINT, &s, NULL);
}

/* A connection is a descriptor: as many as the settings promise, if the system lets us. */
static void raise_descriptors(const is_config *c)
{
    struct rlimit l;
    rlim_t need = c->max_connections + 512;
    if (getrlimit(RLIMIT_NOFILE, &l) != 0 || l.rlim_cur >= need) return;
    l.rlim_cur = l.rlim_max == RLIM_INFINITY || need < l.rlim_max ? need : l.rlim_max;
    setrlimit(RLIMIT_NOFILE, &l); /* if it is not enough, the server's start says so */
}

typedef struct announce {
    const is_config *config;
    bool json;
} announce;

static void url_of(const is_config *c, const char *host, int port, char out[160])
{
    bool any = strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0;
    snprintf(out, 160, strchr(any ? "" : host, ':') ? "%s://[%.100s]:%d" : "%s://%.100s:%d", *c->tls_cert ? "https" : "http",
             any ? "127.0.0.1" : host, port);
}

static void announce_at(const announce *n, const char *host, int port, const char *url)
{
    if (n->json) {
        cli_print_json(json_pack("{s:s,s:i,s:s}", "host", host, "port", port, "url", url));
        fflush(stdout);
        return;
    }
    if (!isatty(STDOUT_FILENO)) {
        printf("Serving at %s (the page: %s/)\n", url, url);
        fflush(stdout);
        return;
    }
    is_serve_log_flush(); /* where it serves is the last thing to see */
    printf("\n  OpenAI    base_url %s/v1\n  Mem0      %s\n", url, url);
    if (*n->config->keys) printf("  keys      %s (send one as Authorization: Bearer KEY)\n", n->config->keys);
    printf("\n  curl %s/v1/chat/completions -H 'Content-Type: application/json' \\\n    %s-d "
           "'{\"max_tokens\": 60, \"messages\": [{\"role\": \"user\", \"content\": \"What must I not eat?\"}], \"memory\": {\"user_id\": "
           "\"anna\"}}'\n\n",
           url, *n->config->keys ? "-H \"Authorization: Bearer $KEY\" " : "");
    printf("%sServing at %s%s/%s%s (the page, for a browser)%s. Ctrl-C ends it.\n\n", cli_on(CLI_BOLD), cli_on(CLI_CYAN), url, cli_off(),
           cli_on(CLI_BOLD), cli_off());
    fflush(stdout);
}

static void on_ready(void *ctx, const char *host, int port)
{
    const announce *n = ctx;
    char url[160];
    url_of(n->config, host, port, url);
    announce_at(n, host, port, url);
    clearerr(stdout); /* a server serves, whoever has stopped reading what it printed */
}

static int run(const cli_args *a, is_config *c)
{
    announce n = { c, cli_wants_json(a) };
    inferscale_status st = serve_config_read(a, serve_config_path(a), c, NULL, NULL);
    if (st != INFERSCALE_OK) return cli_fail_as(a, st);
    raise_descriptors(c);
    catch_signals();
    st = is_serve_log_start(log_form(c), write_line, NULL);
    if (st == INFERSCALE_OK) st = is_server_run(c, on_ready, &n);
    is_serve_log_stop();
    return st == INFERSCALE_OK ? CLI_OK : cli_fail_as(a, st);
}

static int cmd_serve(const cli_args *a)
{
    is_config c;
    if (cli_n(a)) return cli_usage(a, "takes no arguments; --host and --port say where to listen");
    if (is_config_init(&c) != INFERSCALE_OK) return cli_fail(a);
    int rc = run(a, &c);
    is_config_free(&c);
    return rc;
}

const cli_verb cli_verb_serve = {
    "serve",
    "",
    "Answer OpenAI's and Mem0's requests over HTTP, with memory",
    "One process: the store, the engine, the background encoder and an HTTP server. It listens on 127.0.0.1 alone unless "
    "--host names another "
    "address, which needs --keys. Every option can also be a line `name = value` of the file that --config names, or a "
    "variable "
    "INFERSCALE_NAME: flags go before variables, those before the file; `inferscale config check` shows what counts. SIGTERM "
    "and Ctrl-C let requests "
    "end; a second one cancels them. What clients can rely on: docs/server.md.\n\n"
    "Examples:\n  inferscale serve\n  inferscale serve --port 0 --json\n  inferscale serve --host 0.0.0.0 --keys keys.txt "
    "--tls-cert cert.pem --tls-key "
    "key.pem\n",
    serve_options,
    CLI_JSON,
    cmd_serve,
};
