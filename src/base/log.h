/* log.h - log lines go to a function of the application's choice; the library never prints. No prompt or fact text in them. */
#ifndef IS_BASE_LOG_H
#define IS_BASE_LOG_H

#include "inferscale.h"

enum { IS_LOG_ERROR = 0, IS_LOG_WARN = 1, IS_LOG_INFO = 2, IS_LOG_DEBUG = 3 };

void is_log_set(inferscale_log_fn fn, void *ctx); /* process-wide; NULL = silent */
void is_log(int level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
