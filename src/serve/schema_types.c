/* schema_types.c - the rule of each type of value: fixed values, objects, arrays, strings, numbers. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "serve/schema_walk.h"

static is_status whole_number(is_schema_walk *w, json_t *schema, const char *where, const char *name, int most, int *out)
{
    json_t *v = json_object_get(schema, name);
    const double x = json_number_value(v);

    if (!v) return INFERSCALE_OK;
    if (!json_is_number(v) || x < 0 || x != floor(x))
        return is_schema_refuse(w, INFERSCALE_E_INVALID, where, name, "this must be a whole number, 0 or more");
    if (x > most) return is_schema_refuse(w, INFERSCALE_E_UNSUPPORTED, where, name, "at most %d is supported", most);
    *out = (int)x;
    return INFERSCALE_OK;
}

/* ---- Values -------------------------------------------------------------------------------------------------------------- */

static const char *const types[] = { "object", "array", "string", "integer", "number", "boolean", "null" };

int is_schema_type(const char *name)
{
    for (int i = 0; name && i < IS_N_TYPES; i++)
        if (strcmp(types[i], name) == 0) return i;
    return -1;
}

static bool is_of_type(json_t *v, int type)
{
    switch (type) {
    case IS_T_OBJECT: return json_is_object(v);
    case IS_T_ARRAY: return json_is_array(v);
    case IS_T_STRING: return json_is_string(v);
    case IS_T_INTEGER: return json_is_integer(v) || (json_is_real(v) && json_real_value(v) == floor(json_real_value(v)));
    case IS_T_NUMBER: return json_is_number(v);
    case IS_T_BOOLEAN: return json_is_boolean(v);
    default: return json_is_null(v);
    }
}

/* The value as text: reals as short as they come back the same. */
static char *dump(json_t *v)
{
    char *text = NULL;

    for (size_t digits = 15; digits <= 17; digits += 2) {
        const size_t flags = JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(digits), n = json_dumpb(v, NULL, 0, flags);
        json_t *again;
        bool same;

        is_free(text);
        if (!n || !(text = is_malloc(n + 1))) return NULL;
        json_dumpb(v, text, n, flags);
        text[n] = '\0';
        again = json_loads(text, JSON_DECODE_ANY, NULL);
        same = again && json_equal(again, v);
        json_decref(again);
        if (same) break;
    }
    return text;
}

static bool type_allows(json_t *type, json_t *v)
{
    size_t i;
    json_t *t;

    if (!type) return true;
    if (json_is_string(type)) return is_of_type(v, is_schema_type(json_string_value(type)));
    json_array_foreach(type, i, t)
        if (is_of_type(v, is_schema_type(json_string_value(t)))) return true;
    return false;
}

/* values: NULL = const. Those that `type` rules out are left out. */
is_status is_schema_write_values(is_schema_walk *w, json_t *schema, const char *where, is_buf *b, json_t *values)
{
    const char *name = values ? "enum" : "const";
    size_t n = 0;

    if (values && (!json_is_array(values) || json_array_size(values) == 0))
        return is_schema_refuse(w, INFERSCALE_E_INVALID, where, name, "this must be a list of values, not empty");
    if (values && json_array_size(values) > IS_SCHEMA_ENUM)
        return is_schema_refuse(w, INFERSCALE_E_UNSUPPORTED, where, name, "at most %d values are supported", IS_SCHEMA_ENUM);
    for (size_t i = 0; i < (values ? json_array_size(values) : 1); i++) {
        json_t *v = values ? json_array_get(values, i) : json_object_get(schema, "const");
        char *text;

        if (!type_allows(json_object_get(schema, "type"), v)) continue;
        if (!(text = dump(v))) return is_schema_no_memory();
        is_buf_str(b, n++ ? " | " : " ");
        is_grammar_literal(b, text, strlen(text));
        is_free(text);
    }
    return n ? INFERSCALE_OK : is_schema_refuse(w, INFERSCALE_E_INVALID, where, name, "no value here is of the schema's type");
}

/* ---- Objects ------------------------------------------------------------------------------------------------------------- */

static bool is_required(json_t *schema, const char *name)
{
    size_t i;
    json_t *v;

    json_array_foreach(json_object_get(schema, "required"), i, v)
        if (json_is_string(v) && strcmp(json_string_value(v), name) == 0) return true;
    return false;
}

