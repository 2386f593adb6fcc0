/* log.c - the server's log: lines made in place, a bounded queue, one thread that writes. */
#include "serve/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/log.h"
#include "base/mem.h"
#include "base/utf8.h"

enum { WAITING_MAX = 4096 };

typedef struct entry {
    struct entry *next;
    size_t len;
    char text[];
} entry;

static struct {
    pthread_mutex_t lock;
    pthread_cond_t more;
    pthread_t thread;
    is_log_form form; /* OFF = not started */
    is_log_sink sink;
    void *ctx;
    entry *first, *last;
    size_t n;
    unsigned long long dropped; /* since the last line that said so */
    bool stop, writing;
    pthread_cond_t idle; /* nothing waits, nothing is being written */
} lg = { .lock = PTHREAD_MUTEX_INITIALIZER, .more = PTHREAD_COND_INITIALIZER, .idle = PTHREAD_COND_INITIALIZER };

static is_log_form form_now(void)
{
    pthread_mutex_lock(&lg.lock);
    is_log_form f = lg.form;
    pthread_mutex_unlock(&lg.lock);
    return f;
}

/* ---- A line -------------------------------------------------------------------------------------------------------------- */

static const char *level_name(int level)
{
    return level <= IS_LOG_ERROR ? "error" : level == IS_LOG_WARN ? "warning" : level == IS_LOG_INFO ? "info" : "debug";
}

/* Appends whole or not at all; room for the end of the line stays. */
static bool put(is_log_line *l, const char *s, size_t n)
{
    if (l->len + n + 3 > sizeof l->text) return false;
    memcpy(l->text + l->len, s, n);
    l->len += n;
    return true;
}

/* A value as the inside of a JSON string. Text lines take the same escapes: one line stays one line. */
static bool put_escaped(is_log_line *l, const char *s)
{
    size_t n = strlen(s);
    bool utf8 = is_utf8_valid(s, n, NULL), ok = true;
    char u[8];
    for (size_t i = 0; i < n && ok; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c == '"' || c == '\\') {
            u[0] = '\\';
            u[1] = (char)c;
            ok = put(l, u, 2);
        } else if (c < 0x20 || c == 0x7f || (c >= 0x80 && !utf8)) {
            snprintf(u, sizeof u, "\\u%04x", c);
            ok = put(l, u, 6);
        } else {
            ok = put(l, s + i, 1);
        }
    }
    return ok;
}

/* A sentence of a text line: no control characters, all else as it is. */
static bool put_sentence(is_log_line *l, const char *s)
{
    bool utf8 = is_utf8_valid(s, strlen(s), NULL), ok = true;
    for (; *s && ok; s++) {
        unsigned char c = (unsigned char)*s;
        ok = put(l, c < 0x20 || c == 0x7f || (c >= 0x80 && !utf8) ? "?" : s, 1);
    }
    return ok;
}

static void field(is_log_line *l, const char *key, const char *value, bool quoted)
{
    size_t before = l->len;
    bool ok = true;
    if (l->len == 0) return; /* the log is off */
    if (l->text[0] == '{')
        ok = put(l, ",\"", 2) && put_escaped(l, key) && put(l, "\":", 2) && (!quoted || put(l, "\"", 1)) &&
             put_escaped(l, value) && (!quoted || put(l, "\"", 1));
    else if (strcmp(key, "message") == 0)
        ok = put(l, " ", 1) && put_sentence(l, value);
    else
        ok = put(l, " ", 1) && put_escaped(l, key) && put(l, "=", 1) && put_escaped(l, *value ? value : "-");
    if (!ok) l->len = before;
}

static int text_head(int level, const char *when, bool colour, char *out, size_t cap)
{
    const char *on = level <= IS_LOG_ERROR ? "\033[31m" : level == IS_LOG_WARN ? "\033[33m" : level == IS_LOG_INFO ? "\033[32m" : "";
    return colour ? snprintf(out, cap, "\033[2m%s\033[0m %s%-7s\033[0m", when, on, level_name(level))
                  : snprintf(out, cap, "%s %-7s", when, level_name(level));
}

void is_log_begin(is_log_line *l, int level, const char *what)
{
    struct timespec t;
    struct tm tm;
    char when[40], head[160];
    is_log_form form = form_now();
    l->level = level;
    l->len = 0;
    if (form == IS_LOG_FORM_OFF || level > IS_LOG_INFO) return;
    clock_gettime(CLOCK_REALTIME, &t);
    gmtime_r(&t.tv_sec, &tm);
    size_t n = strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(when + n, sizeof when - n, ".%03ldZ", t.tv_nsec / 1000000);
    int len = form == IS_LOG_FORM_JSON ? snprintf(head, sizeof head, "{\"time\":\"%s\",\"level\":\"%s\",\"what\":\"%s\"", when,
                                                  level_name(level), what)
                                       : text_head(level, when, form == IS_LOG_FORM_COLOUR, head, sizeof head);
    put(l, head, (size_t)len);
    if (form != IS_LOG_FORM_JSON && strcmp(what, "request") == 0) put(l, " request", 8);
}

