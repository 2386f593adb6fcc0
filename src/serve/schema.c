/* schema.c - walks a JSON schema and writes a rule for each part of it. */
#include "serve/schema.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "serve/schema_walk.h"

/* ---- The walk ------------------------------------------------------------------------------------------------------------ */

is_status is_schema_refuse(is_schema_walk *w, is_status st, const char *where, const char *keyword, const char *fmt, ...)
{
    char why[400];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(why, sizeof why, fmt, ap);
    va_end(ap);
    snprintf(w->where, w->where_size, "%.140s%s%.60s", where, *keyword ? "." : "", keyword);
    return is_fail(st, "%s: %s", w->where, why);
}

is_status is_schema_no_memory(void) { return is_fail(INFERSCALE_E_NOMEM, "out of memory for a grammar; try a smaller schema"); }

static is_status add_node(is_schema_walk *w, json_t *schema, const char *where, unsigned *out)
{
    if (w->n_nodes == IS_SCHEMA_NODES)
        return is_schema_refuse(w, INFERSCALE_E_INVALID, w->base, "", "the schema has more than %d parts; make it smaller",
                                IS_SCHEMA_NODES);
    if (w->n_nodes == w->cap_nodes) {
        const unsigned cap = w->cap_nodes ? 2 * w->cap_nodes : 32;
        is_schema_node *grown = is_realloc(w->nodes, cap * sizeof *grown);

        if (!grown) return is_schema_no_memory();
        w->nodes = grown;
        w->cap_nodes = cap;
    }
    is_schema_node *n = &w->nodes[w->n_nodes];
    memset(n, 0, sizeof *n);
    n->schema = schema;
    n->rule = ++w->g->n_rules;
    n->open_at = w->around;
    snprintf(n->where, sizeof n->where, "%s", where);
    *out = w->n_nodes++;
    return INFERSCALE_OK;
}

is_status is_schema_need_node(is_schema_walk *w, unsigned of, unsigned other)
{
    if (w->n_needs == w->cap_needs) {
        const unsigned cap = w->cap_needs ? 2 * w->cap_needs : 64;
        is_schema_need *grown = is_realloc(w->needs, cap * sizeof *grown);

        if (!grown) return is_schema_no_memory();
        w->needs = grown;
        w->cap_needs = cap;
    }
    w->needs[w->n_needs++] = (is_schema_need){ of, other };
    w->nodes[of].n_needs++;
    return INFERSCALE_OK;
}

static is_status visit(is_schema_walk *w, json_t *schema, const char *where, unsigned *out);

/* A part inside an object or array. */
is_status is_schema_inside(is_schema_walk *w, json_t *schema, const char *where, unsigned *out)
{
    w->around++;
    is_status st = visit(w, schema, where, out);
    w->around--;
    return st;
}

/* ---- Keywords ------------------------------------------------------------------------------------------------------------ */

enum { K_NOTE, K_MAIN, K_OBJECT, K_ARRAY, K_STRING, K_NUMBER };

static const struct { const char *name; int of; } keywords[] = {
    { "title", K_NOTE }, { "description", K_NOTE }, { "default", K_NOTE }, { "examples", K_NOTE }, { "example", K_NOTE },
    { "$schema", K_NOTE }, { "$comment", K_NOTE }, { "$defs", K_NOTE }, { "definitions", K_NOTE }, { "deprecated", K_NOTE },
    { "readOnly", K_NOTE }, { "writeOnly", K_NOTE }, { "$id", K_NOTE },
    { "type", K_MAIN }, { "enum", K_MAIN }, { "const", K_MAIN }, { "anyOf", K_MAIN }, { "allOf", K_MAIN }, { "$ref", K_MAIN },
    { "properties", K_OBJECT }, { "required", K_OBJECT }, { "additionalProperties", K_OBJECT },
    { "items", K_ARRAY }, { "minItems", K_ARRAY }, { "maxItems", K_ARRAY },
    { "minLength", K_STRING }, { "maxLength", K_STRING }, { "format", K_STRING },
    { "minimum", K_NUMBER }, { "maximum", K_NUMBER }, { "exclusiveMinimum", K_NUMBER }, { "exclusiveMaximum", K_NUMBER },
};

