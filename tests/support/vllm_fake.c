/* vllm_fake.c - the fake server's HTTP: tokenising, completions, tickets, and every way to fail. */
#include "support/vllm_fake.h"

#include <arpa/inet.h>
#include <microhttpd.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "kv/ticket.h"
#include "support/vllm_fake_parts.h"

typedef struct request { is_buf body; } request;

/* A response that comes in pieces. */
typedef struct stream {
    vllm_fake *f;
    is_buf text;
    size_t at, chunk;
    uint32_t delay_ms;
    bool hang, cut, endless;        /* at its end */
} stream;

static void nap(uint32_t ms)
{
    struct timespec t = { ms / 1000, (long)(ms % 1000) * 1000000 };

    nanosleep(&t, NULL);
}

static bool is_closing(vllm_fake *f)
{
    return __atomic_load_n(&f->closing, __ATOMIC_ACQUIRE);
}

static fake_mood mood_of(const vllm_fake *f)
{
    return __atomic_load_n(&f->mood, __ATOMIC_ACQUIRE);
}

/* ---- Tokens ---------------------------------------------------------------------------------------------------------------------------- */

static const struct { const char *text; int32_t id; } literals[] = { { "<|im_start|>", FAKE_START }, { "<|im_end|>", FAKE_END }, { "<s>", FAKE_BOS },
                                                                     { "<|x<|", FAKE_X }, { "@@X", FAKE_X } }; /* the last by a normaliser, say */

static json_t *tokenize(const char *s, size_t len)
{
    json_t *out = json_array();

    for (size_t at = 0; at < len;) {
        size_t n = 0;

        for (size_t k = 0; k < sizeof literals / sizeof *literals && !n; k++)
            if (strncmp(s + at, literals[k].text, strlen(literals[k].text)) == 0) {
                n = strlen(literals[k].text);
                json_array_append_new(out, json_integer(literals[k].id));
            }
        if (!n) json_array_append_new(out, json_integer((unsigned char)s[at]));
        at += n ? n : 1;
    }
    return out;
}

static void add_trimmed(is_buf *b, const char *s, bool trim)
{
    size_t n = strlen(s);

    while (trim && n && strchr(" \t\n", *s)) s++, n--;
    while (trim && n && strchr(" \t\n", s[n - 1])) n--;
    is_buf_add(b, s, n);
}

/* NULL: the template refuses. */
static char *render(fake_chat chat, const json_t *messages, bool opener)
{
    is_buf b = IS_BUF_INIT;
    time_t now = time(NULL);
    struct tm tm;
    char date[32];

    gmtime_r(&now, &tm);
    strftime(date, sizeof date, "%d %b %Y", &tm);
    if (chat == FAKE_NO_TEMPLATE) return NULL;
    if (chat == FAKE_DATES) is_buf_fmt(&b, "Today is %s.\n", date);
    for (size_t i = 0; i < json_array_size(messages); i++) {
        size_t at = chat == FAKE_REORDERS && json_array_size(messages) > 3 && i > 1 ? 5 - i : i;
        const json_t *m = json_array_get(messages, at);
        const char *role = json_string_value(json_object_get(m, "role")), *text = json_string_value(json_object_get(m, "content"));

        if (chat == FAKE_NO_SYSTEM && strcmp(role, "system") == 0) return is_buf_free(&b), NULL;
        is_buf_fmt(&b, "<|im_start|>%s\n", role);
        if (chat != FAKE_DROPS || strlen(text) < 20) add_trimmed(&b, text, chat == FAKE_TRIMS);
        is_buf_str(&b, "<|im_end|>\n");
    }
    if (opener) is_buf_str(&b, "<|im_start|>assistant\n");
    return is_buf_take(&b);
}

/* ---- Answers ----------------------------------------------------------------------------------------------------------------------------- */

static enum MHD_Result send_text(struct MHD_Connection *c, unsigned code, const char *text)
{
    struct MHD_Response *r = MHD_create_response_from_buffer(strlen(text), (void *)(uintptr_t)text, MHD_RESPMEM_MUST_COPY);
    enum MHD_Result ok = MHD_queue_response(c, code, r);

    MHD_destroy_response(r);
    return ok;
}

static enum MHD_Result send_json(struct MHD_Connection *c, unsigned code, json_t *j)
{
    char *text = json_dumps(j, JSON_COMPACT);
    enum MHD_Result ok = send_text(c, code, text);

