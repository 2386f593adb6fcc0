/* openai_kit.h - what the programs that test the OpenAI face share: requests, and values of JSON by their path. Everything asserts. */
#ifndef TESTS_OPENAI_KIT_H
#define TESTS_OPENAI_KIT_H

#include "support/serve_kit.h"

#define HI "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"
/* What is remembered is found by its words at once, by its meaning when its vector is there: a question that has a word of it. */
#define TEA "\"messages\":[{\"role\":\"user\",\"content\":\"Which tea?\"}]"

extern serve_kit *kit;         /* the server that runs; who starts it sets it */

int openai_stop(void **state); /* ends it */
json_t *loads(const char *text);
json_t *at(json_t *o, const char *path); /* "choices.0.text" */
const char *json_text_at(json_t *o, const char *path);
json_int_t json_number_at(json_t *o, const char *path);
serve_reply post(const char *path, const char *body, int status);
void remembers(const char *user, const char *text);

#endif
