/* fuzz_mcp.c - the JSON-RPC reader of MCP: any bytes have a reply that is JSON-RPC, or none. Tools are called up to their arguments' check: the
 * connection names no owner. */
#include <jansson.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/mcp.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(int holds, const char *what)
{
    if (holds) return;
    fprintf(stderr, "does not hold: %s\n", what);
    abort();
}

static void check_reply(json_t *o)
{
    const char *version = json_string_value(json_object_get(o, "jsonrpc"));
    json_t *id = json_object_get(o, "id"), *result = json_object_get(o, "result"), *error = json_object_get(o, "error");

    check(version && !strcmp(version, "2.0"), "a reply is JSON-RPC 2.0");
    check(json_is_string(id) || json_is_integer(id) || json_is_null(id), "a reply has an id");
    check(!result != !error, "a reply has a result or an error, and not both");
    if (error)
        check(json_integer_value(json_object_get(error, "code")) < 0 && json_is_string(json_object_get(error, "message")),
              "an error has its code and sentence");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const is_mcp m = { .how_to_name = "say it" };
    bool bad = false;
    json_t *o = is_mcp_answer(&m, (const char *)data, size, &bad), *each;
    size_t i;

    check(!bad || o, "what is no JSON has a reply");
    if (json_is_array(o)) {
        check(json_array_size(o) > 0, "a batch of replies is not empty");
        json_array_foreach(o, i, each) check_reply(each);
    } else if (o) {
        check_reply(o);
    }
    json_decref(o);
    return 0;
}
