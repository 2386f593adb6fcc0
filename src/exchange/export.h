/* export.h - an owner's memory as JSON Lines (docs/formats.md). */
#ifndef IS_EXCHANGE_EXPORT_H
#define IS_EXCHANGE_EXPORT_H

#include <stdbool.h>
#include <stddef.h>

#include "inferscale.h"

typedef struct is_export {
    inferscale *is;
    const inferscale_scope *scope;
    int (*write)(void *ctx, const void *p, size_t n); /* whole lines; non-zero ends it */
    void *ctx;
    size_t facts, turns;           /* results */
    size_t withdrawn;              /* turns left out: imported, they would be found again */
    bool cut;                      /* write ended it, or a line had no memory */
} is_export;

/* Everything of the scope. Errors as inferscale_ls. */
inferscale_status is_export_run(is_export *x);

#endif
