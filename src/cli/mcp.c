/* mcp.c - `inferscale mcp`: the Model Context Protocol on the standard input and output, one message a line. */
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/words.h"
#include "cli/args.h"
#include "cli/out.h"
#include "serve/mcp.h"

enum { LINE_MAX_BYTES = 8 << 20 };

/* The next line, without its end, into b. 1: there is one; 0: the input has ended; -1: it was too long, and has been passed over. */
static int read_line(is_buf *b)
{
    int c;
    bool any = false;
    is_buf_clear(b);
    while ((c = getc_unlocked(stdin)) != EOF && c != '\n') {
        any = true;
        is_buf_u8(b, (uint8_t)c);
    }
    if (c == EOF && !any) return 0;
    return is_buf_ok(b) ? 1 : -1;
}

/* Steals reply. false: nobody reads any more. */
static bool write_line(json_t *reply)
{
    bool ok = !reply || (json_dumpf(reply, stdout, JSON_COMPACT) == 0 && putchar('\n') != EOF && fflush(stdout) == 0);
    json_decref(reply);
    return ok;
}

static void serve(const is_mcp *m)
{
    is_buf line = { .max = LINE_MAX_BYTES };
    int got;
    while ((got = read_line(&line)) != 0) {
        if (got < 0) {
            if (!write_line(is_mcp_error(IS_MCP_PARSE, "a message has more than %d bytes", LINE_MAX_BYTES))) break;
            continue;
        }
        if (strspn((const char *)line.data ? (const char *)line.data : "", " \t\r") >= line.len) continue; /* blank */
        if (!write_line(is_mcp_answer(m, (const char *)line.data, line.len, NULL))) break;
    }
    is_buf_free(&line);
}

static int cmd_mcp(const cli_args *a)
{
    inferscale *is = NULL;
    is_mcp m = { .has_scope = true };
    int rc;
    if (cli_n(a)) return cli_usage(a, "takes no arguments; --user, --agent, --run or --app say whose memory it is");
    cli_scope(a, &m.scope);
    rc = cli_open_background(a, &is);
    if (rc != CLI_OK) return rc;
    m.is = is;
    is_reader_set(IS_READER_MCP);
    serve(&m);
    inferscale_close(is);
    return CLI_OK;
}

static const cli_option options[] = {
    { NULL, NULL, NULL },
};

const cli_verb cli_verb_mcp = {
    "mcp", "", "Serve memory to an MCP client (stdio)",
    "For programs such as editors and assistants that start their tools themselves. Their model gets six tools: add, search, get, list, update "
    "and delete memories of the owner that --user (or --agent, --run, --app) names, and of no other. What is added is embedded and encoded in "
    "the background while the program runs. A server that runs already has the same at POST /mcp.\n\n"
    "Examples:\n  {\"mcpServers\": {\"memory\": {\"command\": \"inferscale\", \"args\": [\"mcp\", \"--user\", \"anna\"]}}}\n",
    options, CLI_STORE | CLI_SCOPE | CLI_MODEL, cmd_mcp,
};