    free(text);
    json_decref(j);
    return ok;
}

static enum MHD_Result refuse(struct MHD_Connection *c, unsigned code, const char *why)
{
    return send_json(c, code, json_pack("{s:{s:s, s:i}}", "error", "message", why, "code", (int)code));
}

static ssize_t read_stream(void *ctx, uint64_t pos, char *buf, size_t max)
{
    stream *s = ctx;
    size_t n = s->text.len - s->at;

    (void)pos;
    if (is_closing(s->f)) return MHD_CONTENT_READER_END_WITH_ERROR;
    if (n && s->delay_ms) nap(s->delay_ms);
    if (n > s->chunk) n = s->chunk;
    if (n > max) n = max;
    if (n) {
        memcpy(buf, s->text.data + s->at, n);
        s->at += n;
        return (ssize_t)n;
    }
    if (s->endless) {
        memset(buf, 'x', max);
        return (ssize_t)max;
    }
    if (s->hang) {
        nap(5);
        return 0;
    }
    return s->cut ? MHD_CONTENT_READER_END_WITH_ERROR : MHD_CONTENT_READER_END_OF_STREAM;
}

static void free_stream(void *ctx)
{
    stream *s = ctx;

    is_buf_free(&s->text);
    free(s);
}

/* ---- Tickets ------------------------------------------------------------------------------------------------------------------------------ */

static inferscale_ticket *read_ticket(vllm_fake *f, const json_t *body, const int32_t *prompt, uint32_t n)
{
    const char *text = json_string_value(json_object_get(json_object_get(body, "kv_transfer_params"), "inferscale"));
    char path[512], hex[65] = "";
    uint8_t secret[32], hash[32];
    inferscale_ticket *t = NULL;
    FILE *in;

    snprintf(path, sizeof path, "%s/vllm/secret", f->home);
    in = fopen(path, "r");
    if (!in || fread(hex, 1, 64, in) != 64) hex[0] = 0;
    if (in) fclose(in);
    for (int i = 0; i < 32; i++) {
        unsigned v = 0;

        if (sscanf(hex + 2 * i, "%2x", &v) != 1) return NULL;
        secret[i] = (uint8_t)v;
    }
    if (!text || is_ticket_read(text, secret, time(NULL), &t) != INFERSCALE_OK) return NULL;
    is_ticket_prompt(prompt, n, hash);
    if (t->n_prompt == n && memcmp(hash, t->prompt_hash, 32) == 0) return t;
    is_free(t);
    return NULL;
}

/* Tokens that the fake has ready for this salt; the salt is known from now on. */
static uint32_t local_hit(vllm_fake *f, const uint8_t salt[32], uint32_t n)
{
    char hex[65];

    if (f->no_prefix_cache) return 0;
    is_hex(salt, 32, hex);
    for (uint32_t i = 0; i < f->n_cached; i++)
        if (strncmp(f->cached[i], hex, 64) == 0) {
            uint32_t had = (uint32_t)strtoul(f->cached[i] + 64, NULL, 10);

            snprintf(f->cached[i] + 64, 16, "%u", n);
            return (had < n - 1 ? had : n - 1) / FAKE_BLOCK * FAKE_BLOCK;
        }
    if (f->n_cached < 64) {
        f->cached[f->n_cached] = malloc(80);
        snprintf(f->cached[f->n_cached++], 80, "%s%u", hex, n);
    }
    return 0;
}

static void keep_books(vllm_fake *f, const inferscale_ticket *t, uint32_t local, uint32_t injected, const char *reason,
                       const inferscale_kv_part *bad)
{
    uint32_t i = f->n_books++ % 64;

    memcpy(f->books[i].id, t->id, 16);
    f->books[i].local = local;
    f->books[i].injected = injected;
    snprintf(f->books[i].reason, sizeof f->books[i].reason, "%s", reason);
    f->books[i].bad[0] = 0;
    if (bad) is_hex(bad->name, 32, f->books[i].bad);
    f->books[i].where = bad ? (int)bad->dir : 0;
}

static fake_job *note_job(vllm_fake *f, const inferscale_ticket *t, uint32_t local)
{
    fake_job *j = &f->jobs[f->n_jobs < FAKE_JOBS ? f->n_jobs++ : FAKE_JOBS - 1];

    *j = (fake_job){ .op = t->op, .n_prompt = t->n_prompt, .n_parts = t->n_parts, .capture_from = t->capture_from, .capture_n = t->capture_n,
                     .local = local };
    memcpy(j->salt, t->salt, 32);
    return j;
}

