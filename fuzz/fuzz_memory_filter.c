/* fuzz_memory_filter.c - Mem0's filters: any JSON is a filter that holds only what can be honoured, or one sentence. */
#include <jansson.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exchange/json.h"
#include "serve/memory.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(int holds, const char *what)
{
    if (holds) return;
    fprintf(stderr, "does not hold: %s\n", what);
    abort();
}

static void check_filter(const is_filter *f)
{
    static const char *const owners[] = { "user_id", "agent_id", "run_id", "app_id" };
    const char *name;
    json_t *v;

    check(!f->from || !f->to || is_time_seconds(f->from) <= is_time_seconds(f->to), "a range is no empty one");
    json_object_foreach(f->names, name, v)
    {
        int known = 0;

        for (size_t i = 0; i < 4; i++) known |= !strcmp(owners[i], name);
        check(known && json_is_string(v), "names are of owners, and strings");
    }
    json_object_foreach(f->metadata, name, v)
    {
        check(json_is_string(v) || json_is_number(v) || json_is_boolean(v), "metadata is compared with scalars");
        check(strcmp(name, "OR") && strcmp(name, "NOT") && strcmp(name, "AND"), "no operator is taken for a member");
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    json_t *o = json_loadb((const char *)data, size, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, NULL);
    is_filter f;
    is_when when;
    is_status st;

    if (!o) return 0;
    is_error_clear();
    st = is_filter_parse(o, &f);
    if (st == INFERSCALE_OK) check_filter(&f);
    else check(st == INFERSCALE_E_INVALID && *is_error() && !f.names && !f.metadata, "a refusal has its sentence and leaves nothing");
    if (st == INFERSCALE_OK) is_filter_free(&f);
    if (is_json_when(o, "it", &when) == INFERSCALE_OK) check(is_time_given(when.t) && is_time_sound(when.t), "a time has a date");
    json_decref(o);
    return 0;
}
