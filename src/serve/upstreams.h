/* upstreams.h - the servers of an engine that computes elsewhere, for metrics, /inferscale/info and doctor. */
#ifndef IS_SERVE_UPSTREAMS_H
#define IS_SERVE_UPSTREAMS_H

#include <jansson.h>

#include "api/handle.h"
#include "serve/metrics.h"

/* Those of the engine if it is loaded; is_free. *n = 0 and NULL where there are none. NULL with *n > 0: out of memory. */
is_upstream *is_upstreams_of(inferscale *is, size_t *n);
/* [{url, up, can_inject, why, version, model, fingerprint, in_flight, pending, requests, retries, tokens_injected, failures: {CODE: n}}] */
json_t *is_upstreams_json(const is_upstream *list, size_t n);
void is_upstreams_measure(inferscale *is, is_metrics *m);

#endif
