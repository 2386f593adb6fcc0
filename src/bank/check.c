/* check.c - what callers hand in, checked before anything is written. Sentences say which one and what to do. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "bank/sql.h"
#include "base/utf8.h"

const char *bank_given(const char *s)
{
    return s ? s : "";
}

const char *bank_what(const char *what, size_t which, char out[48])
{
    if (which == SIZE_MAX) snprintf(out, 48, "the %s", what);
    else snprintf(out, 48, "%s %zu", what, which + 1);
    return out;
}

is_status bank_check_text(const char *what, size_t which, const char *text)
{
    char who[48];
    size_t n, bad = 0;

    bank_what(what, which, who);
    if (!text) return is_fail(INFERSCALE_E_INVALID, "%s has no text; give it one", who);
    n = strlen(text);
    if (n > BANK_TEXT_MAX)
        return is_fail(INFERSCALE_E_INVALID, "%s has %zu bytes, more than the %d allowed; split it into several", who, n,
                       BANK_TEXT_MAX);
    if (!is_utf8_valid(text, n, &bad))
        return is_fail(INFERSCALE_E_INVALID, "%s is not valid UTF-8 at byte %zu; convert it to UTF-8", who, bad);
    if (is_utf8_blank(text, n)) return is_fail(INFERSCALE_E_INVALID, "%s is blank; give it some text", who);
    return INFERSCALE_OK;
}

is_status bank_check_name(const char *what, size_t which, const char *role, const char *name)
{
    char who[48];
    size_t n, bad = 0;

    if (!name) return INFERSCALE_OK;
    n = strlen(name);
    bank_what(what, which, who);
    if (n > BANK_NAME_MAX)
        return is_fail(INFERSCALE_E_INVALID, "%s: the %s has %zu bytes, more than the %d allowed; use a shorter one", who,
                       role, n, BANK_NAME_MAX);
    if (!is_utf8_valid(name, n, &bad))
        return is_fail(INFERSCALE_E_INVALID, "%s: the %s is not valid UTF-8 at byte %zu; convert it to UTF-8", who, role, bad);
    return INFERSCALE_OK;
}

is_status bank_check_scope(const inferscale_scope *scope)
{
    if (!scope) return is_fail(INFERSCALE_E_INVALID, "no scope given; say whose memory it is (user, agent, run or app)");
    IS_TRY(bank_check_name("scope", SIZE_MAX, "tenant", scope->tenant));
    IS_TRY(bank_check_name("scope", SIZE_MAX, "user", scope->user));
    IS_TRY(bank_check_name("scope", SIZE_MAX, "agent", scope->agent));
    IS_TRY(bank_check_name("scope", SIZE_MAX, "run", scope->run));
    IS_TRY(bank_check_name("scope", SIZE_MAX, "app", scope->app));
    if (!*bank_given(scope->user) && !*bank_given(scope->agent) && !*bank_given(scope->run) && !*bank_given(scope->app))
        return is_fail(INFERSCALE_E_INVALID, "the scope has no owner; give a user, agent, run or app");
    return INFERSCALE_OK;
}

/* SQLite's own JSON functions decide, because they are what reads it later. json_type first: for want of memory it fails, where
 * json_valid may say that the text is no JSON; and what it read json_valid finds again. */
is_status bank_check_metadata(is_bank *b, const char *what, size_t which, const char *metadata)
{
    char who[48];
    bool good, malformed;
    is_status st;
    size_t n;
    sql q;

    if (!metadata || !*metadata) return INFERSCALE_OK;
    bank_what(what, which, who);
    n = strlen(metadata);
    if (n > BANK_TEXT_MAX)
        return is_fail(INFERSCALE_E_INVALID, "%s: the metadata has %zu bytes, more than the %d allowed; store it elsewhere "
                       "and keep a key", who, n, BANK_TEXT_MAX);
    if (!is_utf8_valid(metadata, n, NULL))
        return is_fail(INFERSCALE_E_INVALID, "%s: the metadata is not valid UTF-8; convert it to UTF-8", who);
    q = sql_open(b, "SELECT CASE WHEN json_type(?1) = 'object' THEN json_valid(?1) ELSE 0 END");
    sql_text(&q, metadata);
    good = sql_row(&q) && sqlite3_column_int(q.stmt, 0) != 0;
    malformed = (q.rc & 0xff) == SQLITE_ERROR && strstr(sqlite3_errmsg(b->db), "malformed JSON");
    if (malformed) q.rc = SQLITE_OK;
    st = sql_end(&q);
    if (st != INFERSCALE_OK || good) return st;
    return is_fail(INFERSCALE_E_INVALID, "%s: the metadata is not a JSON object; write it as {\"key\": \"value\"}", who);
}
