/* base64.c - base64url by libsodium, which takes a time that does not depend on the bytes. */
#include "base/base64.h"

#include <sodium.h>
#include <string.h>

#include "base/mem.h"

enum { VARIANT = sodium_base64_VARIANT_URLSAFE_NO_PADDING };

char *is_base64url(const void *p, size_t n)
{
    size_t size = n < SIZE_MAX / 2 ? sodium_base64_ENCODED_LEN(n, VARIANT) : 0;
    char *text = size ? is_malloc(size) : NULL;

    if (text) sodium_bin2base64(text, size, p, n, VARIANT);
    return text;
}

is_status is_base64url_read(const char *text, size_t max, uint8_t **out, size_t *n)
{
    size_t length = strlen(text), most = length / 4 * 3 + 3;
    uint8_t *bytes;

    *out = NULL;
    *n = 0;
    if (length > max / 3 * 4 + 4) return is_fail(INFERSCALE_E_PARSE, "base64url of more than %zu bytes; it is not one of ours", max);
    bytes = is_malloc(most);
    if (!bytes) return is_fail(INFERSCALE_E_NOMEM, "out of memory reading base64url; free memory and try again");
    if (sodium_base642bin(bytes, most, text, length, NULL, n, NULL, VARIANT) != 0 || *n > max) {
        is_free(bytes);
        *n = 0;
        return is_fail(INFERSCALE_E_PARSE, "not base64url without padding; pass the text as it was written");
    }
    *out = bytes;
    return INFERSCALE_OK;
}
