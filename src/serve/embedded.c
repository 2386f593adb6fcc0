/* embedded.c - see embedded.h. */
#include "serve/embedded.h"

#include <string.h>

const is_embedded *is_embedded_find(const char *name)
{
    for (const is_embedded *f = is_embedded_files; f->name; f++)
        if (strcmp(f->name, name) == 0) return f;
    return NULL;
}
