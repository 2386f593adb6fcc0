/* vllm_fake_parts.h - what the fake server's own files share. */
#ifndef TESTS_SUPPORT_VLLM_FAKE_PARTS_H
#define TESTS_SUPPORT_VLLM_FAKE_PARTS_H

#include <jansson.h>

#include "support/vllm_fake.h"

json_t *fake_description(const vllm_fake *f);
bool fake_has_rows(const vllm_fake *f, const inferscale_kv_part *part, const int32_t *prompt);
bool fake_is_salted(const json_t *body, const inferscale_ticket *t); /* the request has its ticket's salt, for those that know no tickets */
void fake_capture(const vllm_fake *f, const inferscale_ticket *t, const int32_t *prompt);

/* One event of a stream; e is taken. */
void fake_add_event(is_buf *b, json_t *e);
/* What the model says to this prompt (tokens has room for it), as events. */
void fake_write_answer(vllm_fake *f, const json_t *body, int32_t *tokens, uint32_t n, uint32_t cached, is_buf *b);

#endif
