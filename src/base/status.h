/* status.h - how a function says that it failed: a status code, and one sentence kept per thread.
 *
 * The codes are the public ones (inferscale.h). The sentence names the cause and the next step a person can take. Engine
 * plug-ins carry their own copy of this room; is_error_set_sink() lets their sentences reach the host's thread. */
#ifndef IS_BASE_STATUS_H
#define IS_BASE_STATUS_H

#include "inferscale.h"

typedef inferscale_status is_status;

/* Records the sentence for this thread and returns status, so that failing is one line: return is_fail(...). The text is cut at
 * 1,023 bytes. errno is kept. */
is_status is_fail(is_status status, const char *fmt, ...) __attribute__((format(printf, 2, 3), cold));

/* As is_fail, with the meaning of errno added and the status chosen from it (ENOSPC/EDQUOT/EFBIG -> E_FULL, EROFS -> E_READONLY,
 * EACCES/EPERM -> E_DENIED, ENOENT -> E_NOTFOUND, ENOMEM -> E_NOMEM, else E_IO). */
is_status is_fail_errno(const char *fmt, ...) __attribute__((format(printf, 1, 2), cold));

/* This thread's last sentence; "" if none. */
const char *is_error(void);
void is_error_clear(void);

/* All sentences of this copy of the room go to sink as well (NULL = none). Set once, before threads start. */
typedef void (*is_error_sink)(is_status status, const char *sentence);
void is_error_set_sink(is_error_sink sink);

/* Evaluate expr; if it is not OK return it from the calling function. */
#define IS_TRY(expr)                                                                                                           \
    do {                                                                                                                       \
        is_status is_try_ = (expr);                                                                                            \
        if (is_try_ != INFERSCALE_OK) return is_try_;                                                                          \
    } while (0)

/* Likewise, but set `st` (a local) and go to `label` for clean-up. */
#define IS_TRY_GOTO(st, label, expr)                                                                                           \
    do {                                                                                                                       \
        (st) = (expr);                                                                                                         \
        if ((st) != INFERSCALE_OK) goto label;                                                                                 \
    } while (0)

#endif
