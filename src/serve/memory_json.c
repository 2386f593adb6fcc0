/* memory_json.c - a fact as Mem0 writes it. role, actor_id and immutable are kept in its metadata and come back beside it, as there. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/time.h"
#include "base/utf8.h"
#include "serve/memory.h"

enum { DAY = 86400 };

static const char *const promoted[] = { "role", "actor_id", "immutable" };

bool is_memory_id(const char *s, int64_t *id)
{
    int64_t v = 0;

    *id = 0;
    if (!s || !*s || *s == '0' || strlen(s) > 18) return false;
    for (; *s; s++) {
        if (*s < '0' || *s > '9') return false;
        v = v * 10 + (*s - '0');
    }
    *id = v;
    return true;
}

bool is_threshold_read(const json_t *v, double *out)
{
    *out = json_number_value(v);
    return json_is_number(v) && *out >= 0 && *out <= 1;
}

/* Six decimals: what is beyond them says nothing, and depends on how it is printed. */
static double rounded(double v) { return round(v * 1e6) / 1e6; }

static json_t *date(int64_t t)
{
    char text[32];

    if (!is_time_given(t)) return json_null();
    is_date_iso(t, text);
    return json_string(text);
}

/* Mem0's expiration_date is the last day that counts. */
static json_t *last_day(int64_t expires)
{
    char text[32];

    if (is_time_seconds(expires) % DAY) return date(expires);
    is_date_iso(is_time_of(is_time_seconds(expires) - DAY), text);
    text[strcspn(text, "T")] = '\0';
    return json_string(text);
}

/* Mem0 has MD5 here. Nobody can want that of us: a name of the text, as long as that. */
static void set_hash(json_t *o, const char *text)
{
    uint8_t hash[IS_HASH_BYTES];
    char hex[33];

    is_hash_once(NULL, text, strlen(text), hash);
    is_hex(hash, 16, hex);
    json_object_set_new(o, "hash", json_string(hex));
}

static void set_name(json_t *o, const char *name, const char *value)
{
    if (value && *value) json_object_set_new(o, name, json_string(value));
}

static void set_metadata(json_t *o, const char *text)
{
    json_t *m = json_loads(text && *text ? text : "{}", 0, NULL);

    if (!json_is_object(m)) {
        json_decref(m);
        m = json_object();
    }
    for (size_t i = 0; i < sizeof promoted / sizeof *promoted; i++) {
        json_t *v = json_object_get(m, promoted[i]);

        if (!v) continue;
        json_object_set(o, promoted[i], v);
        json_object_del(m, promoted[i]);
    }
    json_object_set_new(o, "metadata", m);
}

json_t *is_memory_json(const inferscale_item *t, unsigned with)
{
    char id[24];
    json_t *o = json_object();

    snprintf(id, sizeof id, "%lld", (long long)t->id);
    json_object_set_new(o, "id", json_string(id));
    json_object_set_new(o, "memory", json_string(t->text));
    set_hash(o, t->text);
    set_metadata(o, t->metadata);
    if (with & IS_MEMORY_SCORE) json_object_set_new(o, "score", json_real(rounded(t->score)));
    if (with & IS_MEMORY_EXPLAIN)
        json_object_set_new(o, "score_details", json_pack("{s:f,s:f,s:f}", "fused", rounded(t->score_fused), "words", rounded(t->score_lexical),
                                                          "cosine", rounded(t->score_dense)));
    json_object_set_new(o, "created_at", date(t->event_time));
    json_object_set_new(o, "dated", json_boolean(t->dated));
    json_object_set_new(o, "updated_at", date(t->write_time));
    if (t->expires) json_object_set_new(o, "expiration_date", last_day(t->expires));
    if (t->superseded_by) {
        snprintf(id, sizeof id, "%lld", (long long)t->superseded_by);
        json_object_set_new(o, "superseded_by", json_string(id));
    }
    if (t->pinned) json_object_set_new(o, "pinned", json_true());
    json_object_set_new(o, "version", json_integer(t->version));
    set_name(o, "user_id", t->user);
    set_name(o, "agent_id", t->agent);
    set_name(o, "run_id", t->run);
    set_name(o, "app_id", t->app);
    return o;
}

json_t *is_memory_history_json(const inferscale_list *l)
{
    json_t *all = json_array();

    for (size_t i = 0; i < l->n; i++) {
        const inferscale_item *t = &l->items[i];
        json_t *o = is_memory_json(t, 0), *memory_id = json_incref(json_object_get(o, "id"));
        char id[40];

        snprintf(id, sizeof id, "%lld.%d", (long long)t->id, t->version);
        json_object_set_new(o, "id", json_string(id));
        json_object_set_new(o, "memory_id", memory_id);
        json_object_del(o, "memory");
        json_object_set_new(o, "old_memory", i ? json_string(l->items[i - 1].text) : json_null());
        json_object_set_new(o, "new_memory", json_string(t->text));
        json_object_set_new(o, "event", json_string(i ? "UPDATE" : "ADD"));
        json_object_set_new(o, "is_deleted", json_false());
        json_object_set_new(o, "valid_from", date(t->valid_from));
        json_object_set_new(o, "valid_to", date(t->valid_to));
        json_array_append_new(all, o);
    }
    return all;
}
