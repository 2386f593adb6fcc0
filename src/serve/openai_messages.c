/* openai_messages.c - a request's messages as the conversation that the library takes: system text first, then user and
 * assistant by turns, a user last. Messages of one role that follow one another become one, a blank line between; an assistant
 * message that says nothing is left out. `name` has no place in the models' chat formats: it is accepted and not shown. */
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"
#include "serve/openai.h"

enum { SYSTEM, USER, ASSISTANT, N_ROLES };
static const char *const roles[] = { "system", "user", "assistant" };

typedef struct reader {
    is_oa_ask *a;
    is_oa_fault *f;
    json_t *list;
    size_t at;                 /* the message that is read */
    is_buf text;               /* of the messages so far that become one */
    int role;                  /* of text; -1 = none yet */
} reader;

static bool refuse(reader *r, const char *member, const char *code, const char *what, const char *value)
{
    char param[160];

    snprintf(param, sizeof param, "messages[%zu]%s%.80s", r->at, *member ? "." : "", member);
    return is_oa_refuse(r->f, code, param, "%s: %s%s%.60s%s", param, what, value ? " (" : "", value ? value : "",
                        value ? ")" : "");
}

/* ---- Content ------------------------------------------------------------------------------------------------------------- */

static bool add_parts(reader *r, json_t *parts, is_buf *out)
{
    char member[64];
    const char *name;
    json_t *part, *v;
    size_t i;

    json_array_foreach(parts, i, part)
    {
        const char *type = json_string_value(json_object_get(part, "type")),
                   *text = json_string_value(json_object_get(part, "text"));

        snprintf(member, sizeof member, "content[%zu]", i);
        if (!json_is_object(part) || !type) return refuse(r, member, NULL, "a part must be an object with a type", NULL);
        if (strcmp(type, "text") != 0) return refuse(r, member, "unsupported", "only parts of type text are supported", type);
        if (!text) return refuse(r, member, NULL, "a part of type text must have a text", NULL);
        json_object_foreach(part, name, v)
            if (strcmp(name, "type") != 0 && strcmp(name, "text") != 0 && !json_is_null(v))
                return refuse(r, member, "unsupported", "this member of a part is not supported", name);
        if (i) is_buf_str(out, "\n");
        is_buf_str(out, text);
    }
    return true;
}

static bool add_content(reader *r, json_t *message, is_buf *out)
{
    json_t *content = json_object_get(message, "content");

    if (json_is_string(content)) is_buf_str(out, json_string_value(content));
    else if (json_is_array(content)) return add_parts(r, content, out);
    else if (content && !json_is_null(content))
        return refuse(r, "content", NULL, "content must be a string or a list of parts", NULL);
    return true;
}

/* ---- Calls of earlier turns ---------------------------------------------------------------------------------------------- */

/* A call as the model writes it (openai_tools.c), so that a conversation that is sent again reads as it was. */
static bool add_calls(reader *r, json_t *calls, is_buf *out)
{
    char member[64];
    json_t *call;
    size_t i;

    if (!json_is_array(calls)) return refuse(r, "tool_calls", NULL, "tool_calls must be a list", NULL);
    json_array_foreach(calls, i, call)
    {
        json_t *function = json_object_get(call, "function");
        const char *name = json_string_value(json_object_get(function, "name"));
        const char *arguments = json_string_value(json_object_get(function, "arguments"));

        snprintf(member, sizeof member, "tool_calls[%zu]", i);
        if (!json_is_string(json_object_get(call, "id")) || !name || !arguments)
            return refuse(r, member, NULL, "a call must have an id, and a function with name and arguments, all strings", NULL);
        if (out->len) is_buf_str(out, "\n");
        is_buf_fmt(out, "{\"name\": \"%s\", \"arguments\": %s}", name, arguments);
    }
    return true;
}

/* The function that the call with this id was of, in the messages before; NULL = there is none. */
static const char *name_of_call(const reader *r, const char *id)
{
    for (size_t i = r->at; i-- > 0;) {
        json_t *calls = json_object_get(json_array_get(r->list, i), "tool_calls"), *call;
        size_t j;

        json_array_foreach(calls, j, call)
        {
            const char *its = json_string_value(json_object_get(call, "id"));

            if (its && strcmp(its, id) == 0)
                return json_string_value(json_object_get(json_object_get(call, "function"), "name"));
        }
    }
    return NULL;
}

/* What a function gave is told to the model by the user: chat formats have no other place for it. */
static bool add_result(reader *r, json_t *message, is_buf *out)
{
    const char *id = json_string_value(json_object_get(message, "tool_call_id")), *name = id ? name_of_call(r, id) : NULL;

    if (!name) return refuse(r, "tool_call_id", NULL, "this must be the id of a call in a message before", id);
    is_buf_fmt(out, "Result of %s:\n", name);
    return add_content(r, message, out);
}

/* ---- Messages ------------------------------------------------------------------------------------------------------------ */

