/* share.c - see share.h. */
#include "base/share.h"

#include <string.h>

void is_share_init(is_share *s, const is_share_rules *rules, double now_ms)
{
    memset(s, 0, sizeof *s);
    s->rules = *rules;
    s->at_ms = now_ms;
}

double is_share_lag(const is_share *s, double now_ms)
{
    return s->waits && now_ms > s->since_ms ? now_ms - s->since_ms : 0;
}

static double share_at(const is_share *s, double lag_ms)
{
    const double limit = s->rules.limit_ms, share = limit > 0 ? s->rules.least * lag_ms / limit : s->rules.most;

    return share < s->rules.most ? share : s->rules.most;
}

double is_share_now(const is_share *s, double now_ms)
{
    const double lag = is_share_lag(s, now_ms);

    if (!s->waits || s->rules.limit_ms < 0 || lag + 1e-3 < s->rules.limit_ms) return 0; /* a sum of times is not exact */
    return share_at(s, lag);
}

/* Accounts the time up to now. Only the part of it with the lag beyond the limit earns credit. */
static void tell(is_share *s, double now_ms)
{
    double dt = now_ms - s->at_ms, earning = dt;

    if (dt <= 0) return;
    s->at_ms = now_ms;
    if (!s->open) return;
    s->open_ms += dt;
    if (s->running) {
        s->used_ms += dt;
        s->credit_ms -= dt;
    }
    if (s->waits && now_ms - s->since_ms - s->rules.limit_ms < earning) earning = now_ms - s->since_ms - s->rules.limit_ms;
    if (earning > 0) s->credit_ms += is_share_now(s, now_ms) * earning;
    if (s->credit_ms > s->rules.slice_ms) s->credit_ms = s->rules.slice_ms;
}

void is_share_questions(is_share *s, double now_ms, bool open)
{
    tell(s, now_ms);
    s->open = open;
}

void is_share_waits(is_share *s, double now_ms, bool waits, double since_ms)
{
    tell(s, now_ms);
    s->waits = waits;
    s->since_ms = since_ms;
}

bool is_share_begin(is_share *s, double now_ms)
{
    tell(s, now_ms);
    if (s->running || is_share_now(s, now_ms) <= 0 || s->credit_ms < s->rules.slice_ms) return false;
    s->running = true;
    s->slices++;
    return true;
}

bool is_share_go_on(is_share *s, double now_ms)
{
    tell(s, now_ms);
    return s->running && s->credit_ms > 0;
}

void is_share_end(is_share *s, double now_ms)
{
    tell(s, now_ms);
    s->running = false;
}

double is_share_next(is_share *s, double now_ms)
{
    const double limit = s->rules.limit_ms;
    double lag, wait;

    tell(s, now_ms);
    if (!s->waits || limit < 0 || !s->open) return -1;
    lag = is_share_lag(s, now_ms);
    wait = lag < limit ? limit - lag : 0;
    if (s->credit_ms < s->rules.slice_ms) wait += (s->rules.slice_ms - s->credit_ms) / share_at(s, lag + wait);
    return wait;
}
