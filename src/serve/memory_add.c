/* memory_add.c - what is to be remembered, from a request to facts.
 *
 * infer: false (the default): every message but the system's becomes a fact, word for word, as Mem0 does it. No turn is kept beside it: the
 * text stands in one place, so that changing or forgetting the memory reaches all there is of it. Who said it is in its metadata. */
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "exchange/json.h"
#include "serve/memory.h"

enum { MESSAGES_MAX = 1000, DAY = 86400 };

/* org_id ... source: of Mem0's platform; they change nothing that could be honoured. */
const char *const is_memory_add_members[] = {
    "messages", "text", "metadata", "timestamp", "expiration_date", "expires", "infer", "immutable", "filters", "user_id", "agent_id", "run_id",
    "app_id", "version", "output_format", "async_mode", "org_id", "project_id", "source", NULL,
};
static const char *const known_message[] = { "role", "content", "name", "timestamp", "created_at", NULL };

typedef struct addition {
    inferscale_fact *facts;
    json_t **metadata;           /* [n] owned */
    char **strings;              /* [2n] owned: texts and metadata as JSON */
    size_t n, n_strings;
    bool has_metadata;           /* the caller gave some; who said it is not the caller's */
} addition;

static is_status no_memory(void) { return is_fail(INFERSCALE_E_NOMEM, "out of memory"); }

static void free_addition(addition *a)
{
    for (size_t i = 0; i < a->n_strings; i++) is_free(a->strings[i]);
    for (size_t i = 0; i < a->n; i++) json_decref(a->metadata[i]);
    is_free(a->strings);
    is_free(a->metadata);
    is_free(a->facts);
}

/* ---- What goes for all messages -------------------------------------------------------------------------------------------- */

typedef struct common {
    int64_t when, expires;
    json_t *metadata;            /* borrowed; NULL = none */
    bool immutable;
} common;

/* Mem0's expiration_date is the last day that counts; our expires the instant from which it does not. */
is_status is_expiry_parse(json_t *o, int64_t *out)
{
    json_t *day = json_object_get(o, "expiration_date"), *at = json_object_get(o, "expires");

    is_when last;

    *out = 0;
    if (at && !json_is_null(at)) return is_member_when(at, "expires", out);
    if (!day || json_is_null(day)) return INFERSCALE_OK;
    IS_TRY(is_json_when(day, "expiration_date", &last));
    *out = last.day ? is_time_of(is_time_seconds(last.t) + DAY) : last.t;
    if (!is_time_sound(*out)) *out -= 1; /* 9999-12-31: its last second */
    return INFERSCALE_OK;
}

static is_status read_common(json_t *o, common *c)
{
    json_t *when = json_object_get(o, "timestamp"), *immutable = json_object_get(o, "immutable");

    *c = (common){ .metadata = json_object_get(o, "metadata"), .immutable = json_is_true(immutable) };
    if (json_is_null(c->metadata)) c->metadata = NULL;
    if (c->metadata && !json_is_object(c->metadata)) return is_fail(INFERSCALE_E_INVALID, "metadata must be an object");
    if (immutable && !json_is_boolean(immutable) && !json_is_null(immutable))
        return is_fail(INFERSCALE_E_INVALID, "immutable must be true or false");
    IS_TRY(is_member_when(when, "timestamp", &c->when));
    return is_expiry_parse(o, &c->expires);
}

/* ---- Messages -------------------------------------------------------------------------------------------------------------- */

/* content: a string, or OpenAI's list of parts of type text. Into a new string. */
static is_status content_of(json_t *v, size_t which, char **out)
{
    is_buf b = IS_BUF_INIT;
    size_t i;
    json_t *part;

    *out = NULL;
    if (json_is_string(v)) {
        *out = is_strdup(json_string_value(v));
        return *out ? INFERSCALE_OK : no_memory();
    }
    if (!json_is_array(v) || json_array_size(v) == 0)
        return is_fail(INFERSCALE_E_INVALID, "message %zu: content must be text", which + 1);
    json_array_foreach(v, i, part)
    {
        const char *type = json_string_value(json_object_get(part, "type")), *text = json_string_value(json_object_get(part, "text"));

        if (!type || strcmp(type, "text") != 0 || !text) {
            is_buf_free(&b);
            return is_fail(INFERSCALE_E_INVALID, "message %zu: only parts of type \"text\" are remembered; describe pictures and sound in words",
                           which + 1);
        }
        if (i) is_buf_str(&b, "\n");
        is_buf_str(&b, text);
    }
    *out = is_buf_take(&b);
    return *out ? INFERSCALE_OK : no_memory();
}

static json_t *metadata_of(const common *c, const char *role, const char *name)
{
    json_t *m = c->metadata ? json_copy(c->metadata) : json_object();

    if (m && role) json_object_set_new(m, "role", json_string(role));
    if (m && name) json_object_set_new(m, "actor_id", json_string(name));
    if (m && c->immutable) json_object_set_new(m, "immutable", json_true());
    return m;
}

/* Takes text and metadata. */
static is_status append(addition *a, const common *c, char *text, json_t *metadata, int64_t when)
{
    char *json = metadata ? is_json_string(metadata) : NULL;

    a->strings[a->n_strings++] = text;
    a->metadata[a->n] = metadata;
    a->facts[a->n] = (inferscale_fact){ .text = text, .event_time = when, .expires = c->expires, .metadata = json };
    a->n++;
    if (!json) return no_memory();
    a->strings[a->n_strings++] = json;
    return INFERSCALE_OK;
}

