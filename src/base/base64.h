/* base64.h - bytes as text for URLs and JSON: base64url without padding (RFC 4648, 5), by libsodium. */
#ifndef IS_BASE_BASE64_H
#define IS_BASE_BASE64_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* A new string (is_free); NULL = out of memory. */
char *is_base64url(const void *p, size_t n);
/* Exactly one text for each value: characters of another alphabet, padding, blanks and unused bits that are set are E_PARSE, and so are
 * more than max bytes. *out: is_free. */
is_status is_base64url_read(const char *text, size_t max, uint8_t **out, size_t *n);

#endif