/* As the connector: parts that go on without a gap from what is there. */
static uint32_t ready(vllm_fake *f, const inferscale_ticket *t, const int32_t *prompt)
{
    fake_mood mood = mood_of(f);
    uint32_t local = mood == FAKE_EVICTED && t->op == INFERSCALE_TICKET_INJECT ? 0 : local_hit(f, t->salt, t->n_prompt), at = local;
    fake_job *j = note_job(f, t, local);
    const char *reason = mood == FAKE_HEAD_FAILS ? "torn" : mood != FAKE_LOAD_FAILS ? "" : f->load_reason ? f->load_reason : "torn";
    const inferscale_kv_part *bad = NULL;

    for (uint32_t i = 0; i < t->n_parts && !bad; i++)
        if (*reason && t->parts[i].dir == (mood == FAKE_HEAD_FAILS)) bad = &t->parts[i];
    for (uint32_t i = 0; i < t->n_parts && !*reason; i++) {
        const inferscale_kv_part *p = &t->parts[i];
        bool tail = p->dir == 1 && p->pos > 0;

        if (tail) {
            memcpy(j->tail, p->name, 32);
            j->tail_pos = p->pos;
            j->tail_n = p->n_tokens;
            j->tail_there = fake_has_rows(f, p, prompt);
        }
        if (p->pos + p->n_tokens <= at) continue;
        if (p->pos > at) reason = "gap";
        else if (tail && !j->tail_there) reason = "missing";
        else at = p->pos + p->n_tokens;
    }
    if (at > t->n_prompt - 1) at = t->n_prompt - 1;
    j->injected = at - local;
    keep_books(f, t, local, at - local, reason, bad);
    return at;
}

static json_t *say(json_t *said)
{
    return json_pack("{s:s, s:[], s:{s:o}}", "object", "text_completion", "choices", "kv_transfer_params", "inferscale", said);
}

/* Its sentence names a file, as one of the library's may. */
static json_t *status_of(const vllm_fake *f, uint32_t i)
{
    json_t *said = json_pack("{s:i, s:i, s:s, s:s}", "injected", (int)f->books[i].injected, "local", (int)f->books[i].local, "why",
                             f->books[i].reason[0] ? "cannot read /srv/home of ours/vault/ab/abcd.seg: it is torn" : "", "reason", f->books[i].reason);

    if (f->books[i].bad[0])
        json_object_set_new(said, "bad", json_pack("[{s:s, s:i, s:s}, {s:s}, s]", "name", f->books[i].bad, "where", f->books[i].where,
                                                   "reason", f->books[i].reason, "name", "zz", "nonsense"));
    return said;
}

/* Under the lock, which is let go of meanwhile. */
static void hang(vllm_fake *f, const bool *health, int op)
{
    while ((health ? *health : f->op_hangs == op) && !is_closing(f)) {
        pthread_mutex_unlock(&f->lock);
        nap(5);
        pthread_mutex_lock(&f->lock);
    }
}

static enum MHD_Result answer_ticket(vllm_fake *f, struct MHD_Connection *c, inferscale_ticket *t, const int32_t *prompt)
{
    fake_mood mood = mood_of(f);
    json_t *answer;

