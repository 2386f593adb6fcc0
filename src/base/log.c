/* log.c - log lines to the application's functions. */
#include "base/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static is_logger *loggers;  /* the newest first */
static uint64_t last_id;
static inferscale_log_fn log_fn;
static void *log_ctx;
static _Thread_local uint64_t id_here;

void is_logger_add(is_logger *l, inferscale_log_fn fn, void *ctx)
{
    pthread_mutex_lock(&lock);
    *l = (is_logger){ .next = loggers, .id = ++last_id, .fn = fn, .ctx = ctx };
    loggers = l;
    pthread_mutex_unlock(&lock);
}

void is_logger_drop(is_logger *l)
{
    pthread_mutex_lock(&lock);
    for (is_logger **at = &loggers; *at; at = &(*at)->next)
        if (*at == l) {
            *at = l->next;
            break;
        }
    pthread_mutex_unlock(&lock);
}

void is_log_for(uint64_t id)
{
    id_here = id;
}

uint64_t is_log_here(void)
{
    return id_here;
}

void is_log_set(inferscale_log_fn fn, void *ctx)
{
    pthread_mutex_lock(&lock);
    log_fn = fn;
    log_ctx = ctx;
    pthread_mutex_unlock(&lock);
}

/* Under the lock. */
static inferscale_log_fn find(void **ctx)
{
    const is_logger *newest = NULL;

    for (const is_logger *l = loggers; l; l = l->next) {
        if (l->id == id_here) {
            *ctx = l->ctx;
            return l->fn;
        }
        if (!newest && l->fn) newest = l;
    }
    *ctx = newest ? newest->ctx : log_ctx;
    return newest ? newest->fn : log_fn;
}

void is_log(int level, const char *fmt, ...)
{
    char line[1024];
    inferscale_log_fn fn;
    void *ctx;
    va_list ap;

    pthread_mutex_lock(&lock);
    fn = find(&ctx);
    pthread_mutex_unlock(&lock);
    if (!fn) return;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    fn(ctx, level, line); /* outside the lock: the function may take its own */
}
