/* load_events.c - see load_events.h. Lines end with \n or \r\n; comments and other fields than data are skipped, as the HTML standard
 * has it. A piece of text counts as a token's arrival; what a token is the server's usage says. */
#include "eval/load_events.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

enum { LINE_MAX_BYTES = 4 << 20 };

void load_events_reset(load_events *e)
{
    is_buf_clear(&e->line);
    e->line.max = LINE_MAX_BYTES;
    e->done = e->is_counted = false;
    e->last_ms = 0;
}

void load_events_free(load_events *e)
{
    is_buf_free(&e->line);
}

void load_sample_free(load_sample *s)
{
    is_free(s->itl_ms);
    is_buf_free(&s->text);
    json_decref(s->memory);
    memset(s, 0, sizeof *s);
}

static bool add_gap(load_sample *s, double ms)
{
    if (s->n_itl == s->cap_itl) {
        size_t cap = s->cap_itl ? 2 * s->cap_itl : 32;
        double *grown = is_realloc(s->itl_ms, cap * sizeof *grown);

        if (!grown) return false;
        s->itl_ms = grown;
        s->cap_itl = cap;
    }
    s->itl_ms[s->n_itl++] = ms;
    return true;
}

static bool wrong(load_sample *s, const char *why)
{
    snprintf(s->error, sizeof s->error, "%.190s", why);
    return false;
}

static bool take_text(load_events *e, const char *piece, double now_ms, load_sample *s)
{
    if (!piece || !*piece) return true;
    if (s->text.len == 0) s->ttft_ms = now_ms;
    else if (!add_gap(s, now_ms - e->last_ms)) return wrong(s, "out of memory");
    e->last_ms = now_ms;
    is_buf_str(&s->text, piece);
    if (!e->is_counted) s->n_tokens++;
    return is_buf_ok(&s->text) || wrong(s, "out of memory, or the answer is too long");
}

static void take_usage(load_events *e, const json_t *usage, load_sample *s)
{
    const json_t *n = json_object_get(usage, "completion_tokens");

    if (!json_is_integer(n)) return;
    e->is_counted = true;
    s->n_tokens = (uint32_t)json_integer_value(n);
    s->n_prompt = (uint32_t)json_integer_value(json_object_get(usage, "prompt_tokens"));
    s->n_cached = (uint32_t)json_integer_value(
        json_object_get(json_object_get(usage, "prompt_tokens_details"), "cached_tokens"));
}

static bool take_object(load_events *e, json_t *o, double now_ms, load_sample *s)
{
    const json_t *error = json_object_get(o, "error"), *choice = json_array_get(json_object_get(o, "choices"), 0);
    const char *finish = json_string_value(json_object_get(choice, "finish_reason"));
    json_t *memory = json_object_get(o, "memory");

    if (json_is_object(error)) {
        const char *why = json_string_value(json_object_get(error, "message"));

        return wrong(s, why ? why : "the stream ended with an error");
    }
    if (json_is_object(memory)) {
        json_decref(s->memory);
        s->memory = json_incref(memory);
    }
    if (finish) snprintf(s->finish, sizeof s->finish, "%.20s", finish);
    take_usage(e, json_object_get(o, "usage"), s);
    return take_text(e, json_string_value(json_object_get(json_object_get(choice, "delta"), "content")), now_ms, s);
}

static bool take_data(load_events *e, const char *data, size_t n, double now_ms, load_sample *s)
{
    json_t *o;
    bool good;

    if (e->done) return wrong(s, "something came after [DONE]");
    if (n == 6 && memcmp(data, "[DONE]", 6) == 0) return e->done = true;
    o = json_loadb(data, n, JSON_REJECT_DUPLICATES, NULL);
    if (!json_is_object(o)) {
        json_decref(o);
        return wrong(s, "an event holds no JSON object");
    }
    good = take_object(e, o, now_ms, s);
    json_decref(o);
    return good;
}

static bool take_line(load_events *e, const char *line, size_t n, double now_ms, load_sample *s)
{
    if (n && line[n - 1] == '\r') n--;
    if (n < 5 || memcmp(line, "data:", 5) != 0) return true;
    line += 5;
    n -= 5;
    if (n && *line == ' ') line++, n--;
    return take_data(e, line, n, now_ms, s);
}

bool load_events_feed(load_events *e, const char *data, size_t n, double now_ms, load_sample *s)
{
    while (n) {
        const char *end = memchr(data, '\n', n);
        size_t part = end ? (size_t)(end - data) : n;

        is_buf_add(&e->line, data, part);
        if (!is_buf_ok(&e->line)) return wrong(s, "a line of the stream is too long");
        if (!end) return true;
        if (!take_line(e, (const char *)e->line.data, e->line.len, now_ms, s)) return false;
        is_buf_clear(&e->line);
        data = end + 1;
        n -= part + 1;
    }
    return true;
}
