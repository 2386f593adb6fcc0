/* loader.h - something that is loaded by the first thread that needs it, while nobody else waits but those who need it too.
 *
 * The lock is never held while something is loaded. What is loaded stays for the handle's life; the caller of is_loader_run
 * publishes it from within its function, and may read it without a lock when is_loader_run has given OK. */
#ifndef IS_API_LOADER_H
#define IS_API_LOADER_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

typedef struct is_loader {
    pthread_mutex_t lock;    /* of what follows */
    pthread_cond_t changed;
    bool loading, loaded;
    uint64_t n_ended;        /* loads that have ended, well or not */
    is_status status;        /* of the last that failed, with its sentence */
    char why[512];
} is_loader;

void is_loader_init(is_loader *l);
void is_loader_destroy(is_loader *l); /* nobody may be inside */

/* OK if it is loaded, else load(ctx) on this thread, or, where another thread is at it, that one's result. Waits for another
 * thread no longer than wait_ms (0 = as long as it takes): then E_BUSY. What failed is tried again by the next call. */
is_status is_loader_run(is_loader *l, uint32_t wait_ms, is_status (*load)(void *ctx), void *ctx);
bool is_loader_done(is_loader *l); /* it is loaded */

#endif
