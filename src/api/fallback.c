/* fallback.c - why an answer does less than was asked for: a code for programs, a sentence for people, a line of the log. The log has the
 * whole sentence. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "api/answer.h"
#include "base/log.h"

const char *inferscale_fallback_name(unsigned i)
{
    static const char *const names[INFERSCALE_N_FALLBACKS] = {
        "not_encoded", "no_injection", "damaged", "refused", "computed_after_all", "context_full", "turns_dropped",
        "placement_not_kept", "words_only", "nothing_remembered", "changed_meanwhile", "changed_earlier", "not_embedded",
    };

    return i < INFERSCALE_N_FALLBACKS ? names[i] : NULL;
}

/* ---- What clients are told ----------------------------------------------------------------------------------------------- */

static const char STOPS[] = " \t\r\n\"'`()<>[]{},;";

/* Is this word of a sentence a file's path? "and/or" and "K/V" are not. */
static bool is_path(const char *word, size_t n)
{
    const char *slash = memchr(word, '/', n), *last = memrchr(word, '/', n);

    if (!slash || n < 2) return false;
    return slash != last || *word == '/' || *word == '~' || *word == '.' || memchr(last, '.', n - (size_t)(last - word));
}

static bool is_url(const char *word, size_t n)
{
    return memmem(word, n, "://", 3) != NULL;
}

/* The sentences of failures name files and servers, for whoever runs this; clients are told neither. A path with spaces in it goes up to its
 * last slash; behind that the name of a file may be left, which says nothing of where. */
void is_add_without_places(is_buf *b, const char *text)
{
    bool in_path = false;

    while (*text) {
        size_t gap = strspn(text, STOPS), n = strcspn(text + gap, STOPS);
        const char *word = text + gap;
        const bool url = is_url(word, n), path = !url && (is_path(word, n) || (in_path && gap == 1 && *text == ' ' && memchr(word, '/', n)));
        const size_t end = (url || path) && n && strchr(":.", word[n - 1]) ? 1 : 0; /* the sentence's, not the path's */

        if (!(path && in_path)) is_buf_add(b, text, gap);
        if (url) is_buf_str(b, "(a server)");
        else if (path && !in_path) is_buf_str(b, "(a file)");
        is_buf_add(b, url || path ? word + n - end : word, url || path ? end : n);
        in_path = path && !end;
        text = word + n;
    }
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
    is_add_without_places(&a->why, text);
    a->answer->fallbacks |= fallback;
}
