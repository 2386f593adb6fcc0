/* jsonl.h - the JSON Lines form of memory (docs/formats.md, "JSONL"): strict, one object a line, bounded. */
#ifndef IS_EXCHANGE_JSONL_H
#define IS_EXCHANGE_JSONL_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

#include "base/buf.h"
#include "base/status.h"

enum { JSONL_LINE_MAX = 4 << 20 }; /* bytes, without the line end */

typedef enum jsonl_kind { JSONL_FACT, JSONL_TURN, JSONL_HEAD } jsonl_kind;

/* One line. Strings are UTF-8 without NUL, owned by the record; NULL or 0 = not given. */
typedef struct jsonl_record {
    jsonl_kind kind;
    size_t line;             /* 1, 2, ... */
    int64_t id;              /* of the store it was exported from: what source_turn of later lines refers to */
    const char *text;
    int64_t event_time, valid_from, valid_to, expires, source_turn;   /* facts */
    char *metadata;          /* facts: JSON object */
    const char *conversation, *speaker, *external_id;                 /* turns */
    int64_t time;                                                     /* turns */
    bool undated;            /* the time is that of writing: nobody gave it */
    bool pinned;             /* facts */
    const char *user, *agent, *run, *app;
    json_t *root;            /* owns the strings */
} jsonl_record;

/* Parses one line of n bytes (no line end). On failure E_PARSE (or E_NOMEM) and a sentence that names the line. */
is_status jsonl_parse(const char *line, size_t n, size_t number, jsonl_record *out);
void jsonl_record_free(jsonl_record *r);

/* Reads a stream line by line; blank lines are skipped, CRLF and a byte order mark at the start are accepted. */
typedef struct jsonl_reader {
    FILE *f;                 /* borrowed */
    size_t line;             /* number of the last line read */
    is_buf text;             /* the last line */
} jsonl_reader;

void jsonl_reader_init(jsonl_reader *r, FILE *f);
void jsonl_reader_free(jsonl_reader *r);
/* The next line that is not blank, in r->text. *end = true: there is none. Errors: E_PARSE (too long), E_IO, E_NOMEM. */
is_status jsonl_next_line(jsonl_reader *r, bool *end);
/* The next record. */
is_status jsonl_next(jsonl_reader *r, jsonl_record *out, bool *end);

#endif
