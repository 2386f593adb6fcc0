/* openai_tools.c - answers in a form: response_format and forced calls of functions become a grammar, and what the grammar let
 * through becomes tool_calls.
 *
 * A call is forced (tool_choice "required", or one function's name): the answer is exactly {"name": "NAME", "arguments":
 * {...}}, with the arguments held to the function's schema. Whether to call (tool_choice "auto", OpenAI's default with tools)
 * would be the model's own choice, for which the chat formats here have no sign: that is refused, not ignored. */
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"
#include "serve/openai.h"
#include "serve/schema.h"

static const char before_name[] = "{\"name\": \"", after_name[] = "\", \"arguments\": ";

/* The schema's own failure, as a fault of the request. */
static bool schema_fault(is_oa_fault *f, is_status st, const char *where)
{
    if (st == INFERSCALE_E_NOMEM) return is_oa_no_memory(f);
    return is_oa_refuse(f, st == INFERSCALE_E_UNSUPPORTED ? "unsupported" : NULL, where, "%s", is_error());
}

static bool end_grammar(is_oa_ask *a, is_grammar *g, const char *body, const char *param, is_oa_fault *f)
{
    char *text = is_grammar_end(g, body);
    is_buf kept = IS_BUF_INIT;

    if (!text)
        return is_oa_refuse(f, "unsupported", param, "%s makes a grammar of more than %d KiB; make it smaller", param,
                            IS_SCHEMA_BYTES >> 10);
    is_buf_str(&kept, text);
    is_free(text);
    a->o.grammar = is_oa_keep_buf(a, &kept);
    return a->o.grammar ? true : is_oa_no_memory(f);
}

/* Only these members, null or not. */
static bool only_members(json_t *o, const char *where, const char *const *names, is_oa_fault *f)
{
    const char *name;
    json_t *v;

    json_object_foreach(o, name, v)
    {
        char param[200];
        size_t i = 0;

        while (names[i] && strcmp(names[i], name) != 0) i++;
        snprintf(param, sizeof param, "%s.%.60s", where, name);
        if (!names[i] && !json_is_null(v)) return is_oa_refuse(f, "unknown_parameter", param, "%s is not known", param);
    }
    return true;
}

/* ---- response_format ----------------------------------------------------------------------------------------------------- */

static bool json_schema(is_oa_ask *a, json_t *format, is_oa_fault *f)
{
    static const char *const names[] = { "name", "description", "schema", "strict", NULL };
    char where[200] = "response_format.json_schema";
    json_t *o = json_object_get(format, "json_schema"), *schema = json_object_get(o, "schema");
    is_grammar g = { 0 };
    is_rule rule;
    is_status st;

    if (!json_is_object(o)) return is_oa_refuse(f, NULL, where, "%s must be an object with name and schema", where);
    if (!only_members(o, where, names, f)) return false;
    if (!json_is_string(json_object_get(o, "name")))
        return is_oa_refuse(f, NULL, "response_format.json_schema.name", "response_format.json_schema.name must be a string");
    snprintf(where, sizeof where, "response_format.json_schema.schema");
    if (!json_is_object(schema)) return is_oa_refuse(f, NULL, where, "%s must be a JSON schema", where);
    st = is_grammar_schema(&g, schema, where, sizeof where, &rule);
    if (st == INFERSCALE_OK) return end_grammar(a, &g, rule.name, "response_format", f);
    is_grammar_free(&g);
    return schema_fault(f, st, where);
}

static bool read_format(is_oa_ask *a, is_oa_fault *f)
{
    static const char *const names[] = { "type", "json_schema", NULL };
    const char *type = json_string_value(json_object_get(a->response_format, "type"));
    is_grammar g = { 0 };
    is_rule rule;

    if (!a->response_format) return true;
    if (!type || (strcmp(type, "text") != 0 && strcmp(type, "json_object") != 0 && strcmp(type, "json_schema") != 0))
        return is_oa_refuse(f, NULL, "response_format.type", "response_format.type must be text, json_object or json_schema");
    if (!only_members(a->response_format, "response_format", names, f)) return false;
    if (strcmp(type, "json_schema") == 0) return json_schema(a, a->response_format, f);
    if (strcmp(type, "text") == 0) return true;
    is_grammar_object(&g, &rule);
    return end_grammar(a, &g, rule.name, "response_format", f);
}