    if (mood == FAKE_NO_CONNECTOR) return send_json(c, 200, json_pack("{s:s, s:[]}", "object", "text_completion", "choices"));
    if (!t || mood == FAKE_UNSIGNED) {
        f->seen.bad_tickets++;
        return send_json(c, 200, say(json_pack("{s:b, s:s}", "ok", 0, "reason", "unsigned")));
    }
    if (f->op_hangs == t->op) f->seen.hung++, hang(f, NULL, t->op);
    switch (t->op) {
    case INFERSCALE_TICKET_DESCRIBE: f->seen.describes++; return send_json(c, 200, say(fake_description(f)));
    case INFERSCALE_TICKET_REVOKE:
        f->seen.revokes++;
        return send_json(c, 200, say(json_pack("{s:b}", "ok", mood != FAKE_NOT_REVOKED && (!f->keeps_tag || t->tag[0] != f->keeps_tag))));
    case INFERSCALE_TICKET_STATUS:
        f->seen.statuses++;
        for (uint32_t i = 0; i < 64 && !f->no_status; i++)
            if (memcmp(f->books[i].id, t->id, 16) == 0)
                return send_json(c, 200, say(status_of(f, i)));
        return send_json(c, 200, say(json_pack("{s:b, s:s}", "ok", 0, "reason", "missing")));
    case INFERSCALE_TICKET_CAPTURE: {
        uint32_t at = ready(f, t, prompt);

        f->seen.captures++;
        if (mood == FAKE_CAPTURE_500) return refuse(c, 500, "the worker fell over");
        fake_capture(f, t, prompt);
        if (mood == FAKE_CAPTURE_HANG) return MHD_NO;
        answer = say(json_pack("{s:b, s:s, s:i}", "ok", mood != FAKE_CAPTURE_LIES, "why", "no room", "coming", f->elsewhere ? (int)(f->tp * f->pp) : 0));
        json_object_set_new(answer, "usage", json_pack("{s:i, s:{s:i}}", "prompt_tokens", (int)t->n_prompt, "prompt_tokens_details", "cached_tokens",
                                                       (int)(at < t->capture_from ? at : t->capture_from)));
        return send_json(c, 200, answer);
    }
    default: return refuse(c, 400, "not an operation that is asked for without a stream");
    }
}

/* ---- A streaming completion ----------------------------------------------------------------------------------------------------------------- */

/* Cuts the text behind its nth event. */
static void cut_behind(is_buf *b, int n, int more)
{
    char *at = (char *)b->data;

    while (n-- && at) at = strstr(at + 1, "data: ");
    if (at) b->len = (size_t)(at - (char *)b->data) + (size_t)more;
}

static enum MHD_Result answer_stream(vllm_fake *f, struct MHD_Connection *c, const json_t *body, int32_t *tokens, uint32_t n, inferscale_ticket *t)
{
    fake_mood mood = mood_of(f);
    stream *s = calloc(1, sizeof *s);
    struct MHD_Response *r;
    enum MHD_Result ok;

    f->seen.completions++;
    if (!t) f->seen.bad_tickets++;
    is_free(f->ticket);
    f->ticket = t;
    s->f = f;
    s->chunk = f->chunk;
    s->delay_ms = f->delay_ms;
    fake_write_answer(f, body, tokens, n, t ? ready(f, t, tokens) : 0, &s->text);
    if (mood == FAKE_TORN_FIRST) cut_behind(&s->text, 1, 9), s->cut = true;
    if (mood == FAKE_TORN_MID) cut_behind(&s->text, 4, 20), s->cut = true;
    if (mood == FAKE_HANG) s->text.len = 0, s->hang = true;
    if (mood == FAKE_HANG_MID) cut_behind(&s->text, 4, 0), s->hang = true;
    if (mood == FAKE_EMPTY) s->text.len = 0;
    if (mood == FAKE_ENDLESS) is_buf_clear(&s->text), is_buf_str(&s->text, "data: {\"x\":\""), s->endless = true;
    if (mood == FAKE_NOT_JSON) is_buf_clear(&s->text), is_buf_str(&s->text, "data: <html>\n\n");
    if (mood == FAKE_ERROR_EVENT) is_buf_clear(&s->text), is_buf_str(&s->text, "data: {\"error\":{\"message\":\"out of\\nblocks\"}}\n\ndata: [DONE]\n\n");
    if (mood == FAKE_DEEP) {
        is_buf_clear(&s->text);
        is_buf_str(&s->text, "data: ");
        for (int i = 0; i < 100000; i++) is_buf_u8(&s->text, '[');
        is_buf_str(&s->text, "\n\n");
    }
    r = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 32768, read_stream, s, free_stream);
    MHD_add_response_header(r, "Content-Type", "text/event-stream");
    ok = MHD_queue_response(c, 200, r);
    MHD_destroy_response(r);
    return ok;
}

