/* status.c - the sentence of the last failure, one a thread. */
#include "base/status.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

enum { SENTENCE_MAX = 1024 };

static _Thread_local char sentence[SENTENCE_MAX];
static is_error_sink error_sink;

/* The arguments may point into the sentence itself (wrapping an earlier failure), so the text is made aside and then copied. */
static void record(is_status status, const char *fmt, va_list ap, const char *tail)
{
    char made[SENTENCE_MAX];
    int n = vsnprintf(made, sizeof made, fmt, ap);
    size_t len = n < 0 ? 0 : (size_t)n < sizeof made ? (size_t)n : sizeof made - 1;

    if (tail && len + 1 < sizeof made) {
        n = snprintf(made + len, sizeof made - len, "%s", tail);
        len += n < 0 ? 0 : (size_t)n < sizeof made - len ? (size_t)n : sizeof made - len - 1;
    }
    made[is_utf8_whole(made, len)] = 0;
    memcpy(sentence, made, sizeof made);
    if (error_sink) error_sink(status, sentence);
}

is_status is_fail(is_status status, const char *fmt, ...)
{
    int kept = errno;
    va_list ap;

    va_start(ap, fmt);
    record(status, fmt, ap, NULL);
    va_end(ap);
    errno = kept;
    return status;
}

/* The status that an errno stands for, and what a person can do about it. */
static is_status of_errno(int e, const char **step)
{
    switch (e) {
    case ENOSPC: *step = "free some space there and try again"; return INFERSCALE_E_FULL;
    case EDQUOT: *step = "free some space in your quota and try again"; return INFERSCALE_E_FULL;
    case EFBIG: *step = "raise the file size limit (ulimit -f) and try again"; return INFERSCALE_E_FULL;
    case EROFS: *step = "use a folder on a writable filesystem"; return INFERSCALE_E_READONLY;
    case EACCES:
    case EPERM: *step = "check who owns it and its mode"; return INFERSCALE_E_DENIED;
    case ENOENT: *step = "check the path"; return INFERSCALE_E_NOTFOUND;
    case ENOMEM: *step = "free some memory and try again"; return INFERSCALE_E_NOMEM;
    case EMFILE:
    case ENFILE: *step = "raise the limit on open files (ulimit -n)"; return INFERSCALE_E_IO;
    case ENOTDIR:
    case EISDIR:
    case ELOOP:
    case ENAMETOOLONG: *step = "check the path"; return INFERSCALE_E_IO;
    default: *step = "check the disk (dmesg) and try again"; return INFERSCALE_E_IO;
    }
}

is_status is_fail_errno(const char *fmt, ...)
{
    int kept = errno;
    char reason[128], tail[256];
    const char *step;
    is_status status = of_errno(kept, &step);
    va_list ap;

    /* GNU strerror_r: thread safe, returns the text, which may or may not be in the buffer. */
    snprintf(tail, sizeof tail, ": %s; %s", strerror_r(kept, reason, sizeof reason), step);
    va_start(ap, fmt);
    record(status, fmt, ap, tail);
    va_end(ap);
    errno = kept;
    return status;
}

const char *is_error(void)
{
    return sentence;
}

void is_error_clear(void)
{
    sentence[0] = 0;
}

void is_error_set_sink(is_error_sink sink)
{
    error_sink = sink;
}
