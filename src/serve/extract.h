/* extract.h - infer: true: facts out of a conversation, by a model that is told to, and believed only as far as it can be checked.
 *
 * Method. The conversation's turns are kept first, with their time. Only what users say is extracted from: not system or tool messages
 * (recalled memory stands there), and what an assistant says is shown to the model as context alone. The model (the served one, held to a
 * grammar; or any OpenAI endpoint) names facts, each with the line it comes from. A fact counts if extract_check.c finds nothing against
 * it: its words stand in the user's lines, it stands by itself, it was not forgotten once. Then it is compared with the nearest facts that
 * are remembered: without a common word it is added; the same text is left (NOOP); else the model chooses between ADD, UPDATE (a new version),
 * DELETE (the old one no longer holds: it is superseded and stays in the history; a model's word never destroys anything) and NOOP. An
 * answer that cannot be read or checked changes nothing, and is counted. */
#ifndef IS_SERVE_EXTRACT_H
#define IS_SERVE_EXTRACT_H

#include "serve/server.h"

/* Who extracts. url NULL or "": the model of is. Strings are borrowed. */
typedef struct is_extractor {
    inferscale *is;
    const char *url, *model, *key;
    long timeout_ms;               /* of an endpoint's answer; 0 = a minute */
    const volatile int *cancel;    /* polled while an endpoint is waited for; NULL = none */
} is_extractor;
is_extractor is_extractor_of(const is_server *s);

typedef struct is_extract_options {
    int64_t when;                  /* the conversation's time; 0 = now. A message's own timestamp or created_at goes before it */
    int64_t expires;               /* of the facts; 0 = never */
    json_t *metadata;              /* an object for each fact, borrowed; NULL = none */
    const volatile int *cancel;    /* as is_extractor.cancel */
} is_extract_options;

/* messages: [{role, content, name}]. *events: a new array of {"id", "memory", "event"[, "previous_memory"]}, the events ADD, UPDATE, DELETE
 * or NOOP. Errors: E_INVALID (messages), E_UNSUPPORTED (the engine holds to no grammar), E_IO (the
 * endpoint), E_CANCELLED, of the store. Turns are kept then all the same. */
inferscale_status is_extract_with(is_server *s, const inferscale_scope *scope, json_t *messages, const is_extract_options *o, json_t **events);
inferscale_status is_extract(is_server *s, const inferscale_scope *scope, json_t *messages, int64_t when, json_t **events);

/* ---- Is the model good enough? --------------------------------------------------------------------------------------------- */

/* A few made-up dialogues, each fact known. */
typedef struct is_extract_test {
    int dialogues, expected, found, junk, refused; /* junk: facts that passed the checks and that nobody expected; refused: by the checks */
    int passed;                    /* found >= 80 % of expected, junk <= 20 % of what was extracted */
    int64_t time;
    char model[128];
} is_extract_test;
inferscale_status is_extract_selftest(const is_extractor *x, is_extract_test *out);
/* The last result for this model (by fingerprint) or endpoint (by URL and model), kept in the cache folder. E_NOTFOUND. */
inferscale_status is_extract_last(const is_extractor *x, is_extract_test *out);

/* What infer means when a request does not say: true once the self-test has passed with this model. The model must be loaded. */
bool is_extract_default(is_server *s);
json_t *is_extract_json(is_server *s); /* for /inferscale/info: who extracts, the default, the last self-test */

#endif
