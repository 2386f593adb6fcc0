/* fuzz_schema.c - JSON schema to grammar: any JSON is a grammar whose rules are all there, or one sentence that names the place. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "serve/schema.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(int holds, const char *what)
{
    if (holds) return;
    fprintf(stderr, "does not hold: %s\n", what);
    abort();
}

/* Lines of "name ::= ...", no name twice, a root. */
static void check_rules(const char *text)
{
    const char *names[8192];
    size_t lengths[8192], n = 0;

    check(strncmp(text, "root ::= ", 9) == 0, "the root comes first");
    check(is_utf8_valid(text, strlen(text), NULL), "a grammar is UTF-8");
    for (const char *p = text; *p; p = strchr(p, '\n') + 1) {
        size_t len = strcspn(p, " ");

        check(len > 0 && strncmp(p + len, " ::=", 4) == 0, "a line is a rule");
        check(strchr(p, '\n') != NULL, "a rule ends in a line end");
        for (size_t i = 0; i < n && n < 2000; i++) check(lengths[i] != len || memcmp(names[i], p, len) != 0, "a rule is there once");
        if (n == sizeof names / sizeof *names) return;
        names[n] = p;
        lengths[n++] = len;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    json_t *schema = json_loadb((const char *)data, size, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, NULL);
    char where[200] = "response_format.json_schema.schema";
    is_grammar g = { 0 };
    is_rule rule;
    is_status st;

    if (!schema) return 0;
    st = is_grammar_schema(&g, schema, where, sizeof where, &rule);
    if (st == INFERSCALE_OK) {
        char *text = is_grammar_end(&g, rule.name);

        if (text) check_rules(text);
        is_free(text);
    } else {
        is_grammar_free(&g);
        check(st == INFERSCALE_E_INVALID || st == INFERSCALE_E_UNSUPPORTED, "a schema is wrong or not supported");
        check(strncmp(where, "response_format.json_schema.schema", 34) == 0, "the place is in the schema");
        check(strncmp(is_error(), where, strlen(where) < 100 ? strlen(where) : 100) == 0, "the sentence names the place");
    }
    json_decref(schema);
    return 0;
}