static int keyword_of(const char *name)
{
    for (size_t i = 0; i < sizeof keywords / sizeof *keywords; i++)
        if (strcmp(keywords[i].name, name) == 0) return keywords[i].of;
    return -1;
}

/* Every keyword is known; *has_kind[of] = there is one of this kind. */
static is_status check_keywords(is_schema_walk *w, json_t *schema, const char *where, bool has_kind[K_NUMBER + 1])
{
    const char *name;
    json_t *v;

    json_object_foreach(schema, name, v)
    {
        const int of = keyword_of(name);

        if (strcmp(name, "uniqueItems") == 0 && json_is_false(v)) continue;
        if (of < 0)
            return is_schema_refuse(
                w, INFERSCALE_E_UNSUPPORTED, where, name,
                "this keyword is not supported, and an answer cannot be held to it; leave it out and check the answer for it");
        if (strcmp(name, "$id") == 0 && schema != w->root)
            return is_schema_refuse(w, INFERSCALE_E_UNSUPPORTED, where, name, "only the whole schema may have an $id here");
        has_kind[of] = true;
    }
    return INFERSCALE_OK;
}

/* Beside $ref, const, enum, anyOf and allOf nothing else may stand that narrows the value (`type` beside const and enum apart).
 * */
static is_status stands_alone(is_schema_walk *w, json_t *schema, const char *where, const char *main)
{
    const bool values = strcmp(main, "enum") == 0 || strcmp(main, "const") == 0;
    const char *name;
    json_t *v;

    json_object_foreach(schema, name,
                        v) if (strcmp(name, main) != 0 && keyword_of(name) > K_NOTE &&
                               !(values &&
                                 strcmp(name, "type") ==
                                     0)) return is_schema_refuse(w, INFERSCALE_E_UNSUPPORTED, where, name,
                                                                 "this is not supported beside %s; write it into its parts",
                                                                 main);
    return INFERSCALE_OK;
}

/* ---- A schema ------------------------------------------------------------------------------------------------------------ */

/* Several types: alternatives, each a node of its own. */
static is_status write_types(is_schema_walk *w, json_t *schema, const char *where, json_t *list, unsigned self, is_buf *b)
{
    json_t *t;
    size_t i;

    if (!json_is_array(list) || json_array_size(list) == 0 || json_array_size(list) > IS_N_TYPES)
        return is_schema_refuse(w, INFERSCALE_E_INVALID, where, "type", "this must be a type's name or a list of names");
    w->nodes[self].any = true;
    json_array_foreach(list, i, t)
    {
        is_buf one = IS_BUF_INIT;
        unsigned part;
        is_status st = add_node(w, NULL, where, &part);

        if (st == INFERSCALE_OK) st = is_schema_need_node(w, self, part);
        if (st == INFERSCALE_OK) st = is_schema_write_type(w, schema, where, is_schema_type(json_string_value(t)), part, &one);
        if (st == INFERSCALE_OK) {
            w->nodes[part].open_at = -1;
            is_buf_fmt(&w->g->text, "r%u ::=%s\n", w->nodes[part].rule, is_buf_ok(&one) ? (char *)one.data : "");
            is_buf_fmt(b, "%s r%u", i ? " |" : "", w->nodes[part].rule);
            if (!is_buf_ok(&one)) st = is_schema_no_memory();
        }
        is_buf_free(&one);
        IS_TRY(st);
    }
    return INFERSCALE_OK;
}