/* ---- tools --------------------------------------------------------------------------------------------------------------- */

/* The function of tools[i], looked at; its name is added. */
static json_t *read_function(is_oa_ask *a, size_t i, is_oa_fault *f)
{
    static const char *const tool_names[] = { "type", "function", NULL };
    static const char *const names[] = { "name", "description", "parameters", "strict", NULL };
    json_t *tool = json_array_get(a->tools, i), *function = json_object_get(tool, "function");
    const char *type = json_string_value(json_object_get(tool, "type")),
               *name = json_string_value(json_object_get(function, "name"));
    char where[80];
    size_t n = 0;

    snprintf(where, sizeof where, "tools[%zu]", i);
    if (!type || strcmp(type, "function") != 0) {
        is_oa_refuse(f, "unsupported", where, "%s: only tools of type function are supported", where);
        return NULL;
    }
    if (!only_members(tool, where, tool_names, f)) return NULL;
    snprintf(where, sizeof where, "tools[%zu].function", i);
    n = name ? strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") : 0;
    if (!n || name[n] || n > 64) {
        is_oa_refuse(f, NULL, where, "%s.name must be 1 to 64 letters, digits, '_' or '-'", where);
        return NULL;
    }
    if (!only_members(function, where, names, f)) return NULL;
    for (size_t j = 0; j < a->n_tools; j++)
        if (strcmp(a->tool_names[j], name) == 0) {
            is_oa_refuse(f, NULL, where, "%s: another function has this name", where);
            return NULL;
        }
    a->tool_names[a->n_tools++] = name;
    return function;
}

/* Appends the alternative of a call: its fixed text around the arguments' rule. */
static bool add_call(is_grammar *g, is_buf *body, json_t *function, size_t i, is_oa_fault *f)
{
    json_t *parameters = json_object_get(function, "parameters");
    const char *name = json_string_value(json_object_get(function, "name"));
    char where[200], text[120];
    is_rule rule = { "" };
    is_status st = INFERSCALE_OK;
    int n = snprintf(text, sizeof text, "%s%s%s", before_name, name, after_name);

    snprintf(where, sizeof where, "tools[%zu].function.parameters", i);
    if (parameters && !json_is_null(parameters)) {
        const char *type = json_string_value(json_object_get(parameters, "type"));

        if (!type || strcmp(type, "object") != 0)
            return is_oa_refuse(f, NULL, where, "%s must be a JSON schema of type object", where);
        st = is_grammar_schema(g, parameters, where, sizeof where, &rule);
    }
    if (st != INFERSCALE_OK) return schema_fault(f, st, where);
    if (body->len) is_buf_str(body, " | ");
    is_grammar_literal(body, text, (size_t)n);
    is_buf_fmt(body, " %s \"}\"", *rule.name ? rule.name : "\"{}\"");
    return true;
}

/* What the model is told: without it it would have to guess what the functions are for. */
static bool tell_tools(is_oa_ask *a, is_oa_fault *f)
{
    is_buf text = IS_BUF_INIT;

    is_buf_fmt(&text, "Answer with a call of %s, as one JSON object %sNAME%s{...}}:",
               a->n_tools > 1 ? "one of these functions" : "this function", before_name, after_name);
    for (size_t i = 0; i < json_array_size(a->tools); i++) {
        json_t *function = json_object_get(json_array_get(a->tools, i), "function");
        const size_t n = json_dumpb(function, NULL, 0, JSON_COMPACT);
        bool said = false;

        for (size_t j = 0; j < a->n_tools; j++)
            said |= strcmp(a->tool_names[j], json_string_value(json_object_get(function, "name"))) == 0;
        if (!said) continue;
        is_buf_str(&text, "\n");
        if (is_buf_reserve(&text, n + 1)) {
            json_dumpb(function, (char *)text.data + text.len, n, JSON_COMPACT);
            text.len += n;
            text.data[text.len] = '\0';
        }
    }
    a->tools_text = is_oa_keep_buf(a, &text);
    return a->tools_text ? true : is_oa_no_memory(f);
}