static is_status check_required(is_schema_walk *w, json_t *schema, const char *where, json_t *properties)
{
    json_t *required = json_object_get(schema, "required"), *v;
    size_t i;

    if (json_array_size(required) > IS_SCHEMA_NODES)
        return is_schema_refuse(w, INFERSCALE_E_INVALID, where, "required",
                                "there are too many names; make the schema smaller");
    if (required && !json_is_array(required))
        return is_schema_refuse(w, INFERSCALE_E_INVALID, where, "required", "this must be a list of names");
    json_array_foreach(required, i, v)
    {
        if (!json_is_string(v))
            return is_schema_refuse(w, INFERSCALE_E_INVALID, where, "required", "this must be a list of names");
        if (!json_object_get(properties, json_string_value(v)))
            return is_schema_refuse(w, INFERSCALE_E_UNSUPPORTED, where, "required",
                                    "\"%.60s\" is required but not one of the properties", json_string_value(v));
    }
    return INFERSCALE_OK;
}

/* {"any": VALUE, ...}: what additionalProperties says of the values. */
static is_status write_map(is_schema_walk *w, json_t *schema, const char *where, is_buf *b)
{
    json_t *more = json_object_get(schema, "additionalProperties");
    char place[200];
    unsigned value;

    if (json_is_false(more)) {
        is_buf_str(b, " \"{}\"");
        return INFERSCALE_OK;
    }
    if (!more || json_is_true(more)) {
        is_buf_fmt(b, " %s", is_grammar_common(w->g, IS_OBJECT));
        return INFERSCALE_OK;
    }
    snprintf(place, sizeof place, "%.160s.additionalProperties", where);
    IS_TRY(is_schema_inside(w, more, place, &value));
    const char *string = is_grammar_common(w->g, IS_STRING), *ws = is_grammar_common(w->g, IS_WS);
    const unsigned rule = w->nodes[value].rule;
    is_buf_fmt(b, " \"{\" (%s \":\" %s r%u (\",\" %s %s \":\" %s r%u)*)? \"}\"", string, ws, rule, ws, string, ws, rule);
    return INFERSCALE_OK;
}

static void write_member(is_schema_walk *w, is_buf *b, const char *name, unsigned value)
{
    json_t *key = json_string(name);
    char *text = key ? dump(key) : NULL;

    json_decref(key);
    if (!text) {
        b->failed = true;
        return;
    }
    is_buf_str(b, " ");
    is_grammar_literal(b, text, strlen(text));
    is_buf_fmt(b, " \":\" %s r%u", is_grammar_common(w->g, IS_WS), w->nodes[value].rule);
    is_free(text);
}

/* Members in the schema's order. As long as none is written there is no comma, so each member that may be the first is an
 * alternative: the optional ones at the head, and the first that is required. What follows member i is rule rN-i. */
static is_status write_members(is_schema_walk *w, json_t *schema, json_t *properties, unsigned self, const unsigned *values,
                               is_buf *b)
{
    const char *names[IS_SCHEMA_NODES], *name, *bar = " (";
    const char *ws = is_grammar_common(w->g, IS_WS);
    const unsigned rule = w->nodes[self].rule;
    size_t n = 0, i;
    json_t *v;

    json_object_foreach(properties, name, v) names[n++] = name;
    is_buf_str(b, " \"{\"");
    for (i = 0; i < n; i++) {
        const bool required = is_required(schema, names[i]);

        is_buf_str(b, bar);
        bar = " |";
        write_member(w, b, names[i], values[i]);
        if (i + 1 < n) is_buf_fmt(b, " r%u-%zu", rule, i + 1);
        if (required) break;
    }
    is_buf_str(b, i == n ? ")? \"}\"" : ") \"}\"");
    for (size_t j = 1; j < n; j++) {
        const bool required = is_required(schema, names[j]);

        is_buf_fmt(&w->g->text, "r%u-%zu ::=%s \",\" %s", rule, j, required ? "" : " (", ws);
        write_member(w, &w->g->text, names[j], values[j]);
        if (!required) is_buf_str(&w->g->text, ")?");
        if (j + 1 < n) is_buf_fmt(&w->g->text, " r%u-%zu", rule, j + 1);
        is_buf_str(&w->g->text, "\n");
    }
    return INFERSCALE_OK;
}