static is_status write_any_of(is_schema_walk *w, const char *where, const char *name, json_t *list, unsigned self, is_buf *b)
{
    char place[200];
    json_t *part;
    size_t i;

    if (!json_is_array(list) || json_array_size(list) == 0)
        return is_schema_refuse(w, INFERSCALE_E_INVALID, where, name, "this must be a list of schemas, not empty");
    if (strcmp(name, "allOf") == 0 && json_array_size(list) > 1)
        return is_schema_refuse(w, INFERSCALE_E_UNSUPPORTED, where, name, "only one schema is supported here");
    w->nodes[self].any = true;
    json_array_foreach(list, i, part)
    {
        unsigned other;

        snprintf(place, sizeof place, "%.160s.%s[%zu]", where, name, i);
        IS_TRY(visit(w, part, place, &other));
        IS_TRY(is_schema_need_node(w, self, other));
        is_buf_fmt(b, "%s r%u", i ? " |" : "", w->nodes[other].rule);
    }
    return INFERSCALE_OK;
}

/* "#" or a JSON pointer behind it; NULL = there is no such place. */
static json_t *find_ref(json_t *root, const char *ref)
{
    json_t *at = root;

    if (*ref++ != '#') return NULL;
    while (at && *ref == '/') {
        char name[256];
        size_t n = 0;

        for (ref++; *ref && *ref != '/' && n + 1 < sizeof name; ref++) {
            if (ref[0] == '~' && (ref[1] == '0' || ref[1] == '1')) name[n++] = *++ref == '0' ? '~' : '/';
            else name[n++] = *ref;
        }
        name[n] = '\0';
        if (*ref && *ref != '/') return NULL;
        if (json_is_array(at)) {
            const size_t digits = strspn(name, "0123456789");
            size_t index = 0;

            if (!digits || name[digits] || digits > 6) return NULL;
            for (size_t i = 0; i < digits; i++) index = index * 10 + (size_t)(name[i] - '0');
            at = json_array_get(at, index);
        } else {
            at = json_object_get(at, name);
        }
    }
    return *ref ? NULL : at;
}

static is_status write_ref(is_schema_walk *w, json_t *schema, const char *where, unsigned self, is_buf *b)
{
    const char *ref = json_string_value(json_object_get(schema, "$ref"));
    json_t *target = ref ? find_ref(w->root, ref) : NULL;
    unsigned other;

    if (!target)
        return is_schema_refuse(w, INFERSCALE_E_INVALID, where, "$ref",
                                "\"%.80s\" leads to nothing in this schema; write \"#/$defs/NAME\"", ref ? ref : "");
    IS_TRY(visit(w, target, where, &other));
    IS_TRY(is_schema_need_node(w, self, other));
    is_buf_fmt(b, " r%u", w->nodes[other].rule);
    return INFERSCALE_OK;
}

static is_status write_schema(is_schema_walk *w, json_t *schema, const char *where, unsigned self, is_buf *b)
{
    static const char *const mains[] = { "$ref", "const", "enum", "anyOf", "allOf" };
    bool has[K_NUMBER + 1] = { 0 };
    json_t *type = json_object_get(schema, "type");

    IS_TRY(check_keywords(w, schema, where, has));
    for (size_t i = 0; i < sizeof mains / sizeof *mains; i++) {
        json_t *v = json_object_get(schema, mains[i]);

        if (!v) continue;
        IS_TRY(stands_alone(w, schema, where, mains[i]));
        if (i == 0) return write_ref(w, schema, where, self, b);
        if (i < 3) return is_schema_write_values(w, schema, where, b, i == 2 ? v : NULL);
        return write_any_of(w, where, mains[i], v, self, b);
    }
    if (type && !json_is_string(type)) return write_types(w, schema, where, type, self, b);
    if (type) return is_schema_write_type(w, schema, where, is_schema_type(json_string_value(type)), self, b);
    /* Without a type the keywords say which one is meant: a value of that type is valid in any case. */
    for (int of = K_OBJECT; of <= K_NUMBER; of++)
        if (has[of])
            return is_schema_write_type(w, schema, where, of == K_NUMBER ? IS_T_NUMBER : of - K_OBJECT + IS_T_OBJECT, self, b);
    is_buf_fmt(b, " %s", is_grammar_common(w->g, IS_VALUE));
    return INFERSCALE_OK;
}

