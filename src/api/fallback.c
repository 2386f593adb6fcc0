/* fallback.c - why an answer does less than was asked for: a code for programs, a sentence for people, a line of the log. */
#include <stdarg.h>
#include <stdio.h>

#include "api/answer.h"
#include "base/log.h"

const char *inferscale_fallback_name(unsigned i)
{
    static const char *const names[INFERSCALE_N_FALLBACKS] = {
        "not_encoded", "no_injection", "damaged", "refused", "computed_after_all", "context_full", "turns_dropped",
        "placement_not_kept", "words_only", "nothing_remembered", "changed_meanwhile", "changed_earlier",
    };

    return i < INFERSCALE_N_FALLBACKS ? names[i] : NULL;
}

void is_asking_note(is_asking *a, unsigned fallback, const char *fmt, ...)
{
    char text[512];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    is_log(IS_LOG_WARN, "fallback: %s", text);
    if (a->why.len) is_buf_str(&a->why, "; ");
    is_buf_str(&a->why, text);
    a->answer->fallbacks |= fallback;
}
