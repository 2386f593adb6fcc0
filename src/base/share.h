/* share.h - how much of the engine's time work in the background gets while questions are open.
 *
 * A token bucket that is told the time and reads no clock. Its lag is how long the oldest item has waited. Below the limit the work gets
 * nothing while a question is open. From the limit on it gets `least` of the time, and more in proportion to the lag, up to `most`:
 *
 *     share = least * lag / limit, at most `most`
 *
 * Credit grows by share * time while questions are open; working uses it up. A slice begins when there is credit for slice_ms and ends
 * when there is none. No more than one slice is ever saved up. So in any time t with questions open the work gets at most
 * most * t + 2 slices, and what one slice ran too long is paid back before the next. */
#ifndef IS_BASE_SHARE_H
#define IS_BASE_SHARE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct is_share_rules {
    double limit_ms;         /* lag from which on there is a share; < 0 = never */
    double least, most;      /* 0 < least <= most < 1 */
    double slice_ms;
} is_share_rules;

enum { IS_SHARE_LIMIT_MS = 5000, IS_SHARE_SLICE_MS = 20 };
#define IS_SHARE_LEAST 0.10
#define IS_SHARE_MOST 0.50

typedef struct is_share {
    is_share_rules rules;
    double at_ms;            /* accounted up to here */
    bool open, running;      /* a question is open; a slice is running */
    bool waits;              /* something waits, since: */
    double since_ms;
    double credit_ms;
    /* counted */
    double open_ms, used_ms; /* time with questions open; of it, in slices */
    uint64_t slices;         /* that were begun */
} is_share;

void is_share_init(is_share *s, const is_share_rules *rules, double now_ms);
void is_share_questions(is_share *s, double now_ms, bool open); /* the first has come, the last has gone */
void is_share_waits(is_share *s, double now_ms, bool waits, double since_ms);
double is_share_lag(const is_share *s, double now_ms);          /* milliseconds; 0 = nothing waits */
double is_share_now(const is_share *s, double now_ms);          /* the share that this lag gives; 0 = none */
/* A slice begins now, if there is credit for one. */
bool is_share_begin(is_share *s, double now_ms);
bool is_share_go_on(is_share *s, double now_ms);                /* the running slice has credit left */
void is_share_end(is_share *s, double now_ms);
/* So many milliseconds until a slice may begin if nothing changes; < 0 = never. */
double is_share_next(is_share *s, double now_ms);

#endif
