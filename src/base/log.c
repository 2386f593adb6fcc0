/* log.c - log lines to the application's function. */
#include "base/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static inferscale_log_fn log_fn;
static void *log_ctx;

void is_log_set(inferscale_log_fn fn, void *ctx)
{
    pthread_mutex_lock(&lock);
    log_fn = fn;
    log_ctx = ctx;
    pthread_mutex_unlock(&lock);
}

void is_log(int level, const char *fmt, ...)
{
    char line[1024];
    inferscale_log_fn fn;
    void *ctx;
    va_list ap;

    pthread_mutex_lock(&lock);
    fn = log_fn;
    ctx = log_ctx;
    pthread_mutex_unlock(&lock);
    if (!fn) return;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    fn(ctx, level, line); /* outside the lock: the function may take its own */
}
