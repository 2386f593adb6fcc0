/* test_schema.c - JSON schemas as grammars: what the grammar lets through is valid, what it should let through it does, and what cannot
 * be promised is refused by its name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "serve/schema.h"
#include "support/gbnf.h"
#include "support/json_valid.h"
#include "support/scratch.h"

static char where[200];

/* The schema's grammar, or NULL; where and the sentence then say why. */
static char *grammar_of(json_t *schema, is_status *st)
{
    is_grammar g = { 0 };
    is_rule rule;

    snprintf(where, sizeof where, "s");
    *st = is_grammar_schema(&g, schema, where, sizeof where, &rule);
    if (*st == INFERSCALE_OK) return is_grammar_end(&g, rule.name);
    is_grammar_free(&g);
    return NULL;
}

static json_t *parse(const char *text)
{
    json_error_t e;
    json_t *v = json_loads(text, JSON_DECODE_ANY, &e);
    if (!v) fail_msg("%s: %s", e.text, text);
    return v;
}

/* Draws texts from the grammar of the schema; each must be JSON that is valid. */
static void draws_are_valid(json_t *schema, unsigned long long *seed, int n)
{
    is_status st;
    char *text = grammar_of(schema, &st);
    gbnf *g;

    if (!text) fail_msg("%s", is_error());
    g = gbnf_read(text);
    for (int i = 0; i < n; i++) {
        char *drawn = gbnf_draw(g, seed, scratch_below(seed, 200));
        json_error_t e;
        json_t *v = json_loads(drawn, JSON_DECODE_ANY, &e);

        if (!v || !json_valid(schema, schema, v)) {
            char *s = json_dumps(schema, JSON_ENCODE_ANY);
            fail_msg("%s\nis %s against %s\nby %s", drawn, v ? "not valid" : "no JSON", s, text);
        }
        if (strlen(drawn) < 4000 && !gbnf_follows(g, drawn)) fail_msg("what was drawn does not follow: %s\n%s", drawn, text);
        json_decref(v);
        free(drawn);
    }
    gbnf_free(g);
    is_free(text);
}

/* yes and no: texts, NULL ends them. */
static void lets_through(const char *schema, const char *const *yes, const char *const *no)
{
    json_t *s = parse(schema);
    unsigned long long seed = 1;
    is_status st;
    char *text = grammar_of(s, &st);
    gbnf *g;

    if (!text) fail_msg("%s: %s", schema, is_error());
    g = gbnf_read(text);
    for (; *yes; yes++)
        if (!gbnf_follows(g, *yes)) fail_msg("%s should be let through by %s\n%s", *yes, schema, text);
    for (; *no; no++)
        if (gbnf_follows(g, *no)) fail_msg("%s should not be let through by %s\n%s", *no, schema, text);
    gbnf_free(g);
    is_free(text);
    draws_are_valid(s, &seed, 60);
    json_decref(s);
}

#define YES(...) (const char *const[]){ __VA_ARGS__, NULL }
#define NO YES

static void refuses(const char *schema, is_status want, const char *place, const char *word)
{
    json_t *s = parse(schema);
    is_status st;
    char *text = grammar_of(s, &st);

    if (text) fail_msg("%s should be refused, and is:\n%s", schema, text);
    if (st != want) fail_msg("%s: status %d, not %d: %s", schema, st, want, is_error());
    assert_string_equal(where, place);
    if (!strstr(is_error(), word)) fail_msg("\"%s\" is not in: %s", word, is_error());
    json_decref(s);
}

/* ---- What is let through ------------------------------------------------------------------------------------------------- */

