/* scope.c - whose memory a request means. */
#include "serve/scope.h"

#include <string.h>

#include "base/status.h"
#include "base/utf8.h"
#include "serve/keys.h"

enum { N_NAMES = 5, SLOT = INFERSCALE_NAME_MAX + 2 };

static const struct {
    const char *member, *header;
} names[N_NAMES] = {
    { NULL, NULL }, /* the tenant is the key's alone */
    { "user_id", "X-Inferscale-User" },
    { "agent_id", "X-Inferscale-Agent" },
    { "run_id", "X-Inferscale-Run" },
    { "app_id", "X-Inferscale-App" },
};

static is_status refuse(is_request *r, size_t i, is_status st)
{
    const char *type = st == INFERSCALE_E_DENIED ? "permission_error" : "invalid_request_error";
    is_reply_error(r, st == INFERSCALE_E_DENIED ? 403 : 400, type, st == INFERSCALE_E_DENIED ? "scope" : NULL, names[i].member,
                   "%s", is_error());
    return st;
}

/* What the request says: in its object, else its query, else its headers. *said NULL = nothing. */
static is_status said_by(is_request *r, json_t *from, size_t i, const char **said, size_t *n)
{
    json_t *v = from ? json_object_get(from, names[i].member) : NULL;
    *said = NULL;
    if (v && !json_is_null(v)) {
        if (!json_is_string(v)) return is_fail(INFERSCALE_E_INVALID, "%s must be a string of 1 to %d bytes", names[i].member, INFERSCALE_NAME_MAX);
        *said = json_string_value(v);
        *n = json_string_length(v);
    } else {
        *said = is_request_query(r, names[i].member);
        if (!*said) *said = is_request_header(r, names[i].header);
        if (*said) *n = strlen(*said);
    }
    if (!*said) return INFERSCALE_OK;
    if (*n == 0 || *n > INFERSCALE_NAME_MAX)
        return is_fail(INFERSCALE_E_INVALID, "%s must be a string of 1 to %d bytes", names[i].member, INFERSCALE_NAME_MAX);
    if (!is_utf8_valid(*said, *n, NULL))
        return is_fail(INFERSCALE_E_INVALID, "%s is not UTF-8, or has a NUL in it", names[i].member);
    return INFERSCALE_OK;
}

/* A key bound to an owner reads and writes within it: what it leaves open may narrow (agent, run, app inside a user), never widen. */
static is_status within(const char *mine, const char *said, size_t n, size_t i)
{
    if (*mine && said && (strlen(mine) != n || memcmp(mine, said, n) != 0))
        return is_fail(INFERSCALE_E_DENIED, "this API key is bound to another %s; leave %s out or use its own key",
                       names[i].member, names[i].member);
    return INFERSCALE_OK;
}

/* The partition's owner is the first of user, agent, run, app that is given. A key bound to agent=x that let a request add a user would
 * open that user's partition. */
static is_status same_owner(const is_key *k, const char *said, size_t i)
{
    const char *const mine[N_NAMES] = { k->tenant, k->user, k->agent, k->run, k->app };
    if (!k->bound || !said || *mine[i]) return INFERSCALE_OK;
    for (size_t j = 1; j < i; j++)
        if (*mine[j]) return INFERSCALE_OK; /* the owner stands before it */
    return is_fail(INFERSCALE_E_DENIED, "this API key is bound to an owner without %s; leave %s out", names[i].member,
                   names[i].member);
}

is_status is_scope_read(is_request *r, json_t *from, is_owner *out)
{
    static const is_key free_key;
    const is_key *k = is_request_key(r);
    memset(out, 0, sizeof *out);
    if (!k) k = &free_key;
    const char *const mine[N_NAMES] = { k->tenant, k->user, k->agent, k->run, k->app };
    const char **const to[N_NAMES] = { &out->scope.tenant, &out->scope.user, &out->scope.agent, &out->scope.run,
                                       &out->scope.app };
    for (size_t i = 0; i < N_NAMES; i++) {
        const char *said = NULL;
        char *slot = out->text + i * SLOT;
        size_t n = 0;
        is_status st = i ? said_by(r, from, i, &said, &n) : INFERSCALE_OK;
        if (st == INFERSCALE_OK) st = within(mine[i], said, n, i);
        if (st == INFERSCALE_OK && i) st = same_owner(k, said, i);
        if (st != INFERSCALE_OK) return refuse(r, i, st);
        if (*mine[i]) {
            said = mine[i];
            n = strlen(said);
        }
        if (!said) continue;
        memcpy(slot, said, n);
        slot[n] = '\0';
        *to[i] = slot;
        out->given |= i > 0;
    }
    return INFERSCALE_OK;
}