static is_status write_object(is_schema_walk *w, json_t *schema, const char *where, unsigned self, is_buf *b)
{
    json_t *properties = json_object_get(schema, "properties"), *more = json_object_get(schema, "additionalProperties"), *v;
    const size_t n = json_object_size(properties);
    unsigned *values;
    const char *name;
    char place[200];
    is_status st = INFERSCALE_OK;
    size_t i = 0;

    if (properties && !json_is_object(properties))
        return is_schema_refuse(w, INFERSCALE_E_INVALID, where, "properties", "this must be an object of schemas");
    if (more && !json_is_boolean(more) && !json_is_object(more))
        return is_schema_refuse(w, INFERSCALE_E_INVALID, where, "additionalProperties", "this must be true, false or a schema");
    IS_TRY(check_required(w, schema, where, properties));
    if (n == 0) return write_map(w, schema, where, b);
    if (n > IS_SCHEMA_NODES)
        return is_schema_refuse(w, INFERSCALE_E_INVALID, where, "properties", "there are too many; make the schema smaller");
    values = is_calloc(n, sizeof *values);
    if (!values) return is_schema_no_memory();
    json_object_foreach(properties, name, v)
    {
        snprintf(place, sizeof place, "%.120s.properties.%.60s", where, name);
        st = is_schema_inside(w, v, place, &values[i]);
        if (st == INFERSCALE_OK && is_required(schema, name)) st = is_schema_need_node(w, self, values[i]);
        if (st != INFERSCALE_OK) break;
        i++;
    }
    if (st == INFERSCALE_OK) st = write_members(w, schema, properties, self, values, b);
    is_free(values);
    return st;
}

/* ---- Arrays, strings, numbers -------------------------------------------------------------------------------------------- */

static is_status write_array(is_schema_walk *w, json_t *schema, const char *where, unsigned self, is_buf *b)
{
    json_t *items = json_object_get(schema, "items");
    int least = 0, most = -1;
    char rule[24], place[200];
    unsigned value;

    IS_TRY(whole_number(w, schema, where, "minItems", IS_SCHEMA_REPEAT, &least));
    IS_TRY(whole_number(w, schema, where, "maxItems", IS_SCHEMA_REPEAT, &most));
    if (most >= 0 && most < least)
        return is_schema_refuse(w, INFERSCALE_E_INVALID, where, "maxItems", "this is less than minItems: no list is valid");
    snprintf(rule, sizeof rule, "%s", is_grammar_common(w->g, IS_VALUE));
    if (items && most != 0) {
        snprintf(place, sizeof place, "%.180s.items", where);
        IS_TRY(is_schema_inside(w, items, place, &value));
        if (least > 0) IS_TRY(is_schema_need_node(w, self, value));
        snprintf(rule, sizeof rule, "r%u", w->nodes[value].rule);
    }
    if (most == 0) {
        is_buf_str(b, " \"[]\"");
        return INFERSCALE_OK;
    }
    is_buf_fmt(b, " \"[\"%s %s", least ? "" : " (", rule);
    if (most != 1) {
        is_buf_fmt(b, " (\",\" %s %s)", is_grammar_common(w->g, IS_WS), rule);
        if (most < 0 && least <= 1) is_buf_str(b, "*");
        else if (most < 0) is_buf_fmt(b, "{%d,}", least - 1);
        else is_buf_fmt(b, "{%d,%d}", least > 1 ? least - 1 : 0, most - 1);
    }
    is_buf_str(b, least ? " \"]\"" : ")? \"]\"");
    return INFERSCALE_OK;
}

static is_status write_format(is_schema_walk *w, json_t *schema, const char *where, is_buf *b)
{
    const char *format = json_string_value(json_object_get(schema, "format"));

    if (!format) return is_schema_refuse(w, INFERSCALE_E_INVALID, where, "format", "this must be a string");
    if (json_object_get(schema, "minLength") || json_object_get(schema, "maxLength"))
        return is_schema_refuse(w, INFERSCALE_E_UNSUPPORTED, where, "format",
                                "this is not supported beside minLength and maxLength");
    if (strcmp(format, "date") == 0) is_buf_fmt(b, " \"\\\"\" %s \"\\\"\"", is_grammar_common(w->g, IS_DATE));
    else if (strcmp(format, "time") == 0) is_buf_fmt(b, " \"\\\"\" %s \"\\\"\"", is_grammar_common(w->g, IS_TIME));
    else if (strcmp(format, "uuid") == 0) is_buf_fmt(b, " \"\\\"\" %s \"\\\"\"", is_grammar_common(w->g, IS_UUID));
    else if (strcmp(format, "date-time") == 0)
        is_buf_fmt(b, " \"\\\"\" %s \"T\" %s \"\\\"\"", is_grammar_common(w->g, IS_DATE), is_grammar_common(w->g, IS_TIME));
    else
        return is_schema_refuse(w, INFERSCALE_E_UNSUPPORTED, where, "format",
                                "\"%.40s\" is not supported; there are date, time, date-time and uuid", format);
    return INFERSCALE_OK;
}