static void plain_types(void **state)
{
    lets_through("{\"type\": \"string\"}", YES("\"\"", "\"a b\"", "\"caf\xc3\xa9 \xf0\x9f\x98\x80\"", "\"a\\\"b\\\\c\\n\""),
                 NO("a", "\"a", "\"a\"b\"", "\"a\nb\"", "\"\\u0041\"", "\"\\x\"", " \"a\"", "\"a\" ", "3"));
    lets_through("{\"type\": \"integer\"}", YES("0", "-1", "42", "999999999999999"), NO("01", "1.0", "+1", "1e3", "--1", "", "1000000000000000"));
    lets_through("{\"type\": \"number\"}", YES("0", "-1.5", "42", "1e10", "0.25E-3"), NO("01", ".5", "5.", "1e", "1e100", "NaN", "Infinity"));
    lets_through("{\"type\": \"boolean\"}", YES("true", "false"), NO("True", "1", "null"));
    lets_through("{\"type\": \"null\"}", YES("null"), NO("nil", "", "nullnull"));
    lets_through("{\"type\": [\"string\", \"null\"]}", YES("null", "\"a\""), NO("1", "true"));
    lets_through("true", YES("1", "{\"a\": [1, {\"b\":null}]}", "\"x\""), NO("{a:1}", "[1,]", ""));
    lets_through("{}", YES("[]", "[[[]]]", "false"), NO("[", "]"));
    lets_through("{\"type\": \"object\"}", YES("{}", "{\"a\":1}", "{\"a\": {\"b\": [true]}, \"c\":\"\"}"), NO("[]", "{\"a\"}", "{\"a\":1,}"));
}

static void objects(void **state)
{
    const char *s = "{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"integer\"}, \"b\": {\"type\": \"string\"}, \"c\": {\"type\": \"null\"}},"
                    "\"required\": [\"b\"], \"additionalProperties\": false}";
    lets_through(s, YES("{\"b\":\"x\"}", "{\"a\": 1, \"b\": \"\"}", "{\"b\": \"\", \"c\": null}", "{\"a\":1,\"b\":\"\",\"c\":null}"),
                 NO("{}", "{\"a\":1}", "{\"b\":\"\",\"a\":1}", "{\"b\":1}", "{,\"b\":\"\"}", "{\"b\":\"\",}", "{\"b\":\"\",\"d\":1}", "{\"b\":\"\" }"));
    lets_through("{\"properties\": {\"a\": {}, \"b\": {}}}", YES("{}", "{\"a\":1}", "{\"b\":1}", "{\"a\":1,\"b\":2}"), NO("{\"b\":1,\"a\":1}", "[]"));
    lets_through("{\"type\": \"object\", \"additionalProperties\": false}", YES("{}"), NO("{\"a\":1}", "{ }"));
    lets_through("{\"type\": \"object\", \"additionalProperties\": {\"type\": \"integer\"}}", YES("{}", "{\"x y\": 1, \"z\":-2}"), NO("{\"a\":\"\"}"));
    lets_through("{\"type\": \"object\", \"properties\": {\"a\\\"\\\\\\n\xc3\xa9\": {\"const\": 1}}, \"required\": [\"a\\\"\\\\\\n\xc3\xa9\"]}",
                 YES("{\"a\\\"\\\\\\n\xc3\xa9\": 1}"), NO("{\"a\": 1}"));
}

static void arrays(void **state)
{
    lets_through("{\"type\": \"array\", \"items\": {\"type\": \"integer\"}}", YES("[]", "[1]", "[1,2, 3]"), NO("[1,]", "[\"\"]", "[1 2]"));
    lets_through("{\"type\": \"array\", \"items\": {\"type\": \"integer\"}, \"minItems\": 2}", YES("[1,2]", "[1,2,3,4]"), NO("[]", "[1]"));
    lets_through("{\"type\": \"array\", \"items\": {\"type\": \"integer\"}, \"maxItems\": 2}", YES("[]", "[1]", "[1,2]"), NO("[1,2,3]"));
    lets_through("{\"type\": \"array\", \"items\": {\"type\": \"integer\"}, \"minItems\": 1, \"maxItems\": 1}", YES("[1]"), NO("[]", "[1,2]"));
    lets_through("{\"type\": \"array\", \"items\": {\"type\": \"integer\"}, \"minItems\": 3, \"maxItems\": 4}", YES("[1,2,3]", "[1,2,3,4]"),
                 NO("[1,2]", "[1,2,3,4,5]"));
    lets_through("{\"type\": \"array\", \"maxItems\": 0, \"items\": {\"not\": {}}}", YES("[]"), NO("[1]"));
    lets_through("{\"items\": {\"enum\": [\"a\"]}, \"uniqueItems\": false}", YES("[]", "[\"a\",\"a\"]"), NO("[1]"));
}