/* tool_choice: sets a->call, *named (NULL = any function). */
static bool read_choice(is_oa_ask *a, const char **named, is_oa_fault *f)
{
    const char *word = json_string_value(a->tool_choice);
    const char *type = json_string_value(json_object_get(a->tool_choice, "type"));
    const size_t n = json_array_size(a->tools);

    *named = NULL;
    if (!a->tool_choice && n == 0) return true;
    if (word && strcmp(word, "none") == 0) return true;
    if (n == 0) return is_oa_refuse(f, NULL, "tool_choice", "tool_choice needs tools");
    if (!a->tool_choice || (word && strcmp(word, "auto") == 0))
        return is_oa_refuse(f, "unsupported", "tool_choice",
                            "tool_choice \"auto\" (also when it is left out) is not supported: this model's chat format has no "
                            "sign for a call. "
                            "Send \"required\", \"none\", or {\"type\": \"function\", \"function\": {\"name\": ...}}");
    if (word && strcmp(word, "required") == 0) {
        a->call = IS_OA_CALL_ANY;
        return true;
    }
    if (!type || strcmp(type, "function") != 0)
        return is_oa_refuse(f, type ? "unsupported" : NULL, "tool_choice",
                            "tool_choice must be \"none\", \"required\" or {\"type\": \"function\", \"function\": {\"name\": "
                            "...}}");
    *named = json_string_value(json_object_get(json_object_get(a->tool_choice, "function"), "name"));
    if (!*named)
        return is_oa_refuse(f, NULL, "tool_choice.function.name", "tool_choice.function.name must be a function's name");
    a->call = IS_OA_CALL_NAMED;
    return true;
}

static bool grammar_of_tools(is_oa_ask *a, const char *named, is_oa_fault *f)
{
    is_grammar g = { 0 };
    is_buf body = IS_BUF_INIT;
    size_t found = 0;
    bool ok = true;

    for (size_t i = 0; ok && i < json_array_size(a->tools); i++) {
        json_t *function = read_function(a, i, f);

        ok = function != NULL;
        if (!ok || (named && strcmp(named, a->tool_names[i]) != 0)) continue;
        ok = add_call(&g, &body, function, i, f);
        found++;
    }
    if (ok && named && !found)
        ok = is_oa_refuse(f, NULL, "tool_choice.function.name", "\"%.64s\" is not one of the tools", named);
    if (ok && named) {
        a->tool_names[0] = named; /* the only one that can be called */
        a->n_tools = 1;
    }
    if (ok) ok = end_grammar(a, &g, is_buf_ok(&body) ? (char *)body.data : "", "tools", f);
    is_grammar_free(&g);
    is_buf_free(&body);
    return ok && tell_tools(a, f);
}

bool is_oa_finish_grammar(is_oa_ask *a, is_oa_fault *f)
{
    const char *named;

    if (json_array_size(a->tools) > IS_OA_TOOLS)
        return is_oa_refuse(f, NULL, "tools", "at most %d tools are supported", IS_OA_TOOLS);
    a->tool_names = is_oa_keep(a, (json_array_size(a->tools) + 1) * sizeof *a->tool_names);
    if (!a->tool_names) return is_oa_no_memory(f);
    if (!read_choice(a, &named, f) || !read_format(a, f)) return false;
    if (a->call == IS_OA_CALL_NONE) return true;
    if (a->o.grammar)
        return is_oa_refuse(f, "unsupported", "response_format", "response_format is not supported with a forced call");
    return grammar_of_tools(a, named, f);
}

/* ---- What came out ------------------------------------------------------------------------------------------------------- */

bool is_oa_split_call(const is_oa_ask *a, const char *text, size_t len, const char **name, size_t *arguments)
{
    for (size_t i = 0; i < a->n_tools; i++) {
        char head[120];
        const size_t n = (size_t)snprintf(head, sizeof head, "%s%s%s", before_name, a->tool_names[i], after_name);

        if (len < n || memcmp(text, head, n) != 0) continue;
        *name = a->tool_names[i];
        *arguments = n;
        return true;
    }
    return false;
}

void is_oa_call_id(char out[32])
{
    unsigned char bytes[12];

    is_random(bytes, sizeof bytes);
    memcpy(out, "call_", 5);
    is_hex(bytes, sizeof bytes, out + 5);
}