/* Its own time, else the request's, else that of the message before it: a conversation is not of two days by half. */
static is_status when_of(json_t *m, const addition *a, const common *c, int64_t *out)
{
    json_t *when = json_object_get(m, "timestamp");

    if (!when || json_is_null(when)) when = json_object_get(m, "created_at");
    *out = c->when ? c->when : a->n ? a->facts[a->n - 1].event_time : 0;
    return is_member_when(when, "the time of a message", out);
}

static is_status add_message(addition *a, const common *c, json_t *m, size_t which)
{
    const char *role = json_string_value(json_object_get(m, "role")), *name = json_string_value(json_object_get(m, "name"));
    char *text;
    int64_t when;

    if (!json_is_object(m))
        return is_fail(INFERSCALE_E_INVALID, "message %zu must be an object with role and content", which + 1);
    IS_TRY(is_members_check(m, "a message", known_message));
    if (!role || (strcmp(role, "user") && strcmp(role, "assistant") && strcmp(role, "system")))
        return is_fail(INFERSCALE_E_INVALID, "message %zu: role must be \"user\", \"assistant\" or \"system\"", which + 1);
    if (!strcmp(role, "system")) return INFERSCALE_OK; /* instructions are nobody's memory */
    IS_TRY(when_of(m, a, c, &when));
    IS_TRY(content_of(json_object_get(m, "content"), which, &text));
    return append(a, c, text, metadata_of(c, role, name), when);
}

/* role: of a bare string. */
static is_status read_messages(addition *a, const common *c, json_t *messages, const char *role)
{
    size_t i, n = json_is_array(messages) ? json_array_size(messages) : 1;
    json_t *m;

    if (n == 0 || n > MESSAGES_MAX)
        return is_fail(INFERSCALE_E_INVALID, "messages must be 1 to %d messages; send the rest in further requests", MESSAGES_MAX);
    a->facts = is_calloc(n, sizeof *a->facts);
    a->metadata = is_calloc(n, sizeof *a->metadata);
    a->strings = is_calloc(n * 2, sizeof *a->strings);
    if (!a->facts || !a->metadata || !a->strings) return no_memory();
    if (json_is_string(messages)) {
        char *text = is_strdup(json_string_value(messages));

        return text ? append(a, c, text, metadata_of(c, role, NULL), c->when) : no_memory();
    }
    if (json_is_object(messages)) return add_message(a, c, messages, 0);
    if (!json_is_array(messages))
        return is_fail(INFERSCALE_E_INVALID, "messages must be a list of messages with role and content, or a string");
    json_array_foreach(messages, i, m) IS_TRY(add_message(a, c, m, i));
    return INFERSCALE_OK;
}

/* ---- Remember -------------------------------------------------------------------------------------------------------------- */

static json_t *event_json(const addition *a, size_t i, const inferscale_event *e)
{
    inferscale_event own = *e;
    char id[24];
    json_t *o, *role = json_object_get(a->metadata[i], "role"), *actor = json_object_get(a->metadata[i], "actor_id");

    snprintf(id, sizeof id, "%lld", (long long)e->id);
    o = json_pack("{s:s,s:s,s:s}", "id", id, "memory", a->facts[i].text, "event",
                  is_event_name(e->event));
    if (role) json_object_set(o, "role", role);
    if (actor) json_object_set(o, "actor_id", actor);
    if (!a->has_metadata) own.kept &= ~INFERSCALE_KEPT_METADATA;
    if (o) is_json_kept(o, &own);
    return o;
}

static is_status remember(inferscale *is, const inferscale_scope *scope, const addition *a, json_t **results)
{
    inferscale_event *events = is_calloc(a->n + 1, sizeof *events);
    is_status st = events ? INFERSCALE_OK : no_memory();

    if (st == INFERSCALE_OK && a->n) st = inferscale_remember(is, scope, a->facts, a->n, events);
    *results = st == INFERSCALE_OK ? json_array() : NULL;
    for (size_t i = 0; *results && i < a->n; i++) json_array_append_new(*results, event_json(a, i, &events[i]));
    is_free(events);
    return st;
}

inferscale_status is_memory_add(inferscale *is, const inferscale_scope *scope, json_t *request, json_t **results)
{
    json_t *infer = json_object_get(request, "infer"), *text = json_object_get(request, "text"),
        *messages = json_object_get(request, "messages");
    addition a = { 0 };
    common c;
    is_status st;

    *results = NULL;
    IS_TRY(is_members_check(request, "the request", is_memory_add_members));
    if (infer && !json_is_boolean(infer) && !json_is_null(infer))
        return is_fail(INFERSCALE_E_INVALID, "infer must be true or false");
    if (json_is_null(text)) text = NULL;
    if (json_is_null(messages)) messages = NULL;
    if (!text == !messages) return is_fail(INFERSCALE_E_INVALID, "give messages, or one text");
    if (text && !json_is_string(text)) return is_fail(INFERSCALE_E_INVALID, "text must be a string");
    if (json_is_true(infer))
        return is_fail(INFERSCALE_E_UNSUPPORTED, "facts are extracted from messages by `inferscale serve` alone; leave infer out, and each message "
                                               "is remembered as it is");
    IS_TRY(read_common(request, &c));
    a.has_metadata = json_object_size(c.metadata) > 0;
    st = read_messages(&a, &c, text ? text : messages, text ? NULL : "user");
    if (st == INFERSCALE_OK) st = remember(is, scope, &a, results);
    free_addition(&a);
    return st;
}