static void strings(void **state)
{
    lets_through("{\"type\": \"string\", \"minLength\": 2, \"maxLength\": 3}", YES("\"ab\"", "\"\xe6\x97\xa5\xe6\x9c\xac\xe8\xaa\x9e\"", "\"\\n\\n\""),
                 NO("\"a\"", "\"abcd\"", "\"\\n\""));
    lets_through("{\"type\": \"string\", \"minLength\": 1}", YES("\"a\"", "\"abc\""), NO("\"\""));
    lets_through("{\"type\": \"string\", \"maxLength\": 0}", YES("\"\""), NO("\"a\""));
    lets_through("{\"type\": \"string\", \"format\": \"date\"}", YES("\"2024-02-29\"", "\"2000-02-29\"", "\"1999-12-31\"", "\"2023-04-30\""),
                 NO("\"2023-02-29\"", "\"1900-02-29\"", "\"2024-04-31\"", "\"2024-13-01\"", "\"2024-00-10\"", "\"2024-01-00\"", "\"24-01-01\""));
    lets_through("{\"type\": \"string\", \"format\": \"date-time\"}", YES("\"2024-05-01T23:59:59Z\"", "\"2024-05-01T00:00:00.5+02:00\""),
                 NO("\"2024-05-01\"", "\"2024-05-01T24:00:00Z\"", "\"2024-05-01T00:00:00\""));
    lets_through("{\"type\": \"string\", \"format\": \"uuid\"}", YES("\"00000000-0000-4000-8000-0123456789ab\""), NO("\"0\""));
}

static void values(void **state)
{
    lets_through("{\"enum\": [\"a\", 1, null, true, 0.1, [1, \"b\"], {\"c\": 2}]}",
                 YES("\"a\"", "1", "null", "true", "0.1", "[1,\"b\"]", "{\"c\":2}"), NO("\"b\"", "2", "false", "a"));
    lets_through("{\"type\": \"string\", \"enum\": [\"a\", 1, \"b\"]}", YES("\"a\"", "\"b\""), NO("1"));
    lets_through("{\"const\": \"x\\\"y\"}", YES("\"x\\\"y\""), NO("\"x\""));
    lets_through("{\"anyOf\": [{\"type\": \"integer\"}, {\"type\": \"null\"}], \"title\": \"t\", \"default\": null}", YES("1", "null"), NO("\"\""));
    lets_through("{\"allOf\": [{\"$ref\": \"#/$defs/a\"}], \"$defs\": {\"a\": {\"const\": 3}}}", YES("3"), NO("4"));
}

static void references(void **state)
{
    lets_through("{\"$ref\": \"#/$defs/tree\", \"$defs\": {\"tree\": {\"type\": \"object\", \"properties\": {\"v\": {\"type\": \"integer\"}, \"kids\": {"
                 "\"type\": \"array\", \"items\": {\"$ref\": \"#/$defs/tree\"}}}, \"required\": [\"v\", \"kids\"]}}}",
                 YES("{\"v\":1,\"kids\":[]}", "{\"v\":1,\"kids\":[{\"v\":2,\"kids\":[{\"v\":3,\"kids\":[]}]}]}"), NO("{\"v\":1}"));
    lets_through("{\"type\": \"object\", \"properties\": {\"next\": {\"anyOf\": [{\"$ref\": \"#\"}, {\"type\": \"null\"}]}}, \"required\": [\"next\"]}",
                 YES("{\"next\":null}", "{\"next\": {\"next\": null}}"), NO("{}", "null"));
    lets_through("{\"$ref\": \"#/definitions/a~1b~0\", \"definitions\": {\"a/b~\": {\"const\": 1}}}", YES("1"), NO("2"));
}

