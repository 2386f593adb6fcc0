/* jsonl.c - strict parser of the JSON Lines form of memory. What is not understood is refused, never dropped in silence. */
#include "exchange/jsonl.h"

#include <errno.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "exchange/json.h"

/* ---- Members ------------------------------------------------------------------------------------------------------------- */

enum { IN_FACT = 1, IN_TURN = 2, IN_HEAD = 4, IN_ITEM = IN_FACT | IN_TURN };

typedef enum member_type { M_TEXT, M_ID, M_TIME, M_BOOL, M_OBJECT, M_ANY } member_type;

/* offset: where the value goes in the record; NOWHERE = checked, then left out (it describes the store it came from). */
#define NOWHERE ((size_t)-1)
#define AT(field) offsetof(jsonl_record, field)

static const struct member { const char *name; unsigned in; member_type type; size_t offset; } members[] = {
    { "type", IN_ITEM | IN_HEAD, M_TEXT, NOWHERE },
    { "text", IN_ITEM, M_TEXT, AT(text) },
    { "id", IN_ITEM, M_ID, AT(id) },
    { "event_time", IN_FACT, M_TIME, AT(event_time) },
    { "dated", IN_ITEM, M_BOOL, NOWHERE },
    { "pinned", IN_FACT, M_BOOL, AT(pinned) },
    { "valid_from", IN_FACT, M_TIME, AT(valid_from) },
    { "valid_to", IN_FACT, M_TIME, AT(valid_to) },
    { "expires", IN_FACT, M_TIME, AT(expires) },
    { "source_turn", IN_FACT, M_ID, AT(source_turn) },
    { "metadata", IN_FACT, M_OBJECT, NOWHERE },
    { "conversation", IN_TURN, M_TEXT, AT(conversation) },
    { "speaker", IN_TURN, M_TEXT, AT(speaker) },
    { "external_id", IN_TURN, M_TEXT, AT(external_id) },
    { "time", IN_TURN, M_TIME, AT(time) },
    { "user", IN_ITEM, M_TEXT, AT(user) },
    { "agent", IN_ITEM, M_TEXT, AT(agent) },
    { "run", IN_ITEM, M_TEXT, AT(run) },
    { "app", IN_ITEM, M_TEXT, AT(app) },
    { "version", IN_ITEM, M_ID, NOWHERE },
    { "write_time", IN_ITEM, M_TIME, NOWHERE },
    { "format", IN_HEAD, M_ID, NOWHERE },
    { "facts", IN_HEAD, M_ANY, NOWHERE },
    { "turns", IN_HEAD, M_ANY, NOWHERE },
    { "exported", IN_HEAD, M_TIME, NOWHERE },
    { "generator", IN_HEAD, M_TEXT, NOWHERE },
};

static is_status set_member(jsonl_record *r, const struct member *m, json_t *v)
{
    int64_t number = 0;
    is_when when;
    char *field = m->offset == NOWHERE ? NULL : (char *)r + m->offset;
    switch (m->type) {
    case M_TEXT:
        if (!json_is_string(v)) return is_fail(INFERSCALE_E_PARSE, "line %zu: \"%s\" must be a string", r->line, m->name);
        if (field) *(const char **)(void *)field = json_string_value(v);
        return INFERSCALE_OK;
    case M_BOOL:
        if (!json_is_boolean(v)) return is_fail(INFERSCALE_E_PARSE, "line %zu: \"%s\" must be true or false", r->line, m->name);
        if (field) *(bool *)(void *)field = json_is_true(v);
        return INFERSCALE_OK;
    case M_OBJECT:
        if (!json_is_object(v)) return is_fail(INFERSCALE_E_PARSE, "line %zu: \"%s\" must be an object", r->line, m->name);
        return INFERSCALE_OK;
    case M_ID:
        if (!json_is_integer(v) || json_integer_value(v) <= 0)
            return is_fail(INFERSCALE_E_PARSE, "line %zu: \"%s\" must be a whole number above 0", r->line, m->name);
        number = json_integer_value(v);
        break;
    case M_TIME:
        if (is_json_when(v, m->name, &when) != INFERSCALE_OK)
            return is_fail(INFERSCALE_E_PARSE, "line %zu: %s", r->line, is_error());
        number = when.t;
        break;
    case M_ANY:
        break;
    }
    if (field) *(int64_t *)(void *)field = number;
    return INFERSCALE_OK;
}

