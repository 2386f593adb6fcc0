/* export.c - an owner's memory as JSON Lines, so that import brings it back: turns first, facts refer to them. */
#include "exchange/export.h"

#include <stdbool.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/status.h"
#include "exchange/json.h"

enum { PAGE = 500 };

/* One line; steals o. */
static bool write_line(is_export *x, json_t *o)
{
    char *line = is_json_string(o);
    size_t n = line ? strlen(line) : 0;
    bool ok = line != NULL;
    if (ok) {
        line[n] = '\n'; /* in the place of its end */
        ok = x->write(x->ctx, line, n + 1) == 0;
    }
    is_free(line);
    json_decref(o);
    return ok;
}

/* Is the fact's source turn one that is left out? */
static bool lost_its_source(is_export *x, const inferscale_item *t)
{
    inferscale_list *turn = NULL;
    bool lost;
    if (!x->withdrawn || !t->source_turn) return false;
    lost = inferscale_show(x->is, x->scope, t->source_turn, &turn) == INFERSCALE_OK && turn->n && turn->items[0].withdrawn;
    inferscale_list_free(turn);
    return lost;
}

/* The item's members under the names that import reads. */
static json_t *line_of(is_export *x, const inferscale_item *t)
{
    static const char *const not_read[] = { "kind", "expired", "superseded_by" };
    json_t *o = is_item_json(t, 0), *v;
    const char *name;
    void *next;
    json_object_set_new(o, "type", json_string(t->kind == INFERSCALE_FACTS ? "fact" : "turn"));
    for (size_t i = 0; i < sizeof not_read / sizeof *not_read; i++) json_object_del(o, not_read[i]);
    if (lost_its_source(x, t)) json_object_del(o, "source_turn");
    if (!t->pinned) json_object_del(o, "pinned");
    json_object_foreach_safe(o, next, name, v)
    {
        if (json_is_null(v) || (json_is_object(v) && json_object_size(v) == 0)) json_object_del(o, name);
    }
    return o;
}

/* All items of one kind, page by page. */
static inferscale_status write_kind(is_export *x, int kind, bool *written)
{
    int64_t after = 0;
    for (;;) {
        inferscale_list *list = NULL;
        inferscale_status st = inferscale_ls(x->is, x->scope, kind, after, PAGE, &list);
        size_t n = st == INFERSCALE_OK ? list->n : 0;
        for (size_t i = 0; i < n && *written; i++) {
            after = list->items[i].id;
            if (list->items[i].withdrawn) {
                x->withdrawn++;
                continue;
            }
            *written = write_line(x, line_of(x, &list->items[i]));
            if (kind == INFERSCALE_FACTS) x->facts++;
            else x->turns++;
        }
        inferscale_list_free(list);
        if (st != INFERSCALE_OK || n < PAGE || !*written) return st;
    }
}

inferscale_status is_export_run(is_export *x)
{
    json_t *head = json_pack("{s:s,s:i,s:s,s:o}", "type", "inferscale", "format", 1, "generator", "inferscale " INFERSCALE_VERSION,
                             "exported", is_json_time(is_now_epoch()));
    bool written = write_line(x, head);
    IS_TRY(written ? write_kind(x, INFERSCALE_TURNS, &written) : INFERSCALE_OK);
    if (written) IS_TRY(write_kind(x, INFERSCALE_FACTS, &written));
    x->cut = !written;
    return INFERSCALE_OK;
}