static void bounds(void **state)
{
    lets_through("{\"type\": \"integer\", \"minimum\": 0, \"maximum\": 100}", YES("0", "7", "99", "100"), NO("101", "-1", "00", "1000", "110"));
    lets_through("{\"type\": \"integer\", \"minimum\": -3, \"maximum\": 12}", YES("-3", "-1", "0", "9", "12"), NO("-4", "13", "-0", "-10", "20"));
    lets_through("{\"type\": \"integer\", \"exclusiveMinimum\": 0, \"exclusiveMaximum\": 10}", YES("1", "9"), NO("0", "10"));
    lets_through("{\"type\": \"integer\", \"minimum\": 0.5, \"maximum\": 2.5}", YES("1", "2"), NO("0", "3"));
    lets_through("{\"type\": \"number\", \"minimum\": 0, \"maximum\": 1}", YES("0", "0.5", "1", "1.0", "0.999"), NO("1.01", "-0.1", "2", "1.5"));
    lets_through("{\"type\": \"number\", \"exclusiveMinimum\": 0, \"exclusiveMaximum\": 1}", YES("0.5", "0.01"), NO("0", "0.0", "1", "1.0"));
    lets_through("{\"type\": \"number\", \"minimum\": -2, \"exclusiveMaximum\": 0}", YES("-2", "-0.5", "-1.9", "-2.0"), NO("0", "-2.1", "-0", "-0.0"));
}

/* Bounds by chance: every number near them is let through exactly if it lies between them. */
static void bounds_by_chance(void **state)
{
    unsigned long long seed = scratch_seed("bounds");

    for (int round = 0; round < 300; round++) {
        int64_t scale = 1;
        for (unsigned i = scratch_below(&seed, 7); i; i--) scale *= 10;
        int64_t low = (int64_t)(scratch_next(&seed) % (uint64_t)(2 * scale + 1)) - scale;
        int64_t high = low + (int64_t)(scratch_next(&seed) % (uint64_t)(scale + 1));
        char schema[120], number[32];
        is_status st;

        snprintf(schema, sizeof schema, "{\"type\": \"integer\", \"minimum\": %lld, \"maximum\": %lld}", (long long)low, (long long)high);
        json_t *s = parse(schema);
        char *text = grammar_of(s, &st);
        gbnf *g = gbnf_read(text);
        for (int i = 0; i < 40; i++) {
            int64_t x = i < 10 ? low - 5 + i : i < 20 ? high - 5 + i - 10 : low - 3 + (int64_t)(scratch_next(&seed) % (uint64_t)(high - low + 7));
            snprintf(number, sizeof number, "%lld", (long long)x);
            if (gbnf_follows(g, number) != (x >= low && x <= high)) fail_msg("%s against %s\n%s", number, schema, text);
        }
        gbnf_free(g);
        is_free(text);
        json_decref(s);
    }
}

/* ---- Schemas by chance --------------------------------------------------------------------------------------------------- */

static json_t *random_schema(unsigned long long *seed, int depth);

static json_t *random_object(unsigned long long *seed, int depth)
{
    json_t *properties = json_object(), *required = json_array();
    unsigned n = scratch_below(seed, 5);

    for (unsigned i = 0; i < n; i++) {
        char name[16];
        snprintf(name, sizeof name, "%c%u", "az\"\\ "[scratch_below(seed, 5)], i);
        json_object_set_new(properties, name, random_schema(seed, depth - 1));
        if (scratch_below(seed, 2)) json_array_append_new(required, json_string(name));
    }
    json_t *s = json_pack("{s:s, s:o, s:o}", "type", "object", "properties", properties, "required", required);
    if (scratch_below(seed, 2)) json_object_set_new(s, "additionalProperties", json_false());
    return s;
}

static json_t *random_array(unsigned long long *seed, int depth)
{
    json_t *s = json_pack("{s:s, s:o}", "type", "array", "items", random_schema(seed, depth - 1));
    int least = (int)scratch_below(seed, 4);

    if (scratch_below(seed, 2)) json_object_set_new(s, "minItems", json_integer(least));
    if (scratch_below(seed, 2)) json_object_set_new(s, "maxItems", json_integer(least + (int)scratch_below(seed, 3)));
    return s;
}

