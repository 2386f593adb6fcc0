/* chat_pieces.c - cutting a rendered conversation at what is said in it. */
#include "engine/chat_pieces.h"

#include <string.h>

#include "base/mem.h"

/* Text between two marks of s; from/to NULL = its start/end. is_free; NULL if a mark is missing, or, with *full set, without memory. */
static char *between(const char *s, const char *from, const char *to, bool *full)
{
    char *out;
    const char *a = from ? strstr(s, from) : s, *b;

    if (!a) return NULL;
    if (from) a += strlen(from);
    b = to ? strstr(a, to) : a + strlen(a);
    if (!b) return NULL;
    out = is_strndup(a, (size_t)(b - a));
    *full = *full || !out;
    return out;
}

static bool ends_with(const char *s, const char *tail)
{
    size_t n = strlen(s), m = strlen(tail);

    return n >= m && strcmp(s + n - m, tail) == 0;
}

/* How many bytes at the ends of a and b are the opener of a user turn: `want`, or the longest they share. */
static size_t shared_tail(const char *a, const char *b, const char *want)
{
    size_t n = strlen(a), m = strlen(b), k = 0;

    if (want && *want && ends_with(a, want) && ends_with(b, want)) return strlen(want);
    while (k < n && k < m && a[n - 1 - k] == b[m - 1 - k]) k++;
    while (k > 0 && ((unsigned char)a[n - k] & 0xc0) == 0x80) k--; /* not inside a character */
    return k;
}

static void strip(char *s, const char *bos)
{
    size_t n = s && bos ? strlen(bos) : 0;

    if (n && strncmp(s, bos, n) == 0) memmove(s, s + n, strlen(s + n) + 1);
}

static bool complete(const is_chat_format *f)
{
    return f->system_open && f->system_close && f->user_open && f->user_close && f->assistant_open && f->assistant_close;
}

void is_chat_format_free(is_chat_format *f)
{
    is_free(f->system_open);
    is_free(f->system_close);
    is_free(f->user_open);
    is_free(f->user_close);
    is_free(f->assistant_open);
    is_free(f->assistant_close);
    memset(f, 0, sizeof *f);
}

is_status is_chat_cut(const is_chat_marks *m, const char *whole, const char *alone, const char *bos, is_chat_format *f, bool *found)
{
    bool full = false, cut = false;
    const bool system = strstr(whole, m->system) != NULL;
    char *open = alone ? between(alone, NULL, m->user, &full) : NULL, *close = alone ? between(alone, m->user, NULL, &full) : NULL;
    char *before_user = system ? between(whole, m->system, m->user, &full) : is_strdup("\n\n");
    char *before_second = between(whole, m->assistant, m->second, &full), *joint = between(whole, m->second, NULL, &full);

    f->system_open = between(whole, NULL, system ? m->system : m->user, &full);
    full = full || (!system && !before_user);
    strip(open, bos);
    strip(f->system_open, bos);
    cut = f->system_open && before_user && before_second && joint;
    if (cut) {
        size_t k = system ? shared_tail(before_user, before_second, open) : 0;
        size_t n = close && strncmp(joint, close, strlen(close)) == 0 ? strlen(close) : 0;

        f->system_close = is_strndup(before_user, strlen(before_user) - k);
        f->user_open = is_strdup(before_user + strlen(before_user) - k);
        f->assistant_close = is_strndup(before_second, strlen(before_second) - k);
        f->user_close = is_strndup(joint, n);
        f->assistant_open = is_strdup(joint + n);
    }
    is_free(open);
    is_free(close);
    is_free(before_user);
    is_free(before_second);
    is_free(joint);
    *found = complete(f);
    if (!full && (!cut || *found)) return INFERSCALE_OK;
    return is_fail(INFERSCALE_E_NOMEM, "out of memory for the chat format; free some and try again");
}

is_status is_chat_plain(is_chat_format *f)
{
    *f = (is_chat_format){ .system_open = is_strdup(""), .system_close = is_strdup("\n\n"), .user_open = is_strdup("User: "),
                           .user_close = is_strdup("\n"), .assistant_open = is_strdup("Assistant:"), .assistant_close = is_strdup("\n") };
    return complete(f) ? INFERSCALE_OK : is_fail(INFERSCALE_E_NOMEM, "out of memory for the chat format");
}
