/* http_run.h - how server.c starts and ends the HTTP face. */
#ifndef IS_SERVE_HTTP_RUN_H
#define IS_SERVE_HTTP_RUN_H

#include <stdbool.h>

#include "base/status.h"
#include "serve/http.h"

/* Times that are no settings; tests shorten them. 0 = the default. */
typedef struct is_http_tune {
    double ping_ms;            /* an event stream without news gets a comment; 10 s */
    double slow_ms;            /* a client that takes nothing of a full stream for so long is cut; 30 s */
    double watch_ms;           /* between two looks for hang-ups and deadlines; 100 ms */
} is_http_tune;
void is_http_set_tune(const is_http_tune *tune); /* before is_http_start */

/* Tests: routes beside those of the faces, and before them; NULL = none. Before is_server_run. */
void is_server_set_extra(const is_route *table);

/* Listens on config->host and port and reads the TLS files: what can be wrong is told before a model is loaded. Who connects waits until
 * is_http_start. s->http is set. E_DENIED, E_BUSY (the address is taken), E_INVALID, E_NOMEM, E_IO. */
is_status is_http_claim(is_server *s);
/* After is_http_claim: serves the tables (NULL ends the list, which must live as long) from now on. If it fails, is_http_stop. */
is_status is_http_start(is_server *s, const is_route *const *tables);
int is_http_port(const is_server *s);
/* No new connection; requests of old ones hear 503, those that run go on. */
void is_http_drain(is_server *s);
unsigned is_http_in_flight(const is_server *s);
/* Sets every request's cancel flag; those that wait are refused. */
void is_http_cancel_all(is_server *s);
/* Waits for the routes that run, then ends all. */
void is_http_stop(is_server *s);

#endif
