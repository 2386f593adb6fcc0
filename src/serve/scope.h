/* scope.h - whose memory a request means: names in the body, the query or headers, within what its key allows. */
#ifndef IS_SERVE_SCOPE_H
#define IS_SERVE_SCOPE_H

#include "serve/http.h"

typedef struct is_owner {
    inferscale_scope scope;        /* points into text */
    bool given;                    /* an owner is named, here or by the key */
    char text[5 * (INFERSCALE_NAME_MAX + 2)];
} is_owner;

/* user_id, agent_id, run_id, app_id (strings of 1 to INFERSCALE_NAME_MAX bytes) from `from` (a JSON object, may be NULL), else from
 * the query, else from X-Inferscale-User, -Agent, -Run, -App. A key bound to a scope adds its names; another name than the key's is
 * E_DENIED, a name that is no string or too long E_INVALID: then the error has been replied, just return. The tenant is the key's alone. */
inferscale_status is_scope_read(is_request *r, json_t *from, is_owner *out);

#endif
