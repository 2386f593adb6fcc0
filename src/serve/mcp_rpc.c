/* mcp_rpc.c - JSON-RPC 2.0 as MCP uses it: messages and batches of them. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/words.h"
#include "exchange/json.h"
#include "serve/mcp.h"

enum { BATCH_MAX = 100 };

static const char *const versions[] = { "2025-06-18", "2025-03-26", "2024-11-05" }; /* the newest first */
enum { N_VERSIONS = sizeof versions / sizeof *versions };

bool is_mcp_version(const char *version)
{
    for (size_t i = 0; i < N_VERSIONS; i++)
        if (!strcmp(versions[i], version)) return true;
    return false;
}

json_t *is_mcp_versions(void)
{
    json_t *list = json_array();

    for (size_t i = 0; i < N_VERSIONS; i++) json_array_append_new(list, json_string(versions[i]));
    return list;
}

static const char instructions[] =
    "A long-term memory of one user. Search it before answering what may depend on earlier conversations; add what will matter later, one "
    "self-contained fact each, with the date it is about. Change or delete what is no longer true.";

/* ---- Replies --------------------------------------------------------------------------------------------------------------- */

/* Steals what; id is borrowed, NULL = null. */
static json_t *reply(json_t *id, const char *member, json_t *what)
{
    return json_pack("{s:s,s:o,s:o}", "jsonrpc", "2.0", "id", id ? json_incref(id) : json_null(), member, what);
}

/* message: what it quotes may be no UTF-8, or cut within a character. */
static json_t *error_for(json_t *id, int code, const char *message)
{
    return reply(id, "error", json_pack("{s:i,s:o}", "code", code, "message", is_json_text(message)));
}

json_t *is_mcp_error(int code, const char *fmt, ...)
{
    char message[512];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    return error_for(NULL, code, message);
}

/* ---- Methods --------------------------------------------------------------------------------------------------------------- */

/* The client's revision if it is spoken here, else ours: the client then decides whether it goes on. */
static json_t *initialize(const is_mcp *m, json_t *id, json_t *params)
{
    const char *asked = json_string_value(json_object_get(params, "protocolVersion"));

    (void)m;
    if (!asked) return error_for(id, IS_MCP_PARAMS, "initialize needs params.protocolVersion, a string");
    return reply(id, "result",
                 json_pack("{s:s,s:{s:{s:b}},s:{s:s,s:s,s:s},s:s}", "protocolVersion", is_mcp_version(asked) ? asked : versions[0],
                           "capabilities", "tools", "listChanged", 0, "serverInfo", "name", "inferscale", "title", "InferScale memory",
                           "version", inferscale_version(), "instructions", instructions));
}

static json_t *call(const is_mcp *m, json_t *id, json_t *params)
{
    const char *name = json_string_value(json_object_get(params, "name"));
    json_t *arguments = json_object_get(params, "arguments"), *result;
    char why[160];

    if (!name) return error_for(id, IS_MCP_PARAMS, "tools/call needs params.name, a string");
    if (json_is_null(arguments)) arguments = NULL;
    if (arguments && !json_is_object(arguments)) return error_for(id, IS_MCP_PARAMS, "params.arguments must be an object");
    result = is_mcp_call(m, name, arguments);
    if (result) return reply(id, "result", result);
    snprintf(why, sizeof why, "Unknown tool: %.60s; tools/list names them", name);
    return error_for(id, IS_MCP_PARAMS, why);
}

static json_t *dispatch(const is_mcp *m, json_t *id, const char *method, json_t *params)
{
    char why[160];

    if (!strcmp(method, "initialize")) return initialize(m, id, params);
    if (!strcmp(method, "ping")) return reply(id, "result", json_object());
    if (!strcmp(method, "tools/list")) return reply(id, "result", json_pack("{s:o}", "tools", is_mcp_tools()));
    if (!strcmp(method, "tools/call")) return call(m, id, params);
    snprintf(why, sizeof why, "Method not found: %.60s", method);
    return error_for(id, IS_MCP_METHOD, why);
}

/* One message. NULL: it wants no reply. */
static json_t *answer(const is_mcp *m, json_t *message)
{
    json_t *id = json_object_get(message, "id"), *params = json_object_get(message, "params");
    const char *method = json_string_value(json_object_get(message, "method")), *rpc = json_string_value(json_object_get(message, "jsonrpc"));

    if (!json_is_object(message) || !rpc || strcmp(rpc, "2.0") != 0)
        return error_for(NULL, IS_MCP_REQUEST, "a message is an object with \"jsonrpc\": \"2.0\"");
    if (!method && (json_object_get(message, "result") || json_object_get(message, "error"))) return NULL; /* to something we never asked */
    if (!method) return error_for(NULL, IS_MCP_REQUEST, "a message needs a method, a string");
    if (!id) return NULL; /* a notification: nothing here depends on one */
    if (!json_is_string(id) && !json_is_integer(id)) return error_for(NULL, IS_MCP_REQUEST, "id must be a string or a whole number");
    if (params && !json_is_object(params)) return error_for(id, IS_MCP_PARAMS, "params must be an object");
    return dispatch(m, id, method, params);
}

/* Batches are of revision 2025-03-26. */
static json_t *answer_all(const is_mcp *m, json_t *batch)
{
    json_t *replies = json_array(), *each;
    size_t i;

    if (json_array_size(batch) == 0 || json_array_size(batch) > BATCH_MAX) {
        json_decref(replies);
        return is_mcp_error(IS_MCP_REQUEST, "a batch has 1 to %d messages", BATCH_MAX);
    }
    json_array_foreach(batch, i, each)
    {
        json_t *one = answer(m, each);

        if (one) json_array_append_new(replies, one);
    }
    if (json_array_size(replies)) return replies;
    json_decref(replies);
    return NULL;
}

json_t *is_mcp_answer(const is_mcp *m, const char *text, size_t n, bool *bad)
{
    json_error_t error;
    json_t *message = json_loadb(text, n, JSON_REJECT_DUPLICATES, &error), *out;
    int reader;

    if (bad) *bad = !message;
    if (!message) return is_mcp_error(IS_MCP_PARSE, "Parse error: %.160s", error.text);
    reader = is_reader_here(IS_READER_MCP);
    out = json_is_array(message) ? answer_all(m, message) : answer(m, message);
    is_reader_here(reader);
    json_decref(message);
    return out;
}