static int role_of(const char *name)
{
    if (strcmp(name, "developer") == 0) return SYSTEM;
    if (strcmp(name, "tool") == 0) return USER;
    for (int i = 0; i < N_ROLES; i++)
        if (strcmp(roles[i], name) == 0) return i;
    return -1;
}

static bool check_members(reader *r, json_t *message, const char *role)
{
    const char *name;
    json_t *v;

    json_object_foreach(message, name, v)
    {
        if (json_is_null(v) || strcmp(name, "role") == 0 || strcmp(name, "content") == 0 || strcmp(name, "name") == 0) continue;
        if (strcmp(name, "tool_calls") == 0 && strcmp(role, "assistant") == 0) continue;
        if (strcmp(name, "tool_call_id") == 0 && strcmp(role, "tool") == 0) continue;
        if (strcmp(name, "annotations") == 0 && json_array_size(v) == 0) continue;
        return refuse(r, name, "unsupported", "this member is not supported in a message of role", role);
    }
    v = json_object_get(message, "name");
    if (v && !json_is_null(v) && !json_is_string(v)) return refuse(r, "name", NULL, "name must be a string", NULL);
    return true;
}

/* The messages that became one are over. */
static bool close_message(reader *r)
{
    inferscale_message *m = &r->a->messages[r->a->n_messages];

    if (r->role < 0) return true;
    m->role = roles[r->role];
    m->content = is_oa_keep_buf(r->a, &r->text);
    if (!m->content) return is_oa_no_memory(r->f);
    r->a->n_messages++;
    r->role = -1;
    return true;
}

static bool add_message(reader *r, json_t *message, is_buf *one)
{
    json_t *calls = json_object_get(message, "tool_calls");
    const char *name = json_string_value(json_object_get(message, "role"));
    const int role = name ? role_of(name) : -1;

    if (!json_is_object(message)) return refuse(r, "", NULL, "a message must be an object", NULL);
    if (role < 0) return refuse(r, "role", NULL, "role must be system, developer, user, assistant or tool", name);
    if (!check_members(r, message, name)) return false;
    if (strcmp(name, "tool") == 0 ? !add_result(r, message, one) : !add_content(r, message, one)) return false;
    if (calls && !json_is_null(calls) && !add_calls(r, calls, one)) return false;
    if (!is_buf_ok(one)) return is_oa_no_memory(r->f);
    if (one->len == 0) return role == ASSISTANT ? true : refuse(r, "content", NULL, "the message is empty", NULL);
    if (role == SYSTEM && (r->role > SYSTEM || (r->role < 0 && r->a->n_messages)))
        return refuse(r, "role", "unsupported", "a system message is only supported before all others", NULL);
    if (role == ASSISTANT && r->role != ASSISTANT && r->role != USER)
        return refuse(r, "role", "unsupported", "the first message after the system text must be from the user", NULL);
    if (r->role >= 0 && r->role != role && !close_message(r)) return false;
    if (r->role == role) is_buf_str(&r->text, "\n\n");
    is_buf_add(&r->text, one->data, one->len);
    r->role = role;
    return true;
}

bool is_oa_read_messages(is_oa_ask *a, json_t *v, const char *name, is_oa_fault *f)
{
    reader r = { .a = a, .f = f, .list = v, .role = -1, .text = IS_BUF_INIT };
    const size_t n = json_array_size(v);
    bool ok = true;

    if (!json_is_array(v) || n == 0) return is_oa_refuse(f, NULL, name, "messages must be a list of messages, not empty");
    if (n > IS_OA_MESSAGES) return is_oa_refuse(f, NULL, name, "at most %d messages are supported", IS_OA_MESSAGES);
    a->messages = is_oa_keep(a, (n + 1) * sizeof *a->messages); /* and one for what is said of tools */
    if (!a->messages) return is_oa_no_memory(f);
    for (r.at = 0; ok && r.at < n; r.at++) {
        is_buf one = IS_BUF_INIT;

        ok = add_message(&r, json_array_get(v, r.at), &one);
        is_buf_free(&one);
    }
    r.at = n - 1;
    if (ok && r.role != USER)
        ok = refuse(&r, "role", "unsupported", "the last message must be from the user (or a tool)", NULL);
    if (ok) ok = close_message(&r);
    is_buf_free(&r.text);
    return ok;
}

/* Functions are told to the model in the system text: memory is searched with what the user says, and that stays as it is. */
bool is_oa_finish_messages(is_oa_ask *a, is_oa_fault *f)
{
    const bool has_system = a->n_messages && strcmp(a->messages[0].role, "system") == 0;
    is_buf text = IS_BUF_INIT;

    if (!a->tools_text) return true;
    if (has_system) is_buf_fmt(&text, "%s\n\n", a->messages[0].content);
    is_buf_str(&text, a->tools_text);
    if (!has_system) {
        memmove(a->messages + 1, a->messages, a->n_messages * sizeof *a->messages);
        a->n_messages++;
    }
    a->messages[0] = (inferscale_message){ .role = "system", .content = is_oa_keep_buf(a, &text) };
    return a->messages[0].content ? true : is_oa_no_memory(f);
}