static json_t *random_number(unsigned long long *seed)
{
    json_t *s = json_pack("{s:s}", "type", scratch_below(seed, 2) ? "integer" : "number");
    int low = (int)scratch_below(seed, 2000) - 1000;

    if (scratch_below(seed, 2)) json_object_set_new(s, scratch_below(seed, 2) ? "minimum" : "exclusiveMinimum", json_integer(low));
    if (scratch_below(seed, 2)) json_object_set_new(s, scratch_below(seed, 2) ? "maximum" : "exclusiveMaximum", json_integer(low + 2 + (int)scratch_below(seed, 99)));
    return s;
}

static json_t *random_schema(unsigned long long *seed, int depth)
{
    static const char *const formats[] = { "date", "time", "date-time", "uuid" };

    switch (scratch_below(seed, depth > 0 ? 12 : 7)) {
    case 0: return json_pack("{s:s}", "type", "string");
    case 1: return json_pack("{s:s, s:i, s:i}", "type", "string", "minLength", (int)scratch_below(seed, 3), "maxLength", 2 + (int)scratch_below(seed, 9));
    case 2: return json_pack("{s:s, s:s}", "type", "string", "format", formats[scratch_below(seed, 4)]);
    case 3: return random_number(seed);
    case 4: return json_pack("{s:[s, i, n, f, s]}", "enum", "a\"b", (int)scratch_below(seed, 99), 0.1 * scratch_below(seed, 99), "\\");
    case 5: return json_pack("{s:[s, s]}", "type", "boolean", "null");
    case 6: return json_pack("{s:s}", "$ref", "#/$defs/d");
    case 7: return random_array(seed, depth);
    case 8: return json_pack("{s:[o, o]}", "anyOf", random_schema(seed, depth - 1), random_schema(seed, depth - 1));
    case 9: return json_pack("{s:s, s:o}", "type", "object", "additionalProperties", random_schema(seed, depth - 1));
    default: return random_object(seed, depth);
    }
}

static void by_chance(void **state)
{
    unsigned long long seed = scratch_seed("schemas");

    for (int i = 0; i < 400; i++) {
        json_t *s = random_object(&seed, 4);
        /* The definition: a list that may hold the whole once more. */
        json_object_set_new(s, "$defs", json_pack("{s:{s:s, s:{s:s}}}", "d", "type", "array", "items", "$ref", "#"));
        draws_are_valid(s, &seed, 8);
        json_decref(s);
    }
}

/* ---- What is refused ----------------------------------------------------------------------------------------------------- */

static void names_what_it_refuses(void **state)
{
    static const char *const keywords[] = { "pattern", "not", "oneOf", "if", "then", "else", "patternProperties", "propertyNames", "minProperties",
                                            "maxProperties", "dependentRequired", "prefixItems", "contains", "multipleOf",
                                            "unevaluatedProperties", "$anchor", "nullable", "contentEncoding", "whatever" };
    for (size_t i = 0; i < sizeof keywords / sizeof *keywords; i++) {
        char schema[160], place[80];
        snprintf(schema, sizeof schema, "{\"type\": \"object\", \"properties\": {\"p\": {\"%s\": 1}}}", keywords[i]);
        snprintf(place, sizeof place, "s.properties.p.%s", keywords[i]);
        refuses(schema, INFERSCALE_E_UNSUPPORTED, place, "not supported");
    }
    refuses("{\"type\": \"array\", \"uniqueItems\": true}", INFERSCALE_E_UNSUPPORTED, "s.uniqueItems", "not supported");
    refuses("{\"type\": \"string\", \"format\": \"email\"}", INFERSCALE_E_UNSUPPORTED, "s.format", "email");
    refuses("{\"type\": \"string\", \"maxLength\": 100000}", INFERSCALE_E_UNSUPPORTED, "s.maxLength", "1000");
    refuses("{\"type\": \"number\", \"minimum\": 0.5}", INFERSCALE_E_UNSUPPORTED, "s.minimum", "whole");
    refuses("{\"anyOf\": [{}], \"properties\": {}}", INFERSCALE_E_UNSUPPORTED, "s.properties", "beside anyOf");
    refuses("{\"$ref\": \"#/$defs/a\", \"type\": \"string\", \"$defs\": {\"a\": {}}}", INFERSCALE_E_UNSUPPORTED, "s.type", "beside $ref");
    refuses("{\"allOf\": [{}, {}]}", INFERSCALE_E_UNSUPPORTED, "s.allOf", "one");
    refuses("{\"type\": \"object\", \"properties\": {\"a\": {}}, \"required\": [\"b\"]}", INFERSCALE_E_UNSUPPORTED, "s.required", "\"b\"");
    refuses("{\"properties\": {\"a\": {\"$id\": \"x\"}}}", INFERSCALE_E_UNSUPPORTED, "s.properties.a.$id", "whole schema");
}

