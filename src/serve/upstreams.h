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
/* Are answers computed elsewhere? Then the engine's failure is one of those servers'. */
bool is_upstreams_compute(inferscale *is);
/* True where none of them can take a request now; why[256]: how many there are, and, if details are for whoever asks, what is wrong. */
bool is_upstreams_down(inferscale *is, bool details, char why[256]);

#endif