static is_status set_kind(jsonl_record *r)
{
    json_t *type = json_object_get(r->root, "type");
    const char *s = json_string_value(type);
    if (!type || (s && strcmp(s, "fact") == 0))
        r->kind = JSONL_FACT;
    else if (s && strcmp(s, "turn") == 0)
        r->kind = JSONL_TURN;
    else if (s && strcmp(s, "inferscale") == 0)
        r->kind = JSONL_HEAD;
    else
        return is_fail(INFERSCALE_E_PARSE, "line %zu: \"type\" must be \"fact\" or \"turn\"", r->line);
    return INFERSCALE_OK;
}

static is_status set_members(jsonl_record *r)
{
    static const char *const kinds[] = { "fact", "turn", "head line" };
    const char *name;
    json_t *v;
    json_object_foreach(r->root, name, v)
    {
        const struct member *m = NULL;
        for (size_t i = 0; i < sizeof members / sizeof *members && !m; i++)
            if (strcmp(members[i].name, name) == 0 && (members[i].in & (1u << r->kind))) m = &members[i];
        if (!m)
            return is_fail(INFERSCALE_E_PARSE,
                           "line %zu: a %s has no member \"%.60s\"; put your own data under \"metadata\" of a fact", r->line,
                           kinds[r->kind], name);
        if (!json_is_null(v)) IS_TRY(set_member(r, m, v));
    }
    return INFERSCALE_OK;
}

/* "dated" says it. A line without it, written before there was one, gives away a time that is that of its writing. */
static bool is_undated(const jsonl_record *r)
{
    const json_t *dated = json_object_get(r->root, "dated"), *written = json_object_get(r->root, "write_time");
    const int64_t t = r->kind == JSONL_FACT ? r->event_time : r->time;
    is_when when;

    if (json_is_boolean(dated)) return json_is_false(dated);
    if (!written || json_is_null(written) || is_json_when(written, "write_time", &when) != INFERSCALE_OK) return false;
    return t == when.t;
}

static is_status finish_record(jsonl_record *r)
{
    json_t *metadata = json_object_get(r->root, "metadata");
    if (r->kind == JSONL_HEAD) {
        json_int_t format = json_integer_value(json_object_get(r->root, "format"));
        if (format != 1)
            return is_fail(INFERSCALE_E_PARSE, "line %zu: this file has format %lld, known is 1; install a newer inferscale",
                           r->line, (long long)format);
        return INFERSCALE_OK;
    }
    r->undated = is_undated(r);
    if (!r->text) return is_fail(INFERSCALE_E_PARSE, "line %zu: \"text\" is missing", r->line);
    if (is_utf8_blank(r->text, strlen(r->text))) return is_fail(INFERSCALE_E_PARSE, "line %zu: \"text\" is blank", r->line);
    if (json_is_object(metadata)) {
        /* Through is_malloc, whatever jansson was told to use. */
        size_t n = json_dumpb(metadata, NULL, 0, JSON_COMPACT | JSON_SORT_KEYS);
        r->metadata = is_malloc(n + 1);
        if (!r->metadata)
            return is_fail(INFERSCALE_E_NOMEM, "line %zu: out of memory; close other programs and try again", r->line);
        json_dumpb(metadata, r->metadata, n, JSON_COMPACT | JSON_SORT_KEYS);
        r->metadata[n] = '\0';
    }
    return INFERSCALE_OK;
}

