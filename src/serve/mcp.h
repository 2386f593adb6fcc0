/* mcp.h - the Model Context Protocol over any transport: a message in, its reply out. Nothing is kept between messages, so one connection,
 * many, or none that lasts are the same. Revision 2025-06-18, and older ones by which clients begin. */
#ifndef IS_SERVE_MCP_H
#define IS_SERVE_MCP_H

#include <jansson.h>
#include <stdbool.h>

#include "inferscale.h"

struct is_server;

typedef struct is_mcp {
    inferscale *is;
    inferscale_scope scope;    /* whose memory; the model at the other end cannot name another */
    bool has_scope;            /* false: tools refuse, with how_to_name */
    const char *how_to_name;   /* "send the header X-Inferscale-User" */
    bool loading;              /* the model is: searches are told to come again */
    void (*count)(void *ctx, const char *operation, const char *result); /* may be NULL */
    void *ctx;
    const struct is_server *server; /* whose clients are not told where its own servers are; NULL: only its owner listens */
} is_mcp;

/* The reply to one message or batch of n bytes; NULL = it wants none (notifications, replies). Bad input has a reply too: *bad (may be NULL)
 * says that it was no JSON-RPC at all. */
json_t *is_mcp_answer(const is_mcp *m, const char *text, size_t n, bool *bad);
/* An error reply with id null. */
json_t *is_mcp_error(int code, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
bool is_mcp_version(const char *version); /* is this revision spoken here? */
json_t *is_mcp_versions(void);            /* all of them, the newest first */

enum { IS_MCP_PARSE = -32700, IS_MCP_REQUEST = -32600, IS_MCP_METHOD = -32601, IS_MCP_PARAMS = -32602, IS_MCP_INTERNAL = -32603,
       IS_MCP_UNSUPPORTED_VERSION = -32022 };

/* mcp_tools.c: what tools/list says, and a call. NULL: there is no such tool. */
json_t *is_mcp_tools(void);
json_t *is_mcp_call(const is_mcp *m, const char *name, json_t *arguments);

#endif
