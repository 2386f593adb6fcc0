/* http_log.c - the log line and the counters of a request that is over. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "serve/http_in.h"
#include "serve/log.h"

/* What a client may call a method is its own affair; in the log stand those that there are. */
static const char *method_name(const char *m)
{
    static const char *const known[] = { "GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH" };
    for (size_t i = 0; m && i < sizeof known / sizeof *known; i++)
        if (strcmp(m, known[i]) == 0) return known[i];
    return "other";
}

/* What is a whole number stands as one. */
static void note(is_log_line *l, const pair *p)
{
    size_t n = strspn(p->value, "0123456789");
    if (n && n < 18 && !p->value[n] && (n == 1 || *p->value != '0'))
        is_log_int(l, p->name, strtoll(p->value, NULL, 10));
    else
        is_log_text(l, p->name, p->value);
}

void is_request_log(is_request *r)
{
    const char *path = r->route ? r->route->path : "none";
    double ms = (r->done_ms ? r->done_ms : is_now_ms()) - r->begun_ms;
    is_metrics *m = r->server->metrics;
    char code[16];
    is_log_line l;
    if (!r->begun) return; /* its head never came whole: libmicrohttpd has answered */
    snprintf(code, sizeof code, "%d", r->status);
    if (m) {
        is_metric_add(m, IS_M_HTTP_REQUESTS, path, code, 1);
        is_metric_observe(m, IS_M_HTTP_SECONDS, path, ms / 1000);
    }
    is_log_begin(&l, r->status >= 500 ? IS_LOG_WARN : IS_LOG_INFO, "request");
    is_log_text(&l, "request", r->id);
    is_log_text(&l, "method", method_name(r->method));
    is_log_text(&l, "route", path);
    is_log_int(&l, "status", r->status);
    is_log_int(&l, "bytes", (long long)r->bytes_out);
    is_log_ms(&l, "ms", ms);
    if (r->run_ms) is_log_ms(&l, "waited_ms", r->run_ms - r->begun_ms);
    if (r->has_key) is_log_text(&l, "key", r->key.name);
    int why = __atomic_load_n(&r->cancel, __ATOMIC_RELAXED);
    if (why) is_log_text(&l, "cancelled", why == CANCEL_HUNG_UP ? "client" : why == CANCEL_TIME ? "time" : "ending");
    for (size_t i = 0; i < r->n_notes; i++) note(&l, &r->notes[i]);
    is_log_end(&l);
}