void is_log_text(is_log_line *l, const char *key, const char *value) { field(l, key, value, true); }

void is_log_int(is_log_line *l, const char *key, long long value)
{
    char s[32];
    snprintf(s, sizeof s, "%lld", value);
    field(l, key, s, false);
}

void is_log_ms(is_log_line *l, const char *key, double ms)
{
    char s[64];
    snprintf(s, sizeof s, "%.3f", ms);
    field(l, key, s, false);
}

void is_log_end(is_log_line *l)
{
    if (l->len == 0) return;
    if (l->text[0] == '{') l->text[l->len++] = '}';
    l->text[l->len++] = '\n';
    entry *e = is_malloc(sizeof *e + l->len);
    if (e) {
        e->next = NULL;
        e->len = l->len;
        memcpy(e->text, l->text, l->len);
    }
    pthread_mutex_lock(&lg.lock);
    if (!e || lg.form == IS_LOG_FORM_OFF || lg.n >= WAITING_MAX) {
        lg.dropped++;
        is_free(e);
    } else {
        if (lg.last)
            lg.last->next = e;
        else
            lg.first = e;
        lg.last = e;
        lg.n++;
        pthread_cond_signal(&lg.more);
    }
    pthread_mutex_unlock(&lg.lock);
}

/* ---- Writing ------------------------------------------------------------------------------------------------------------- */

static void say_dropped(unsigned long long n)
{
    is_log_line l;
    is_log_begin(&l, IS_LOG_WARN, "server");
    is_log_text(&l, "message", "log lines were dropped: whoever reads the log is too slow");
    is_log_int(&l, "dropped", (long long)n);
    is_log_end(&l);
}

static void *write_lines(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&lg.lock);
    for (;;) {
        while (!lg.first && !lg.stop) pthread_cond_wait(&lg.more, &lg.lock);
        entry *e = lg.first;
        if (!e) break;
        lg.first = e->next;
        if (!lg.first) lg.last = NULL;
        lg.n--;
        unsigned long long dropped = lg.first ? 0 : lg.dropped; /* said when there is room again */
        lg.dropped -= dropped;
        lg.writing = true;
        pthread_mutex_unlock(&lg.lock);
        lg.sink(lg.ctx, e->text, e->len);
        is_free(e);
        if (dropped) say_dropped(dropped);
        pthread_mutex_lock(&lg.lock);
        lg.writing = false;
        if (!lg.first) pthread_cond_broadcast(&lg.idle);
    }
    pthread_mutex_unlock(&lg.lock);
    return NULL;
}

is_status is_serve_log_start(is_log_form form, is_log_sink sink, void *ctx)
{
    if (form == IS_LOG_FORM_OFF || !sink) return INFERSCALE_OK;
    pthread_mutex_lock(&lg.lock);
    bool running = lg.form != IS_LOG_FORM_OFF;
    if (!running) {
        lg.form = form;
        lg.sink = sink;
        lg.ctx = ctx;
        lg.stop = false;
        lg.dropped = 0;
    }
    pthread_mutex_unlock(&lg.lock);
    if (running) return is_fail(INFERSCALE_E_INTERNAL, "the log is already being written; stop it first");
    if (pthread_create(&lg.thread, NULL, write_lines, NULL) == 0) return INFERSCALE_OK;
    lg.form = IS_LOG_FORM_OFF;
    return is_fail(INFERSCALE_E_NOMEM, "no thread for the log; close other programs and try again");
}

void is_serve_log_flush(void)
{
    pthread_mutex_lock(&lg.lock);
    while (lg.form != IS_LOG_FORM_OFF && !lg.stop && (lg.first || lg.writing)) pthread_cond_wait(&lg.idle, &lg.lock);
    pthread_mutex_unlock(&lg.lock);
}

void is_serve_log_stop(void)
{
    pthread_mutex_lock(&lg.lock);
    bool running = lg.form != IS_LOG_FORM_OFF;
    lg.stop = true;
    pthread_cond_signal(&lg.more);
    pthread_mutex_unlock(&lg.lock);
    if (!running) return;
    pthread_join(lg.thread, NULL);
    pthread_mutex_lock(&lg.lock);
    lg.form = IS_LOG_FORM_OFF;
    while (lg.first) { /* came between the last look and now */
        entry *e = lg.first;
        lg.first = e->next;
        lg.sink(lg.ctx, e->text, e->len);
        is_free(e);
    }
    lg.last = NULL;
    lg.n = 0;
    pthread_mutex_unlock(&lg.lock);
}

void is_serve_log(int level, const char *fmt, ...)
{
    is_log_line l;
    char message[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    is_log_begin(&l, level, "server");
    is_log_text(&l, "message", message);
    is_log_end(&l);
}

void is_serve_log_library(void *ctx, int level, const char *message)
{
    is_log_line l;
    is_log_begin(&l, level, "library");
    is_log_text(&l, "message", message);
    is_log_end(&l);
}
