/* mock_opts.c - how tests tell the mock to misbehave. */
#include "engine/mock/mock.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"

static const char *const call_names[MOCK_CALLS] = { "tokenize", "capture", "start", "extend", "sample", "feed", "embed" };

static bool word_is(const char *p, size_t n, const char *word)
{
    return strlen(word) == n && memcmp(p, word, n) == 0;
}

/* The value of an option with a file's name; false if it has none, or one that is too long. */
static bool take_name(char *out, size_t size, const char *eq, const char *end)
{
    if (!eq || (size_t)(end - eq) > size) return false;
    memcpy(out, eq + 1, (size_t)(end - eq) - 1);
    out[end - eq - 1] = 0;
    return true;
}

/* One option p[0..n), its value after '=' or 1. */
static is_status set_option(mock_opts *o, const char *p, size_t n)
{
    const char *eq = memchr(p, '=', n);
    size_t len = eq ? (size_t)(eq - p) : n;
    uint32_t value = eq ? (uint32_t)strtoul(eq + 1, NULL, 10) : 1;

    if (word_is(p, len, "noinject")) o->noinject = true;
    else if (word_is(p, len, "nochat")) o->nochat = true;
    else if (word_is(p, len, "lenient")) o->lenient = true;
    else if (word_is(p, len, "garble")) o->garble = true;
    else if (word_is(p, len, "remote")) o->remote = true;
    else if (word_is(p, len, "down")) o->down = true;
    else if (word_is(p, len, "blind")) o->blind = true;
    else if (word_is(p, len, "pending")) o->n_pending = value;
    else if (word_is(p, len, "late-from")) o->late_from = value;
    else if (word_is(p, len, "late") && eq && n - len <= sizeof o->late) {
        memcpy(o->late, eq + 1, n - len - 1);
        o->late[n - len - 1] = 0;
    }
    else if (word_is(p, len, "load")) o->load_ms = value;
    else if (word_is(p, len, "slow")) o->slow_ms = value;
    else if (word_is(p, len, "slow-inject")) o->slow_inject_ms = value;
    else if (word_is(p, len, "witness") && eq && n - len <= sizeof o->witness) {
        memcpy(o->witness, eq + 1, n - len - 1);
        o->witness[n - len - 1] = 0;
    } else if (word_is(p, len, "steps") && eq && n - len <= sizeof o->steps) {
        memcpy(o->steps, eq + 1, n - len - 1);
        o->steps[n - len - 1] = 0;
    }
    else if (word_is(p, len, "text-log") && take_name(o->text_log, sizeof o->text_log, eq, p + n)) return INFERSCALE_OK;
    else if (word_is(p, len, "unsized")) o->unsized = true;
    else if (word_is(p, len, "embed-log") && take_name(o->embed_log, sizeof o->embed_log, eq, p + n)) return INFERSCALE_OK;
    else if (word_is(p, len, "embed-gate") && take_name(o->embed_gate, sizeof o->embed_gate, eq, p + n)) return INFERSCALE_OK;
    else if (word_is(p, len, "ctx")) o->n_ctx = value;
    else if (word_is(p, len, "id")) o->id = value;
    else if (word_is(p, len, "most")) o->most = value;
    else if (word_is(p, len, "dim")) o->dim = value >= 1 && value <= 4096 ? value : 64;
    else if (len > 5 && memcmp(p, "fail-", 5) == 0) {
        for (int i = 0; i < MOCK_CALLS; i++)
            if (word_is(p + 5, len - 5, call_names[i])) {
                o->fail_at[i] = value;
                return INFERSCALE_OK;
            }
        return is_fail(INFERSCALE_E_INVALID, "mock: no call is named '%.*s'; mock.h lists them", (int)len - 5, p + 5);
    } else
        return is_fail(INFERSCALE_E_INVALID, "mock: unknown option '%.*s'; mock.h lists them", (int)len, p);
    return INFERSCALE_OK;
}

static is_status set_options(mock_opts *o, const char *list)
{
    while (list && *list) {
        size_t n = strcspn(list, ",");
        if (n) IS_TRY(set_option(o, list, n));
        list += n + (list[n] == ',');
    }
    return INFERSCALE_OK;
}

is_status mock_opts_parse(const char *path, mock_opts *out)
{
    memset(out, 0, sizeof *out);
    out->dim = 64;
    out->late_from = 1;
    if (path && strncmp(path, "mock:", 5) == 0) IS_TRY(set_options(out, path + 5));
    return set_options(out, getenv("INFERSCALE_MOCK"));
}

is_status mock_call(mock_opts *o, int call)
{
    uint32_t n = __atomic_add_fetch(&o->calls[call], 1, __ATOMIC_RELAXED);

    if (o->fail_at[call] && n == o->fail_at[call])
        return is_fail(INFERSCALE_E_ENGINE, "mock: call %u of %s fails, as asked for; drop fail-%s to go on", n, call_names[call],
                       call_names[call]);
    return INFERSCALE_OK;
}

static bool is_set(const volatile int *flag)
{
    return flag && __atomic_load_n(flag, __ATOMIC_ACQUIRE);
}

static bool all_gone(const is_lane *lanes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!is_set(lanes[i].run->cancel) && !is_set(lanes[i].run->stop)) return false;
    return n > 0;
}

/* Until then, or until a flag is set, or those of all lanes. */
static is_status wait_ms(double ms_to_wait, const volatile int *cancel, const volatile int *stop, const is_lane *lanes, size_t n)
{
    double until = is_now_ms() + ms_to_wait;

    while (!is_set(cancel) && !is_set(stop) && !all_gone(lanes, n) && is_now_ms() < until) {
        struct timespec ms = { 0, 1000000 };
        nanosleep(&ms, NULL);
    }
    if (is_set(cancel) || is_set(stop) || all_gone(lanes, n))
        return is_fail(INFERSCALE_E_CANCELLED, "cancelled by the caller; ask again to go on");
    return INFERSCALE_OK;
}

/* Between two milliseconds the capture may be paused; while it is, it does not get on. */
is_status mock_capture_time(const mock_opts *o, uint32_t n_tokens, const is_capture *c)
{
    const uint32_t n = (n_tokens + MOCK_BATCH - 1) / MOCK_BATCH * (o->slow_ms ? o->slow_ms : 1);
    const struct timespec ms = { 0, 1000000 };

    for (uint32_t i = 0; i < n && !is_set(c->cancel); i++) {
        if (c->pause) c->pause(c->pause_ctx);
        if (o->slow_ms && !is_set(c->cancel)) nanosleep(&ms, NULL);
    }
    return is_set(c->cancel) ? is_fail(INFERSCALE_E_CANCELLED, "cancelled by the caller; ask again to go on") : INFERSCALE_OK;
}

is_status mock_embed_time(const mock_opts *o, const volatile int *cancel, const volatile int *stop)
{
    return wait_ms(o->slow_ms, cancel, stop, NULL, 0);
}

is_status mock_load_time(const mock_opts *o, const volatile int *cancel)
{
    return wait_ms(o->load_ms, cancel, NULL, NULL, 0);
}

is_status mock_step_time(const mock_opts *o, const is_lane *lanes, size_t n)
{
    return wait_ms(o->slow_ms, NULL, NULL, lanes, n);
}

is_status mock_inject_time(const mock_opts *o, const volatile int *cancel, const volatile int *stop)
{
    return wait_ms(o->slow_inject_ms, cancel, stop, NULL, 0);
}
