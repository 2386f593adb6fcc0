/* mcp.c - MCP over streamable HTTP: each POST is answered with JSON; there are no sessions and no stream of the server's own, so GET and
 * DELETE are 405. Whose memory: by the key, the headers X-Inferscale-User ... or the query (/mcp?user_id=anna). */
#include "serve/mcp.h"

#include <string.h>

#include "serve/metrics.h"
#include "serve/server.h"

static void count(void *ctx, const char *operation, const char *result)
{
    is_metric_add(ctx, IS_M_MEMORY_OPS, operation, result, 1);
}

static void unsupported(is_request *r, const char *version)
{
    json_t *reply = is_mcp_error(IS_MCP_UNSUPPORTED_VERSION, "MCP revision %.40s is not spoken here", version);

    json_object_set_new(json_object_get(reply, "error"), "data", json_pack("{s:s,s:o}", "requested", version, "supported", is_mcp_versions()));
    is_reply_json(r, 400, reply);
}

static void post(is_server *s, is_request *r)
{
    const char *version = is_request_header(r, "MCP-Protocol-Version");
    size_t n = 0;
    const char *text = is_request_body(r, &n);
    is_mcp m = { .is = s->is, .how_to_name = "send the header X-Inferscale-User (or -Agent, -Run, -App), or a key that is bound to an owner",
                 .count = count, .ctx = s->metrics, .server = s };
    json_t *reply;
    is_owner o;
    bool bad;

    if (version && !is_mcp_version(version)) {
        unsupported(r, version);
        return;
    }
    if (is_scope_read(r, NULL, &o) != INFERSCALE_OK) return;
    m.scope = o.scope;
    m.has_scope = o.given;
    m.loading = !__atomic_load_n(&s->ready, __ATOMIC_ACQUIRE);
    reply = is_mcp_answer(&m, text ? text : "", n, &bad);
    if (reply) is_reply_json(r, bad ? 400 : 200, reply);
    else is_reply_bytes(r, 202, "application/json", "", 0);
}

const is_route is_routes_mcp[] = {
    { "POST", "/mcp", post, IS_FACE_OPENAI, 0 },
    { 0 },
};
