/* fuzz_jsonl.c - the JSON Lines reader: any bytes give records or one sentence that names the line. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "exchange/jsonl.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(int holds, const char *what)
{
    if (holds) return;
    fprintf(stderr, "does not hold: %s\n", what);
    abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static jsonl_reader reader;
    FILE *f = size ? fmemopen((void *)(uintptr_t)data, size, "rb") : NULL;
    size_t last = 0;
    bool end = false;
    if (!f) return 0;
    jsonl_reader_init(&reader, f);
    for (;;) {
        jsonl_record r;
        is_status st = jsonl_next(&reader, &r, &end);
        if (st != INFERSCALE_OK) {
            check(st == INFERSCALE_E_PARSE, "a bad line is a parse error");
            check(strncmp(is_error(), "line ", 5) == 0, "the sentence names the line");
            if (reader.line == last) break; /* too long: there is no way on */
            last = reader.line;
            continue;
        }
        if (end) break;
        check(r.line > last, "lines are counted upwards");
        last = r.line;
        if (r.kind != JSONL_HEAD) {
            check(r.text && is_utf8_valid(r.text, strlen(r.text), NULL), "text is UTF-8 without NUL");
            check(!is_utf8_blank(r.text, strlen(r.text)), "text is not blank");
        }
        jsonl_record_free(&r);
    }
    jsonl_reader_free(&reader);
    fclose(f);
    return 0;
}
