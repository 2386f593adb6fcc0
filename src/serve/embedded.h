/* embedded.h - files that are part of the program: the page's and the description of the HTTP API. The Makefile's EMBEDDED lists them;
 * scripts/embed.py makes the table. */
#ifndef IS_SERVE_EMBEDDED_H
#define IS_SERVE_EMBEDDED_H

#include <stddef.h>

typedef struct is_embedded {
    const char *name, *type;     /* "openapi.json", "application/json" */
    const unsigned char *data;   /* NUL-terminated behind len */
    size_t len;
} is_embedded;

extern const is_embedded is_embedded_files[]; /* name NULL ends it */
const is_embedded *is_embedded_find(const char *name); /* NULL = not in this build */

#endif