/* What is wrong with the request as such; 0 = nothing. */
static unsigned wrong_with(const vllm_fake *f, const json_t *body, char why[160])
{
    const json_t *logprobs = json_object_get(body, "logprobs");
    const char *model = json_string_value(json_object_get(body, "model"));
    int n = logprobs ? (int)json_integer_value(logprobs) : 0;

    if (f->refuse) snprintf(why, 160, "%s", f->refuse_says ? f->refuse_says : "no");
    if (f->refuse) return f->refuse;
    if (model && strcmp(model, f->served) != 0) snprintf(why, 160, "The model `%.60s` does not exist.", model);
    if (model && strcmp(model, f->served) != 0) return 404;
    if (n == -1) n = FAKE_VOCAB;
    if (f->max_logprobs == -1 || n <= f->max_logprobs) return 0;
    snprintf(why, 160, "Requested sample logprobs of %d, which is greater than max allowed: %d", n, f->max_logprobs);
    return 400;
}

static enum MHD_Result send_late(struct MHD_Connection *c, unsigned code, const char *why)
{
    is_buf b = IS_BUF_INIT;
    enum MHD_Result ok;

    fake_add_event(&b, json_pack("{s:{s:s, s:s, s:n, s:i}}", "error", "message", why, "type", "BadRequestError", "param", "code", (int)code));
    is_buf_str(&b, "data: [DONE]\n\n");
    is_buf_u8(&b, 0);
    ok = send_text(c, 200, (char *)b.data);
    is_buf_free(&b);
    return ok;
}

static enum MHD_Result complete(vllm_fake *f, struct MHD_Connection *c, json_t *body)
{
    json_t *ids = json_object_get(body, "prompt");
    uint32_t n = (uint32_t)json_array_size(ids);
    int32_t *tokens = calloc(n + FAKE_CTX + 1, sizeof *tokens);
    bool streams = json_is_true(json_object_get(body, "stream"));
    fake_mood mood = mood_of(f);
    inferscale_ticket *t;
    enum MHD_Result ok;
    unsigned wrong;
    char why[160];

    if (mood == FAKE_GATEWAY) {
        free(tokens);
        return refuse(c, 400, "prompt must be a text");
    }
    for (uint32_t i = 0; i < n; i++) tokens[i] = (int32_t)json_integer_value(json_array_get(ids, i));
    json_decref(f->last);
    f->last = json_incref(body);
    t = read_ticket(f, body, tokens, n);
    f->seen.unsalted += t && !fake_is_salted(body, t);
    if (t && streams && f->refuse_tickets) is_free(t), t = NULL;
    if (!streams) {
        ok = answer_ticket(f, c, t, tokens);
        is_free(t);
    } else if (mood == FAKE_500 || mood == FAKE_429 || mood == FAKE_400 || mood == FAKE_REDIRECT) {
        is_free(t);
        f->seen.completions++;
        ok = mood == FAKE_500 ? refuse(c, 500, "engine dead") : mood == FAKE_429 ? refuse(c, 429, "slow down") :
             mood == FAKE_REDIRECT ? refuse(c, 302, "elsewhere") : refuse(c, 400, "Invalid grammar specification.");
    } else if ((wrong = wrong_with(f, body, why)) != 0) {
        is_free(t);
        f->seen.completions++;
        ok = f->refuse_late ? send_late(c, wrong, why) : refuse(c, wrong, why);
    } else {
        ok = answer_stream(f, c, body, tokens, n, t);
    }
    free(tokens);
    return ok;
}

/* ---- Requests --------------------------------------------------------------------------------------------------------------------------------- */

static enum MHD_Result tokenized(vllm_fake *f, struct MHD_Connection *c, const json_t *body)
{
    const json_t *prompt = json_object_get(body, "prompt"), *messages = json_object_get(body, "messages");
    char *text = NULL;
    json_t *ids;

    f->seen.tokenized++;
    if (prompt) {
        ids = tokenize(json_string_value(prompt), json_string_length(prompt));
    } else {
        text = render(f->chat, messages, json_is_true(json_object_get(body, "add_generation_prompt")));
        if (!text) return refuse(c, 400, "the template refuses");
        ids = tokenize(text, strlen(text));
        is_free(text);
    }
    return send_json(c, 200, json_pack("{s:i, s:o}", "count", (int)json_array_size(ids), "tokens", ids));
}

