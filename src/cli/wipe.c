/* wipe.c - in the program, and nowhere else, all memory is wiped when it is freed: what was forgotten is not to be found in a core dump.
 *
 * glibc lets a program put functions of its own in the place of free and realloc; every library of the process then calls these (SQLite,
 * jansson, libcurl, libmicrohttpd, libllama and its C++). They hand on to glibc's. A mapped block is given back to the system as a whole,
 * and needs no wiping. SQLite keeps small blocks and pages for itself unless it is told not to. Programs that use the library keep
 * their own allocator and their own SQLite: what the library frees it wipes itself (base/mem.c). */
#include "cli/wipe.h"

#include <malloc.h>
#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>

void cli_wipe_set_up(void)
{
    sqlite3_config(SQLITE_CONFIG_LOOKASIDE, 0, 0);
    sqlite3_config(SQLITE_CONFIG_PAGECACHE, NULL, 0, 0);
}

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

extern void *__libc_malloc(size_t n);
extern void *__libc_realloc(void *p, size_t n);
extern void __libc_free(void *p);

/* The bit of a chunk's size that says so; glibc's layout since 1996. */
static int is_mapped(const void *p) { return (((const size_t *)p)[-1] & 2) != 0; }

__attribute__((visibility("default"))) void free(void *p)
{
    if (p && !is_mapped(p)) explicit_bzero(p, malloc_usable_size(p));
    __libc_free(p);
}

__attribute__((visibility("default"))) void *realloc(void *p, size_t n)
{
    size_t had;
    void *q;

    if (!p) return __libc_malloc(n);
    if (is_mapped(p)) return __libc_realloc(p, n);
    if (n == 0) {
        free(p);
        return NULL;
    }
    had = malloc_usable_size(p);
    if (n <= had) { /* it may be cut in two */
        explicit_bzero((char *)p + n, had - n);
        return __libc_realloc(p, n);
    }
    q = __libc_malloc(n);
    if (!q) return NULL;
    memcpy(q, p, had);
    free(p);
    return q;
}

#endif
