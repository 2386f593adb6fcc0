/* memory.c - remember and list: public calls that need no model. Changing and forgetting are in forget.c. */
#include <string.h>

#include "api/background.h"
#include "api/hold.h"
#include "api/room.h"
#include "base/log.h"
#include "base/mem.h"

static is_status find_partition(inferscale *is, const inferscale_scope *scope, bool create, is_partition *p)
{
    IS_TRY(is_handle_check(is));
    if (!scope) return is_fail(INFERSCALE_E_INVALID, "no scope given; say whose memory it is (user, agent, run or app)");
    if (create && is->read_only) return is_room_refuse(is, "remember");
    return is_bank_partition(is->bank, scope, create, p);
}

enum { DATED_WAIT_MS = 1000 };

/* Facts took a date: the rows of their lines without one go. All is stored by now, the text is the
 * same, and the next opening removes what could not be removed, so a failure here is none of
 * remembering. */
static void carry_out_dates(inferscale *is, const is_partition *p, is_names *stale)
{
    size_t n_pending = 0;

    if (is_handle_carry_out(is, p, stale, DATED_WAIT_MS, &n_pending) != INFERSCALE_OK)
        is_log(IS_LOG_WARN, "rows of facts that took a date could not all be removed: %s",
               is_error());
}

is_status inferscale_remember(inferscale *is, const inferscale_scope *scope, const inferscale_fact *facts, size_t n,
                              inferscale_event *events)
{
    is_names stale = { 0 };
    is_partition p;
    bool changed = false;
    is_status st = INFERSCALE_OK;

    if (n && !facts) return is_fail(INFERSCALE_E_INVALID, "facts is NULL; pass an array of n facts");
    IS_TRY(find_partition(is, scope, true, &p));
    IS_TRY(is_background_take(is->background, n));
    if (n) st = is_bank_remember(is->bank, &p, scope, facts, n, events, &changed, &stale);
    is_background_took(is->background, n, st == INFERSCALE_OK);
    if (changed) carry_out_dates(is, &p, &stale);
    return st;
}

is_status inferscale_add_turns(inferscale *is, const inferscale_scope *scope, const inferscale_turn *turns, size_t n, int64_t *ids)
{
    is_partition p;
    is_status st = INFERSCALE_OK;

    if (n && !turns) return is_fail(INFERSCALE_E_INVALID, "turns is NULL; pass an array of n turns");
    IS_TRY(find_partition(is, scope, true, &p));
    IS_TRY(is_background_take(is->background, n));
    if (n) st = is_bank_add_turns(is->bank, &p, scope, turns, n, ids);
    is_background_took(is->background, n, st == INFERSCALE_OK);
    return st;
}

/* Says for each fact of the list whether KV for the current model and policy is in the vault. Only if a model is loaded: listing
 * must not load one. */
static is_status mark_each(inferscale *is, const is_partition *p, inferscale_list *list)
{
    const is_profile *profile = is_handle_profile(is);

    for (size_t i = 0; profile && i < list->n; i++) {
        is_segment_row *rows = NULL;
        size_t n = 0;

        if (list->items[i].kind != INFERSCALE_FACTS) continue;
        IS_TRY(is_bank_segments(is->bank, p, profile->fingerprint, is->policy.name, list->items[i].id, &rows, &n));
        list->items[i].kv_ready = n > 0 && is_vault_has(is->vault, rows[0].name);
        is_free(rows);
    }
    return INFERSCALE_OK;
}

static is_status mark_ready(inferscale *is, const is_partition *p, inferscale_list **list)
{
    is_status st = mark_each(is, p, *list);

    if (st == INFERSCALE_OK) return st;
    inferscale_list_free(*list);
    *list = NULL;
    return st;
}

is_status inferscale_ls(inferscale *is, const inferscale_scope *scope, int kinds, int64_t after_id, size_t limit, inferscale_list **out)
{
    is_partition p;
    is_status st;

    if (!out) return is_fail(INFERSCALE_E_INVALID, "there is no place for the list; pass its address");
    *out = NULL;
    st = find_partition(is, scope, false, &p);
    if (st == INFERSCALE_E_NOTFOUND) {
        *out = is_list_new();
        return *out ? INFERSCALE_OK : is_fail(INFERSCALE_E_NOMEM, "out of memory");
    }
    if (st != INFERSCALE_OK) return st;
    IS_TRY(is_bank_list(is->bank, &p, scope, kinds ? kinds : INFERSCALE_FACTS | INFERSCALE_TURNS, after_id, limit, out));
    return mark_ready(is, &p, out);
}

is_status inferscale_show(inferscale *is, const inferscale_scope *scope, int64_t id, inferscale_list **out)
{
    is_partition p;

    if (!out) return is_fail(INFERSCALE_E_INVALID, "there is no place for the list; pass its address");
    *out = NULL;
    IS_TRY(find_partition(is, scope, false, &p));
    IS_TRY(is_bank_history(is->bank, &p, id, out));
    return mark_ready(is, &p, out);
}

is_status inferscale_whose(inferscale *is, int64_t id, inferscale_owner *out)
{
    if (!out) return is_fail(INFERSCALE_E_INVALID, "there is no place for the owner; pass its address");
    memset(out, 0, sizeof *out);
    IS_TRY(is_handle_check(is));
    return is_bank_whose(is->bank, id, out);
}