static enum MHD_Result on_request(void *cls, struct MHD_Connection *c, const char *url, const char *method, const char *version,
                                  const char *data, size_t *n, void **con)
{
    vllm_fake *f = cls;
    request *q = *con;
    json_t *body;
    enum MHD_Result ok;

    (void)method;
    (void)version;
    if (!q) {
        *con = calloc(1, sizeof *q);
        return MHD_YES;
    }
    if (*n) {
        is_buf_add(&q->body, data, *n);
        *n = 0;
        return MHD_YES;
    }
    pthread_mutex_lock(&f->lock);
    if (mood_of(f) == FAKE_LOADING) {
        ok = refuse(c, 503, "loading");
        pthread_mutex_unlock(&f->lock);
        return ok;
    }
    if (strcmp(url, "/health") == 0) {
        f->seen.health++;
        hang(f, &f->health_hangs, 0);
        ok = send_text(c, mood_of(f) == FAKE_500 ? 503 : 200, "");
        pthread_mutex_unlock(&f->lock);
        return ok;
    }
    if (strcmp(url, "/openapi.json") == 0) {
        ok = send_json(c, 200, json_pack("{s:{s:s}}", "info", "title", mood_of(f) == FAKE_GATEWAY ? "InferScale" : "FastAPI"));
        pthread_mutex_unlock(&f->lock);
        return ok;
    }
    body = json_loadb(q->body.data ? (char *)q->body.data : "", q->body.len, 0, NULL);
    if (!body) ok = refuse(c, 400, "no JSON");
    else if (strcmp(url, "/tokenize") == 0) ok = tokenized(f, c, body);
    else if (strcmp(url, "/v1/completions") == 0) ok = complete(f, c, body);
    else ok = refuse(c, 404, "no such path");
    json_decref(body);
    pthread_mutex_unlock(&f->lock);
    return ok;
}

static void on_end(void *cls, struct MHD_Connection *c, void **con, enum MHD_RequestTerminationCode code)
{
    vllm_fake *f = cls;
    request *q = *con;

    (void)c;
    if (code != MHD_REQUEST_TERMINATED_COMPLETED_OK) __atomic_add_fetch(&f->seen.cut, 1, __ATOMIC_RELAXED);
    if (q) is_buf_free(&q->body);
    free(q);
    *con = NULL;
}

vllm_fake *fake_start(const char *home)
{
    vllm_fake *f = calloc(1, sizeof *f);
    const union MHD_DaemonInfo *info;

    f->home = strdup(home);
    f->length = 12;
    f->tp = f->pp = 1;
    f->chunk = 1 << 20;
    f->max_logprobs = -1;
    f->served = "fake/model";
    pthread_mutex_init(&f->lock, NULL);
    f->daemon = MHD_start_daemon(MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_THREAD_PER_CONNECTION | MHD_USE_POLL, 0, NULL, NULL, on_request, f,
                                 MHD_OPTION_SOCK_ADDR, &(struct sockaddr_in){ .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) },
                                 MHD_OPTION_NOTIFY_COMPLETED, on_end, f, MHD_OPTION_END);
    assert_non_null(f->daemon);
    info = MHD_get_daemon_info(f->daemon, MHD_DAEMON_INFO_BIND_PORT);
    f->port = info->port;
    snprintf(f->url, sizeof f->url, "http://127.0.0.1:%d", f->port);
    return f;
}

void fake_stop(vllm_fake *f)
{
    if (!f) return;
    __atomic_store_n(&f->closing, true, __ATOMIC_RELEASE);
    MHD_stop_daemon(f->daemon);
    assert_int_equal(f->seen.unsalted, 0);
    for (uint32_t i = 0; i < f->n_cached; i++) free(f->cached[i]);
    json_decref(f->last);
    is_free(f->ticket);
    pthread_mutex_destroy(&f->lock);
    free(f->home);
    free(f);
}

void fake_set(vllm_fake *f, fake_mood mood)
{
    __atomic_store_n(&f->mood, mood, __ATOMIC_RELEASE);
}

fake_seen fake_look(vllm_fake *f)
{
    fake_seen seen;

    pthread_mutex_lock(&f->lock);
    seen = f->seen;
    seen.cut = __atomic_load_n(&f->seen.cut, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&f->lock);
    return seen;
}

uint32_t fake_jobs(vllm_fake *f, fake_job *out)
{
    uint32_t n;

    pthread_mutex_lock(&f->lock);
    n = f->n_jobs;
    memcpy(out, f->jobs, n * sizeof *out);
    pthread_mutex_unlock(&f->lock);
    return n;
}

void fake_forget_jobs(vllm_fake *f)
{
    pthread_mutex_lock(&f->lock);
    f->n_jobs = 0;
    pthread_mutex_unlock(&f->lock);
}