static void refuses_what_is_no_schema(void **state)
{
    refuses("{\"type\": \"strin\"}", INFERSCALE_E_INVALID, "s.type", "object, array");
    refuses("{\"type\": 3}", INFERSCALE_E_INVALID, "s.type", "type");
    refuses("{\"type\": []}", INFERSCALE_E_INVALID, "s.type", "type");
    refuses("{\"type\": [\"string\", 4]}", INFERSCALE_E_INVALID, "s.type", "object, array");
    refuses("{\"type\": \"object\", \"properties\": []}", INFERSCALE_E_INVALID, "s.properties", "object");
    refuses("{\"type\": \"object\", \"properties\": {\"a\": 3}}", INFERSCALE_E_INVALID, "s.properties.a", "object");
    refuses("{\"type\": \"object\", \"properties\": {\"a\": {}}, \"required\": \"a\"}", INFERSCALE_E_INVALID, "s.required", "list");
    refuses("{\"type\": \"object\", \"properties\": {\"a\": {}}, \"required\": [1]}", INFERSCALE_E_INVALID, "s.required", "list");
    refuses("{\"type\": \"object\", \"additionalProperties\": 1}", INFERSCALE_E_INVALID, "s.additionalProperties", "true, false");
    refuses("{\"type\": \"array\", \"items\": 1}", INFERSCALE_E_INVALID, "s.items", "object");
    refuses("{\"type\": \"array\", \"minItems\": -1}", INFERSCALE_E_INVALID, "s.minItems", "whole");
    refuses("{\"type\": \"array\", \"minItems\": \"1\"}", INFERSCALE_E_INVALID, "s.minItems", "whole");
    refuses("{\"type\": \"integer\", \"minimum\": \"1\"}", INFERSCALE_E_INVALID, "s.minimum", "number");
    refuses("{\"enum\": []}", INFERSCALE_E_INVALID, "s.enum", "not empty");
    refuses("{\"enum\": \"a\"}", INFERSCALE_E_INVALID, "s.enum", "list");
    refuses("{\"anyOf\": []}", INFERSCALE_E_INVALID, "s.anyOf", "not empty");
    refuses("{\"anyOf\": {}}", INFERSCALE_E_INVALID, "s.anyOf", "list");
    refuses("{\"$ref\": \"#/$defs/b\", \"$defs\": {}}", INFERSCALE_E_INVALID, "s.$ref", "leads to nothing");
    refuses("{\"$ref\": \"http://a/b\"}", INFERSCALE_E_INVALID, "s.$ref", "leads to nothing");
    refuses("{\"$ref\": 3}", INFERSCALE_E_INVALID, "s.$ref", "leads to nothing");
    refuses("{\"$ref\": \"#a\"}", INFERSCALE_E_INVALID, "s.$ref", "leads to nothing");
}

