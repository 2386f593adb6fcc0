/* schema.h - JSON schema to GBNF, the grammar that an engine's sampler follows.
 *
 * What holds: every text that the grammar lets through is JSON, and valid against the schema. Not everything that is valid is
 * let through: no white space but a space after ',' and ':', members in the schema's order and no others where it names some,
 * no \u escapes (characters are written as they are), numbers of at most 15 digits. What cannot be promised is refused by its
 * name, never skipped.
 *
 * Understood: type (also a list), properties, required, additionalProperties, items, minItems, maxItems, minLength, maxLength,
 * format (date, time, date-time, uuid), minimum, maximum, exclusiveMinimum, exclusiveMaximum (whole numbers), enum, const,
 * anyOf, allOf of one, $ref within the schema ("#", "#/$defs/..."), true, false; annotations (title, description, default,
 * ...). */
#ifndef IS_SERVE_SCHEMA_H
#define IS_SERVE_SCHEMA_H

#include <jansson.h>

#include "base/buf.h"
#include "base/status.h"

enum {
    IS_SCHEMA_REPEAT = 1000,
    IS_SCHEMA_DEPTH = 64,
    IS_SCHEMA_NODES = 2000,
    IS_SCHEMA_ENUM = 1000,
    IS_SCHEMA_BYTES = 256 << 10
};

/* A grammar under construction: rules in text, one a line. Zeroed = empty. */
typedef struct is_grammar {
    is_buf text;
    unsigned n_rules;          /* rules r1, r2, ... are taken */
    unsigned common;           /* which of the common rules are used: schema_rules.c */
} is_grammar;

typedef struct is_rule { char name[16]; } is_rule;

/* Adds the rules for schema; *out names the one that stands for it. On failure the sentence says what is wrong, and where[size]
 * (which comes in holding the schema's own place in the request, "tools[0].function.parameters") the place of the keyword.
 * E_INVALID (not a schema, or no value is valid), E_UNSUPPORTED (a keyword), E_NOMEM. Borrows schema during the call. */
is_status is_grammar_schema(is_grammar *g, json_t *schema, char *where, size_t size, is_rule *out);
/* The rule of any JSON object. */
void is_grammar_object(is_grammar *g, is_rule *out);
/* The whole grammar: root ::= body, then all rules. A new string for is_free; NULL = out of memory, or beyond IS_SCHEMA_BYTES.
 * Frees g. */
char *is_grammar_end(is_grammar *g, const char *body);
void is_grammar_free(is_grammar *g);

/* ---- Pieces (schema_rules.c) ----------------------------------------------------------------------------------------------
 * */

enum is_common {
    IS_WS = 1,
    IS_CHAR = 2,
    IS_STRING = 4,
    IS_INTEGER = 8,
    IS_NUMBER = 16,
    IS_OBJECT = 32,
    IS_ARRAY = 64,
    IS_VALUE = 128,
    IS_DATE = 256,
    IS_TIME = 512,
    IS_UUID = 1024
};

/* The common rule's name; it will be defined at the end, with those it needs. */
const char *is_grammar_common(is_grammar *g, enum is_common rule);
/* Appends s as a literal, quotes included: "\"a\"" for "a". */
void is_grammar_literal(is_buf *b, const char *s, size_t n);
/* Appends an expression for the numbers in [low, high]; has_*: is there a bound, open_*: is it left out itself (not for whole
 * numbers, whose callers move the bound). Bounds are whole, and at most 15 digits. whole: only integers. */
typedef struct is_range { bool has_low, has_high, open_low, open_high; int64_t low, high; } is_range;
bool is_range_empty(const is_range *r);
void is_grammar_range(is_grammar *g, is_buf *b, const is_range *r, bool whole);

#endif
