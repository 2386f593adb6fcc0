/* json_valid.h - is a value valid against a JSON schema: a validator of its own, of the keywords that src/serve/schema.h
 * understands. */
#ifndef TESTS_JSON_VALID_H
#define TESTS_JSON_VALID_H

#include <jansson.h>
#include <stdbool.h>

bool json_valid(json_t *root, json_t *schema, json_t *v);

#endif
