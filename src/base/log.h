/* log.h - log lines go to a function of the application's choice; the library never prints. No
 * prompt or fact text in them.
 *
 * Each handle has a logger. A thread's lines go to that of the handle which it works for: public
 * calls say so when they begin, and so do the threads of a handle. A thread that has not said
 * so, or whose handle is closed, speaks to the newest logger that has a function; a plug-in's
 * own threads do. */
#ifndef IS_BASE_LOG_H
#define IS_BASE_LOG_H

#include <stdint.h>

#include "inferscale.h"

enum { IS_LOG_ERROR = 0, IS_LOG_WARN = 1, IS_LOG_INFO = 2, IS_LOG_DEBUG = 3 };

/* In the handle's memory, and in the list of them while the handle is open. */
typedef struct is_logger {
    struct is_logger *next;
    uint64_t id;             /* never 0, and never used again */
    inferscale_log_fn fn;    /* NULL = silent */
    void *ctx;
} is_logger;

void is_logger_add(is_logger *l, inferscale_log_fn fn, void *ctx);
void is_logger_drop(is_logger *l);      /* one that was not added is allowed */
/* This thread's lines go there from now on. 0 = as if it had never said so. */
void is_log_for(uint64_t id);
uint64_t is_log_here(void);             /* what it said last */

/* Where there is no logger with a function: in plug-ins and tests. NULL = silent. */
void is_log_set(inferscale_log_fn fn, void *ctx);
void is_log(int level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
