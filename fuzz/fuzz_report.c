/* fuzz_report.c - `eval report` on any bytes: a page without a foreign element, or one sentence
 * that says what is wrong with the file. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "eval/report_parts.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(int holds, const char *what)
{
    if (holds) return;
    fprintf(stderr, "does not hold: %s\n", what);
    abort();
}

/* Every tag of the page is one that we write. */
static void check_tags(const char *page)
{
    static const char *const known[] = {
        "!DOCTYPE", "html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "code",
        "nav", "ul", "li", "a", "section", "figure", "div", "figcaption", "table", "thead",
        "tbody", "tr", "th", "td", "dl", "dt", "dd", "svg", "rect", "text", "g", "path",
        "circle" };

    for (const char *s = strchr(page, '<'); s; s = strchr(s + 1, '<')) {
        const char *name = s[1] == '/' ? s + 2 : s + 1;
        const size_t n = strcspn(name, " >/");
        int found = 0;

        for (size_t i = 0; i < sizeof known / sizeof *known; i++)
            found = found || (strlen(known[i]) == n && strncmp(known[i], name, n) == 0);
        check(found, "a tag is one of ours");
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    report *r = NULL;
    is_buf page = IS_BUF_INIT;
    is_status st;

    if (report_new(&r) != INFERSCALE_OK) return 0;
    st = report_add_text(r, "results.json", size ? (const void *)data : "", size);
    if (st != INFERSCALE_OK) {
        check(st == INFERSCALE_E_PARSE || st == INFERSCALE_E_INVALID, "a bad file is called bad");
        check(strstr(is_error(), "results.json") != NULL, "the sentence names the file");
    } else {
        check(report_shared(r) == INFERSCALE_OK, "what was read is plotted");
        for (size_t i = 0; i < r->n_plots; i++) chart_end(&r->plots[i]->chart);
        report_page(r, &page);
        check(is_buf_ok(&page), "the page is written");
        check(memchr(page.data, 0, page.len) == NULL, "without NUL");
        check_tags((const char *)page.data);
    }
    is_buf_free(&page);
    report_free(r);
    return 0;
}
