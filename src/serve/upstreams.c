/* upstreams.c - see upstreams.h. */
#include "serve/upstreams.h"

#include <stdio.h>

#include "base/log.h"
#include "base/mem.h"
#include "exchange/json.h"

is_upstream *is_upstreams_of(inferscale *is, size_t *n)
{
    is_engine *e = is_handle_engine_if_loaded(is);
    is_upstream *list;

    *n = is_engine_upstreams(e, NULL, 0);
    if (*n > IS_UPSTREAMS_MAX) *n = IS_UPSTREAMS_MAX;
    if (*n == 0) return NULL;
    list = is_calloc(*n, sizeof *list);
    if (list) is_engine_upstreams(e, list, *n);
    return list;
}

static json_t *reasons_json(const is_upstream *u)
{
    json_t *o = json_object();

    for (uint32_t i = 0; i < u->n_reasons && i < IS_REASONS_MAX; i++)
        json_object_set_new(o, u->reasons[i].code, json_integer((json_int_t)u->reasons[i].n));
    return o;
}

json_t *is_upstreams_json(const is_upstream *list, size_t n)
{
    json_t *all = json_array();

    for (size_t i = 0; i < n; i++) {
        const is_upstream *u = &list[i];
        char hex[IS_HASH_HEX];

        is_hex(u->fingerprint, IS_HASH_BYTES, hex);
        json_array_append_new(all, json_pack("{s:o,s:b,s:b,s:o,s:o,s:o,s:s,s:I,s:I,s:I,s:I,s:I,s:o}", "url", is_json_text(u->url), "up", u->up,
                                             "can_inject", u->can_inject, "why", is_json_text(u->why), "version", is_json_text(u->version),
                                             "model", is_json_text(u->model), "fingerprint", hex, "in_flight", (json_int_t)u->in_flight,
                                             "pending", (json_int_t)u->n_pending, "requests", (json_int_t)u->n_requests, "retries",
                                             (json_int_t)u->n_retries, "tokens_injected", (json_int_t)u->tokens_injected, "failures",
                                             reasons_json(u)));
    }
    return all;
}

static void measure(const is_upstream *u, is_metrics *m)
{
    is_metric_set(m, IS_M_UPSTREAM_UP, u->url, NULL, u->up);
    is_metric_set(m, IS_M_UPSTREAM_INJECTS, u->url, NULL, u->can_inject);
    is_metric_set(m, IS_M_UPSTREAM_IN_FLIGHT, u->url, NULL, u->in_flight);
    is_metric_set(m, IS_M_UPSTREAM_PENDING, u->url, NULL, u->n_pending);
    is_metric_set(m, IS_M_UPSTREAM_REQUESTS, u->url, NULL, (double)u->n_requests);
    is_metric_set(m, IS_M_UPSTREAM_RETRIES, u->url, NULL, (double)u->n_retries);
    is_metric_set(m, IS_M_UPSTREAM_INJECTED, u->url, NULL, (double)u->tokens_injected);
    for (uint32_t i = 0; i < u->n_reasons && i < IS_REASONS_MAX; i++)
        is_metric_set(m, IS_M_UPSTREAM_FAILURES, u->url, u->reasons[i].code, (double)u->reasons[i].n);
}

void is_upstreams_measure(inferscale *is, is_metrics *m)
{
    size_t n;
    is_upstream *list = is_upstreams_of(is, &n);

    if (n && !list) is_log(IS_LOG_WARN, "metrics: out of memory for the upstreams");
    for (size_t i = 0; list && i < n; i++) measure(&list[i], m);
    is_free(list);
}

bool is_upstreams_compute(inferscale *is)
{
    is_engine *e = is ? is_handle_engine_if_loaded(is) : NULL;

    return e && is_engine_describe(e)->remote;
}

bool is_upstreams_down(inferscale *is, bool details, char why[256])
{
    size_t n = 0, n_up = 0;
    is_upstream *list = is ? is_upstreams_of(is, &n) : NULL;

    for (size_t i = 0; list && i < n; i++) n_up += list[i].up;
    if (list && n_up == 0) {
        int at = snprintf(why, 256, n == 1 ? "the vLLM server is not up" : "none of the %zu vLLM servers is up", n);

        if (details) snprintf(why + at, 256 - (size_t)at, ": %s", list[0].why);
        else snprintf(why + at, 256 - (size_t)at, "; GET /inferscale/info says why to an admin");
        is_free(list);
        return true;
    }
    is_free(list);
    return false;
}
