/* vllm_fake_parts.h - what the fake server's own files share. */
#ifndef TESTS_SUPPORT_VLLM_FAKE_PARTS_H
#define TESTS_SUPPORT_VLLM_FAKE_PARTS_H

#include <jansson.h>

#include "support/vllm_fake.h"

json_t *fake_description(const vllm_fake *f);
bool fake_has_rows(const vllm_fake *f, const inferscale_kv_part *part, const int32_t *prompt);
void fake_capture(const vllm_fake *f, const inferscale_ticket *t, const int32_t *prompt);

#endif