/* Finds the schema's node or makes it. One that is still open may only be met again inside an object or array of its own. */
static is_status visit(is_schema_walk *w, json_t *schema, const char *where, unsigned *out)
{
    is_buf b = { .max = IS_SCHEMA_BYTES };
    is_status st;

    for (unsigned i = 0; i < w->n_nodes; i++) {
        if (w->nodes[i].schema != schema || json_is_boolean(schema)) continue; /* true and false are one object for all */
        if (w->nodes[i].open_at == w->around)
            return is_schema_refuse(w, INFERSCALE_E_INVALID, where, "", "the schema refers to itself with nothing in between");
        *out = i;
        return INFERSCALE_OK;
    }
    if (json_is_false(schema)) return is_schema_refuse(w, INFERSCALE_E_INVALID, where, "", "false allows no value");
    if (!json_is_object(schema) && !json_is_true(schema))
        return is_schema_refuse(w, INFERSCALE_E_INVALID, where, "", "a schema must be an object");
    if (w->depth == IS_SCHEMA_DEPTH)
        return is_schema_refuse(w, INFERSCALE_E_INVALID, where, "", "the schema is nested more than %d deep", IS_SCHEMA_DEPTH);
    w->depth++;
    st = add_node(w, schema, where, out);
    if (st == INFERSCALE_OK) {
        if (json_is_true(schema)) is_buf_fmt(&b, " %s", is_grammar_common(w->g, IS_VALUE));
        else st = write_schema(w, schema, where, *out, &b);
    }
    if (st == INFERSCALE_OK) {
        w->nodes[*out].open_at = -1;
        if (!is_buf_ok(&b) || !b.data) st = is_schema_refuse(w, INFERSCALE_E_INVALID, w->base, "", "the schema is too large");
        else is_buf_fmt(&w->g->text, "r%u ::=%s\n", w->nodes[*out].rule, (char *)b.data);
    }
    w->depth--;
    is_buf_free(&b);
    return st;
}

/* Every part must have a value that ends: from those that need nothing on to those that need them. */
static is_status check_finite(is_schema_walk *w)
{
    unsigned *ready = is_calloc(w->n_nodes, sizeof *ready), n = 0;

    if (!ready) return is_schema_no_memory();
    for (unsigned i = 0; i < w->n_nodes; i++)
        if (w->nodes[i].n_needs == 0) w->nodes[ready[n++] = i].finite = true;
    for (unsigned at = 0; at < n; at++)
        for (unsigned j = 0; j < w->n_needs; j++) {
            is_schema_node *of = &w->nodes[w->needs[j].node];

            if (w->needs[j].other != ready[at] || of->finite || (--of->n_needs && !of->any)) continue;
            of->finite = true;
            ready[n++] = w->needs[j].node;
        }
    is_free(ready);
    for (unsigned i = 0; i < w->n_nodes; i++)
        if (!w->nodes[i].finite)
            return is_schema_refuse(w, INFERSCALE_E_INVALID, w->nodes[i].where, "",
                                    "no value is valid here: it would have no end");
    return INFERSCALE_OK;
}

is_status is_grammar_schema(is_grammar *g, json_t *schema, char *where, size_t size, is_rule *out)
{
    char base[160];
    is_schema_walk w = { .g = g, .root = schema, .base = base, .where = where, .where_size = size };
    unsigned top;
    is_status st;

    snprintf(base, sizeof base, "%s", where);
    if (!g->text.max) g->text.max = IS_SCHEMA_BYTES;
    st = visit(&w, schema, base, &top);
    if (st == INFERSCALE_OK) st = check_finite(&w);
    if (st == INFERSCALE_OK && !is_buf_ok(&g->text))
        st = is_schema_refuse(&w, INFERSCALE_E_INVALID, base, "", "the schema is too large");
    if (st == INFERSCALE_OK) snprintf(out->name, sizeof out->name, "r%u", w.nodes[top].rule);
    is_free(w.nodes);
    is_free(w.needs);
    return st;
}