is_status jsonl_parse(const char *line, size_t n, size_t number, jsonl_record *out)
{
    json_error_t error;
    size_t bad;
    is_status st;
    memset(out, 0, sizeof *out);
    out->line = number;
    if (n > JSONL_LINE_MAX)
        return is_fail(INFERSCALE_E_PARSE, "line %zu is longer than %d MiB; split it into several facts", number,
                       JSONL_LINE_MAX >> 20);
    if (!is_utf8_valid(line, n, &bad))
        return is_fail(INFERSCALE_E_PARSE, "line %zu: byte %zu is not valid UTF-8%s; convert the file (for example with iconv)",
                       number, bad + 1, line[bad] ? "" : " text (NUL)");
    out->root = json_loadb(line, n, JSON_REJECT_DUPLICATES, &error);
    if (!out->root)
        return is_fail(INFERSCALE_E_PARSE, "line %zu: not JSON: %s (byte %d); each line must be one JSON object", number,
                       error.text, error.position);
    if (!json_is_object(out->root))
        st = is_fail(INFERSCALE_E_PARSE, "line %zu: not an object; write {\"text\": \"...\"}", number);
    else if ((st = set_kind(out)) == INFERSCALE_OK && (st = set_members(out)) == INFERSCALE_OK)
        st = finish_record(out);
    if (st != INFERSCALE_OK) jsonl_record_free(out);
    return st;
}

void jsonl_record_free(jsonl_record *r)
{
    is_free(r->metadata);
    json_decref(r->root);
    memset(r, 0, sizeof *r);
}

/* ---- Lines --------------------------------------------------------------------------------------------------------------- */

void jsonl_reader_init(jsonl_reader *r, FILE *f)
{
    r->f = f;
    r->line = 0;
    r->text = (is_buf){ .max = JSONL_LINE_MAX + 16 };
}

void jsonl_reader_free(jsonl_reader *r) { is_buf_free(&r->text); }

/* Reads on to the next line end into r->text, and no further: a person at a terminal is answered line by line. *end = true if
 * there was nothing left to read. */
static is_status read_line(jsonl_reader *r, bool *end)
{
    char piece[4096];
    size_t n = 0;
    int c;
    is_buf_clear(&r->text);
    errno = 0;
    do {
        c = getc_unlocked(r->f);
        if (c != EOF && c != '\n') piece[n++] = (char)c;
        if (n < sizeof piece && c != EOF && c != '\n') continue;
        if (r->text.len + n > JSONL_LINE_MAX)
            return is_fail(INFERSCALE_E_PARSE, "line %zu is longer than %d MiB; split it into several facts", r->line + 1,
                           JSONL_LINE_MAX >> 20);
        is_buf_add(&r->text, piece, n);
        n = 0;
    } while (c != EOF && c != '\n');
    if (c == EOF && ferror(r->f)) return is_fail_errno("line %zu cannot be read", r->line + 1);
    if (!is_buf_ok(&r->text))
        return is_fail(INFERSCALE_E_NOMEM, "line %zu: out of memory; close other programs and try again", r->line + 1);
    *end = c == EOF && r->text.len == 0;
    if (!*end) r->line++;
    return INFERSCALE_OK;
}

is_status jsonl_next_line(jsonl_reader *r, bool *end)
{
    do {
        IS_TRY(read_line(r, end));
        if (*end) return INFERSCALE_OK;
        if (r->line == 1 && r->text.len >= 3 && memcmp(r->text.data, "\xef\xbb\xbf", 3) == 0) {
            memmove(r->text.data, r->text.data + 3, r->text.len - 3);
            r->text.len -= 3;
            r->text.data[r->text.len] = '\0';
        }
        while (r->text.len && (r->text.data[r->text.len - 1] == '\r' || r->text.data[r->text.len - 1] == ' ')) r->text.len--;
    } while (r->text.len == 0 || is_utf8_blank((const char *)r->text.data, r->text.len));
    r->text.data[r->text.len] = '\0';
    return INFERSCALE_OK;
}

is_status jsonl_next(jsonl_reader *r, jsonl_record *out, bool *end)
{
    memset(out, 0, sizeof *out);
    IS_TRY(jsonl_next_line(r, end));
    if (*end) return INFERSCALE_OK;
    return jsonl_parse((const char *)r->text.data, r->text.len, r->line, out);
}
