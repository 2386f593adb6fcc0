/* memory_infer.c - adding memories: word for word (memory_add.c), or as what a model finds in them (extract.c). */
#include "base/clock.h"
#include "base/status.h"
#include "serve/extract.h"
#include "serve/memory.h"
#include "serve/memory_infer.h"

/* Extracting waits for a model, on the threads that also answer /health: some at once, the next one is told to come again. */
enum { EXTRACTIONS = 4, LOOK_AGAIN_S = 10 };
static int extracting; /* atomic */

static is_status extract(is_server *s, const inferscale_scope *scope, json_t *messages, const is_extract_options *o, json_t **results)
{
    is_status st;

    if (__atomic_add_fetch(&extracting, 1, __ATOMIC_ACQ_REL) > EXTRACTIONS)
        st = is_fail(INFERSCALE_E_BUSY, "facts are being extracted from %d conversations already; try again in a moment", EXTRACTIONS);
    else st = is_extract_with(s, scope, messages, o, results);
    __atomic_sub_fetch(&extracting, 1, __ATOMIC_ACQ_REL);
    return st;
}

/* The self-test's result is in a file: not to be read for each message. */
static bool default_infer(is_server *s)
{
    static int64_t looked; /* atomic, as yes is */
    static int yes;
    int64_t at = __atomic_load_n(&looked, __ATOMIC_ACQUIRE), now = is_now_epoch();

    if (!__atomic_load_n(&s->ready, __ATOMIC_ACQUIRE)) return false; /* the model is not known yet */
    if (now - at >= LOOK_AGAIN_S && __atomic_compare_exchange_n(&looked, &at, now, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        __atomic_store_n(&yes, is_extract_default(s), __ATOMIC_RELEASE);
    return __atomic_load_n(&yes, __ATOMIC_ACQUIRE);
}

/* infer says so; where it is not said, the self-test of the model decides. A text is always taken as it is. */
static bool wants_extraction(is_server *s, json_t *request)
{
    json_t *infer = json_object_get(request, "infer"), *messages = json_object_get(request, "messages");

    if (json_is_true(infer)) return true;
    return (!infer || json_is_null(infer)) && json_is_array(messages) && default_infer(s);
}

json_t *is_memory_added(is_server *s, json_t *results, bool inferred)
{
    static const char instead[] = "If facts are missing, leave infer out: each message is then remembered word for word.";
    const is_extractor x = is_extractor_of(s);
    const char *model = x.url && *x.url ? (x.model ? x.model : "the endpoint's model") : s->model;
    json_t *o = json_pack("{s:o}", "results", results), *note;
    is_extract_test t;

    if (!o || !inferred || json_array_size(results)) return o;
    if (is_extract_last(&x, &t) != INFERSCALE_OK)
        note = json_sprintf("%s found no fact in what users said here; how well it does is not tested"
                            " (`inferscale doctor --extract` does that). %s", model, instead);
    else
        note = json_sprintf("%s found no fact in what users said here; in its test it found %d of %d%s. %s", model,
                            t.found, t.expected, t.passed ? "" : ", which is too few", instead);
    json_object_set_new(o, "note", note);
    return o;
}

is_status is_memory_add_or_infer(is_server *s, const inferscale_scope *scope, json_t *request,
                                 const volatile int *cancel, json_t **results, bool *inferred)
{
    json_t *text = json_object_get(request, "text"), *messages = json_object_get(request, "messages"), *when = json_object_get(request, "timestamp"),
           *one = NULL, *metadata;
    is_extract_options o = { .metadata = json_object_get(request, "metadata"), .cancel = cancel };
    is_status st;

    *results = NULL;
    *inferred = wants_extraction(s, request);
    if (!*inferred) return is_memory_add(s->is, scope, request, results);
    IS_TRY(is_members_check(request, "the request", is_memory_add_members));
    if (text && !json_is_null(text)) return is_fail(INFERSCALE_E_INVALID, "a text is remembered as it is; leave infer out, or give messages");
    if (json_is_null(o.metadata)) o.metadata = NULL;
    if (o.metadata && !json_is_object(o.metadata)) return is_fail(INFERSCALE_E_INVALID, "metadata must be an object");
    IS_TRY(is_member_when(when, "timestamp", &o.when));
    IS_TRY(is_expiry_parse(request, &o.expires));
    if (json_is_string(messages)) messages = one = json_pack("[{s:s,s:O}]", "role", "user", "content", messages);
    else if (json_is_object(messages)) messages = one = json_pack("[O]", messages);
    o.metadata = metadata = o.metadata ? json_copy(o.metadata) : json_object();
    if (json_is_true(json_object_get(request, "immutable"))) json_object_set_new(metadata, "immutable", json_true());
    st = extract(s, scope, messages, &o, results);
    json_decref(metadata);
    json_decref(one);
    return st;
}
