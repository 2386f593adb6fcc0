/* ops.h - what operators look at: the state of the encoder and the store as metrics, /health, /ready, /metrics, /openapi.json.
 *
 * Sizes and lags cost a walk over the store, and whether it can be read and written a try of both. Threads of their own look when somebody
 * asks and what is known is old, at most a twentieth of the time; who asks waits for it a moment, and then gets what there is. */
#ifndef IS_SERVE_OPS_H
#define IS_SERVE_OPS_H

#include "serve/server.h"

/* When store and metrics are there, before the first request; sets s->ops. */
inferscale_status is_ops_start(is_server *s);
void is_ops_stop(is_server *s);              /* before the store is closed; without is_ops_start nothing */

/* Brings the gauges up to date, and the state of the store. */
void is_ops_refresh(is_server *s);
/* Why the server takes no requests now, as a sentence in why[256]; false = it takes them. */
bool is_ops_not_ready(is_server *s, char why[256]);
/* What it cannot do though it takes requests, as a sentence; "" = it can do all. */
void is_ops_notice(is_server *s, char notice[256]);

#endif
