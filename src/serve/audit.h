/* audit.h - measured fidelity in production: for a chosen share of the answers from injected memory, the text twin of the same plan is
 * run after the answer, when no question is open, and the two executions' distributions are compared along the answer's tokens
 * (eval/twin.h).
 *
 * What waits is little and short-lived: ids of facts and names of their segments, tokens of the rest. No text of a fact; nothing on
 * disk; what is forgotten or changed meanwhile is dropped before forgetting returns. What comes out is numbers. */
#ifndef IS_SERVE_AUDIT_H
#define IS_SERVE_AUDIT_H

#include "serve/server.h"

/* Before the first request: listens to the store's answers if config->audit > 0; else s->audit is NULL. E_INVALID (not 0 to 1), E_NOMEM. */
inferscale_status is_audit_start(is_server *s);
void is_audit_stop(is_server *s);     /* before the store is closed; what waits is dropped. Nothing if it is off */
/* What was found, a new object: share, counts, means of all and of the last ones, order ratio. NULL = out of memory. */
json_t *is_audit_json(is_server *s);

#endif
