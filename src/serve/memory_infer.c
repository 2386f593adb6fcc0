/* memory_infer.c - adding memories: word for word (memory_add.c), or as what a model finds in them (extract.c). */
#include "base/status.h"
#include "serve/extract.h"
#include "serve/memory.h"
#include "serve/memory_infer.h"

/* infer says so; where it is not said, the self-test of the model decides. A text is always taken as it is. */
static bool wants_extraction(is_server *s, json_t *request)
{
    json_t *infer = json_object_get(request, "infer"), *messages = json_object_get(request, "messages");

    if (json_is_true(infer)) return true;
    return (!infer || json_is_null(infer)) && json_is_array(messages) && is_extract_default(s);
}

is_status is_memory_add_or_infer(is_server *s, const inferscale_scope *scope, json_t *request, json_t **results)
{
    json_t *text = json_object_get(request, "text"), *messages = json_object_get(request, "messages"), *when = json_object_get(request, "timestamp"),
           *one = NULL, *metadata;
    is_extract_options o = { .metadata = json_object_get(request, "metadata") };
    is_status st;

    *results = NULL;
    if (!wants_extraction(s, request)) return is_memory_add(s->is, scope, request, results);
    IS_TRY(is_members_check(request, "the request", is_memory_add_members));
    if (text && !json_is_null(text)) return is_fail(INFERSCALE_E_INVALID, "a text is remembered as it is; leave infer out, or give messages");
    if (json_is_null(o.metadata)) o.metadata = NULL;
    if (o.metadata && !json_is_object(o.metadata)) return is_fail(INFERSCALE_E_INVALID, "metadata must be an object");
    if (when && !json_is_null(when)) IS_TRY(is_when_parse(when, "timestamp", &o.when));
    IS_TRY(is_expiry_parse(request, &o.expires));
    if (json_is_string(messages)) messages = one = json_pack("[{s:s,s:O}]", "role", "user", "content", messages);
    o.metadata = metadata = o.metadata ? json_copy(o.metadata) : json_object();
    if (json_is_true(json_object_get(request, "immutable"))) json_object_set_new(metadata, "immutable", json_true());
    st = is_extract_with(s, scope, messages, &o, results);
    json_decref(metadata);
    json_decref(one);
    return st;
}
