/* fallback.c - why an answer does less than was asked for: a code for programs, a sentence for people, a line of the log. The log has the
 * whole sentence. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "api/answer.h"
#include "api/store_codec.h"
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

/* ---- What was computed, and what was left out ---------------------------------------------------------------------------- */

static const char *of_stage(const is_asking *a)
{
    return a->o.stage == INFERSCALE_STAGE_FIRST    ? " of the first stage, as asked,"
           : a->o.stage == INFERSCALE_STAGE_REFINE ? " of the second stage, as asked,"
                                                   : "";
}

static const char *how_to_encode(const is_asking *a)
{
    if (a->o.stage == INFERSCALE_STAGE_REFINE && !a->is->has_refine) return "the second stage is off; ask for no stage, or turn it on";
    if (a->is->background) return "they are being encoded in the background";
    return a->o.stage == INFERSCALE_STAGE_REFINE ? "refine them to inject them" : "encode them to inject them";
}

/* Facts that were computed, and have rows in another codec: encoding rounds these, or makes new ones. "" = there are none. */
static void in_another_codec(is_asking *a, char *out, size_t size)
{
    const inferscale_answer *ans = a->answer;
    const is_codec own = is_handle_profile(a->is)->codec;
    size_t n = 0;
    is_codec codec = own;

    out[0] = '\0';
    for (size_t i = 0; i < ans->n_facts; i++)
        n += ans->facts[i].source == INFERSCALE_SOURCE_COMPUTED &&
             is_handle_other_codec(a->is, &a->p, ans->facts[i].id, &codec);
    if (n)
        snprintf(out, size, "; %zu of them have it in %s, and the store is to hold %s", n, is_codec_name(codec),
                 is_codec_name(own));
}

/* Facts of the plan that are computed though they were to be injected, and facts that did not fit. */
void is_asking_shortfalls(is_asking *a, const is_planned *planned)
{
    inferscale_answer *ans = a->answer;
    size_t n_computed = 0;
    char other[96];

    for (size_t i = 0; i < ans->n_facts; i++) n_computed += ans->facts[i].source == INFERSCALE_SOURCE_COMPUTED;
    for (size_t i = 0; i < a->o.repair && i < ans->n_facts && n_computed; i++) {
        const inferscale_used *best = &ans->facts[ans->n_facts - 1 - i]; /* repaired ones stand last, and were asked for */

        n_computed -= best->source == INFERSCALE_SOURCE_COMPUTED;
    }
    if (ans->mode == INFERSCALE_MODE_KV && n_computed) {
        in_another_codec(a, other, sizeof other);
        is_asking_note(a, INFERSCALE_FALLBACK_NOT_ENCODED,
                       "%zu of %zu facts had no KV%s and were computed as text%s; %s", n_computed, ans->n_facts,
                       of_stage(a), other, how_to_encode(a));
    }
    ans->n_dropped = is_planned_dropped(planned);
    if (ans->n_dropped)
        is_asking_note(a, INFERSCALE_FALLBACK_CONTEXT_FULL, "%zu facts were left out: the context of %u tokens is full", ans->n_dropped,
                       is_engine_describe(a->is->engine)->n_ctx);
}