static is_status write_string(is_schema_walk *w, json_t *schema, const char *where, is_buf *b)
{
    int least = 0, most = -1;

    IS_TRY(whole_number(w, schema, where, "minLength", IS_SCHEMA_REPEAT, &least));
    IS_TRY(whole_number(w, schema, where, "maxLength", IS_SCHEMA_REPEAT, &most));
    if (most >= 0 && most < least)
        return is_schema_refuse(w, INFERSCALE_E_INVALID, where, "maxLength", "this is less than minLength: no string is valid");
    if (json_object_get(schema, "format")) return write_format(w, schema, where, b);
    if (most == 0) is_buf_str(b, " \"\\\"\\\"\"");
    else if (most > 0) is_buf_fmt(b, " \"\\\"\" %s{%d,%d} \"\\\"\"", is_grammar_common(w->g, IS_CHAR), least, most);
    else if (least > 0) is_buf_fmt(b, " \"\\\"\" %s{%d,} \"\\\"\"", is_grammar_common(w->g, IS_CHAR), least);
    else is_buf_fmt(b, " %s", is_grammar_common(w->g, IS_STRING));
    return INFERSCALE_OK;
}

static const double MOST_DIGITS = 999999999999999.0;

/* The stricter of minimum and exclusiveMinimum (up), or of the maxima. */
static is_status read_bound(is_schema_walk *w, json_t *schema, const char *where, bool up, bool whole, is_range *r)
{
    const char *const names[] = { up ? "minimum" : "maximum", up ? "exclusiveMinimum" : "exclusiveMaximum" };

    for (int open = 0; open < 2; open++) {
        json_t *v = json_object_get(schema, names[open]);
        double x = json_number_value(v);
        bool is_open = open;
        bool *has = up ? &r->has_low : &r->has_high, *opened = up ? &r->open_low : &r->open_high;
        int64_t *bound = up ? &r->low : &r->high;

        if (!v) continue;
        if (!json_is_number(v)) return is_schema_refuse(w, INFERSCALE_E_INVALID, where, names[open], "this must be a number");
        if (up ? x > MOST_DIGITS : x < -MOST_DIGITS)
            return is_schema_refuse(w, INFERSCALE_E_UNSUPPORTED, where, names[open],
                                    "numbers of more than 15 digits are not supported");
        if (up ? x < -MOST_DIGITS : x > MOST_DIGITS) {
            x = up ? -MOST_DIGITS : MOST_DIGITS;
            is_open = false;
        }
        if (!whole && x != floor(x))
            return is_schema_refuse(w, INFERSCALE_E_UNSUPPORTED, where, names[open], "only whole bounds are supported");
        if (whole) {
            const double in = up ? ceil(x) : floor(x);

            x = is_open && in == x ? in + (up ? 1 : -1) : in;
            is_open = false;
        }
        if (*has && (up ? x < (double)*bound : x > (double)*bound)) continue;
        *opened = (*has && x == (double)*bound && *opened) || is_open;
        *bound = (int64_t)x;
        *has = true;
    }
    return INFERSCALE_OK;
}

static is_status write_number(is_schema_walk *w, json_t *schema, const char *where, bool whole, is_buf *b)
{
    is_range r = { 0 };

    IS_TRY(read_bound(w, schema, where, true, whole, &r));
    IS_TRY(read_bound(w, schema, where, false, whole, &r));
    if (is_range_empty(&r))
        return is_schema_refuse(w, INFERSCALE_E_INVALID, where, r.has_high ? "maximum" : "minimum",
                                "no number is between the bounds");
    is_grammar_range(w->g, b, &r, whole);
    return INFERSCALE_OK;
}

/* ---- All of them --------------------------------------------------------------------------------------------------------- */

is_status is_schema_write_type(is_schema_walk *w, json_t *schema, const char *where, int type, unsigned self, is_buf *b)
{
    switch (type) {
    case IS_T_OBJECT: return write_object(w, schema, where, self, b);
    case IS_T_ARRAY: return write_array(w, schema, where, self, b);
    case IS_T_STRING: return write_string(w, schema, where, b);
    case IS_T_INTEGER: return write_number(w, schema, where, true, b);
    case IS_T_NUMBER: return write_number(w, schema, where, false, b);
    case IS_T_BOOLEAN: is_buf_str(b, " \"true\" | \"false\""); return INFERSCALE_OK;
    case IS_T_NULL: is_buf_str(b, " \"null\""); return INFERSCALE_OK;
    default:
        return is_schema_refuse(w, INFERSCALE_E_INVALID, where, "type",
                                "this must be object, array, string, integer, number, boolean or null");
    }
}