static void refuses_what_has_no_value(void **state)
{
    refuses("false", INFERSCALE_E_INVALID, "s", "no value");
    refuses("{\"type\": \"array\", \"minItems\": 2, \"maxItems\": 1}", INFERSCALE_E_INVALID, "s.maxItems", "no list");
    refuses("{\"type\": \"string\", \"minLength\": 2, \"maxLength\": 1}", INFERSCALE_E_INVALID, "s.maxLength", "no string");
    refuses("{\"type\": \"integer\", \"minimum\": 2, \"maximum\": 1}", INFERSCALE_E_INVALID, "s.maximum", "no number");
    refuses("{\"type\": \"integer\", \"exclusiveMinimum\": 1, \"exclusiveMaximum\": 2}", INFERSCALE_E_INVALID, "s.maximum", "no number");
    refuses("{\"type\": \"string\", \"enum\": [1, 2]}", INFERSCALE_E_INVALID, "s.enum", "type");
    refuses("{\"type\": \"object\", \"properties\": {\"a\": {\"$ref\": \"#\"}}, \"required\": [\"a\"]}", INFERSCALE_E_INVALID, "s", "no end");
    refuses("{\"type\": \"array\", \"items\": {\"$ref\": \"#\"}, \"minItems\": 1}", INFERSCALE_E_INVALID, "s", "no end");
    refuses("{\"$ref\": \"#\"}", INFERSCALE_E_INVALID, "s", "refers to itself");
    refuses("{\"anyOf\": [{\"type\": \"null\"}, {\"$ref\": \"#\"}]}", INFERSCALE_E_INVALID, "s.anyOf[1]", "refers to itself");
    refuses("{\"$defs\": {\"a\": {\"$ref\": \"#/$defs/b\"}, \"b\": {\"$ref\": \"#/$defs/a\"}}, \"$ref\": \"#/$defs/a\"}", INFERSCALE_E_INVALID, "s",
            "refers to itself");
}

/* Size is bounded, and deep nesting ends in a sentence. */
static void bounded(void **state)
{
    json_t *s = json_pack("{s:s}", "type", "null"), *many = json_object();
    is_status st;

    for (int i = 0; i < 200; i++) s = json_pack("{s:s, s:o}", "type", "array", "items", s);
    assert_null(grammar_of(s, &st));
    assert_int_equal(st, INFERSCALE_E_INVALID);
    assert_non_null(strstr(is_error(), "deep"));
    json_decref(s);
    for (int i = 0; i < 3000; i++) {
        char name[16];
        snprintf(name, sizeof name, "p%d", i);
        json_object_set_new(many, name, json_object());
    }
    s = json_pack("{s:s, s:o}", "type", "object", "properties", many);
    assert_null(grammar_of(s, &st));
    assert_int_equal(st, INFERSCALE_E_INVALID);
    json_decref(s);
}

/* Every failing allocation is a refusal, without a leak. */
static void out_of_memory(void **state)
{
    json_t *s = parse("{\"type\": \"object\", \"properties\": {\"a\": {\"enum\": [1, 2]}, \"b\": {\"type\": [\"string\", \"null\"]}, \"c\": {\"$ref\": \"#/$defs/c\"}},"
                      "\"required\": [\"a\"], \"$defs\": {\"c\": {\"type\": \"array\", \"items\": {\"type\": \"integer\", \"minimum\": 4}}}}");
    char *text = NULL;
    size_t n = 1;

    for (; !text; n++) {
        is_grammar g = { 0 };
        is_rule rule;

        is_mem_fail_at(n);
        snprintf(where, sizeof where, "s");
        if (is_grammar_schema(&g, s, where, sizeof where, &rule) == INFERSCALE_OK) text = is_grammar_end(&g, rule.name);
        else is_grammar_free(&g);
        is_mem_fail_at(0);
        assert_true(n < 1000);
    }
    assert_true(n > 5);
    is_free(text);
    json_decref(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_types), cmocka_unit_test(objects), cmocka_unit_test(arrays), cmocka_unit_test(strings),
        cmocka_unit_test(values), cmocka_unit_test(references), cmocka_unit_test(bounds), cmocka_unit_test(bounds_by_chance),
        cmocka_unit_test(by_chance), cmocka_unit_test(names_what_it_refuses), cmocka_unit_test(refuses_what_is_no_schema),
        cmocka_unit_test(refuses_what_has_no_value), cmocka_unit_test(bounded), cmocka_unit_test(out_of_memory),
    };
    return cmocka_run_group_tests_name("schema", tests, NULL, NULL);
}
