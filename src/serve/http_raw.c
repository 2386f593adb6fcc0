/* http_raw.c - what libmicrohttpd before 1.0 gets wrong in a head, and cannot be told to do
 * otherwise.
 *
 * - A request that it refuses after its head was read (a Content-Length that is no number, a
 *   cookie that is too long) is answered twice: the refusal's head is written, then the request
 *   goes on and its head is written again (parse_connection_headers of 0.9.75). Only its log
 *   hears of that before; there the reply is sent by us, and the connection's sending side is
 *   closed. Cookies are of no use here: an empty one stands before the client's, so that none is
 *   parsed. A missing Host is ours to refuse.
 * - Blanks behind a Content-Length or Transfer-Encoding are legal, and make it no number there.
 *   Where the head came with its request line (as clients send it), they are moved before the
 *   value.
 * - A value ends at a NUL, and what stands behind it is gone: "anna\0ben" reads as anna. The
 *   parts of a head lie in memory one behind the other as they came, so what is between two of
 *   them is looked at: nothing but a line's end and blanks may be. NULs alone at the end of the
 *   last value are seen by where the body begins; without a body they are not, and cut nothing off.
 * - A line of a chunked body that ends with LF alone is read like one that ends with CR and LF.
 *   That cannot be seen here, and so not be refused: what is handed over begins behind the line,
 *   and where the line came alone its bytes are overwritten by then.
 *
 * From 1.0 on libmicrohttpd does all of this itself; is_raw_needed says so. */
#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "serve/http_in.h"

static const char no_cookie[] = "";

bool is_raw_needed(void) { return strncmp(MHD_get_version(), "0.", 2) == 0; }

/* ---- When the request line is there -------------------------------------------------------------------------------------- */

static bool is_named(const char *line, size_t n, const char *name)
{
    const size_t len = strlen(name);
    return n > len && line[len] == ':' && strncasecmp(line, name, len) == 0;
}

/* "16 " becomes " 16": it has the same meaning and the same length. */
static void blanks_first(char *value, size_t n)
{
    size_t k = 0;
    if (n && value[n - 1] == '\r') n--;
    while (k < n && (value[n - 1 - k] == ' ' || value[n - 1 - k] == '\t')) k++;
    if (k == 0 || k == n) return;
    memmove(value + k, value, n - k);
    memset(value, ' ', k);
}

/* The lines that came with the request line: text up to a NUL, as the rest of the buffer holds zeros. */
static void mend_lines(char *p)
{
    size_t n;
    for (; (n = strcspn(p, "\n")) > 1 && p[n]; p += n + 1) {
        if (is_named(p, n, "Content-Length")) blanks_first(p + 15, n - 15);
        if (is_named(p, n, "Transfer-Encoding")) blanks_first(p + 18, n - 18);
    }
}

void is_raw_line(is_request *r, const char *target)
{
    const char *version = target + strlen(target) + 1;
    if (!is_raw_needed()) return;
    r->raw_target = target;
    r->raw_end = version - 1; /* the line is taken apart when this has returned */
    MHD_set_connection_value_n(r->con, MHD_HEADER_KIND, "Cookie", 6, no_cookie, 0);
    if (strncmp(version, "HTTP/1.", 7) != 0 || version[8]) return; /* a NUL in the target: refused later */
    mend_lines((char *)(uintptr_t)version + 9 + (version[9] == '\0'));
}

/* ---- When the head is there ---------------------------------------------------------------------------------------------- */

/* From a part's end to the next part's begin: one line end (CR and LF, made zeros). */
static bool one_line_end(const char *end, const char *next) { return next == end + 2 && !end[0] && !end[1]; }

bool is_raw_header(is_request *r, const char *name, size_t name_n, const char *value, size_t value_n)
{
    if (value == no_cookie) return false;
    if (!is_raw_needed() || !r->raw_target) return true;
    bool ok = one_line_end(r->raw_end, name) && value > name + name_n && !name[name_n];
    for (const char *p = name + name_n + 1; ok && p < value; p++) ok = *p == ' ' || *p == '\t';
    if (!ok) r->raw_bad = true;
    r->raw_end = value + value_n;
    return true;
}

void is_raw_begin(is_request *r, const char *method, const char *version)
{
    const char *t = r->raw_target;
    if (!is_raw_needed() || !t) return;
    r->raw_bad = r->raw_end + 1 != version || method + strlen(method) >= t;
    for (const char *p = method + strlen(method) + 1; !r->raw_bad && p < t; p++) r->raw_bad = *p != ' ';
    r->raw_end = version + strlen(version);
}

/* Behind the last header come its line's end and an empty line; NULs alone at the end of the last
 * value look like those (is_raw_body). A request without headers has nothing that could be cut, and
 * one without raw text (a fuzzer made it) nothing to look at. */
bool is_raw_good(const is_request *r)
{
    static const char ends[4] = { 0 };
    if (!is_raw_needed() || !r->raw_target || r->n_headers == 0) return true;
    return !r->raw_bad && memcmp(r->raw_end, ends, sizeof ends) == 0;
}

/* The body's first bytes lie behind the empty line, in the same buffer: what is between them and
 * the last value's end tells NULs of that value from the two line ends. A body elsewhere (it was
 * moved) tells nothing. */
bool is_raw_body(const is_request *r, const char *data)
{
    const uintptr_t end = (uintptr_t)r->raw_end + 4, at = (uintptr_t)data;
    if (!is_raw_needed() || !r->raw_target || r->n_headers == 0) return true;
    return at <= end || at - end >= HTTP_HEAD || *(const char *)end != '\0';
}

/* ---- When libmicrohttpd is about to refuse ------------------------------------------------------------------------------- */

/* Nothing was sent on this connection for this request: the reply is said where that can be said in plain, then it ends. */
static void refuse(struct is_http *h, is_request *r, int status, const char *code, const char *why)
{
    char body[300], text[600];
    const char *form = is_face_of_path(r->path) == IS_FACE_MEMORY
                           ? "{\"detail\":\"%s\"}"
                           : "{\"error\":{\"message\":\"%s\",\"type\":\"invalid_request_error\",\"param\":null,\"code\":%s}}";
    int n = snprintf(body, sizeof body, form, why, code);
    n = snprintf(text, sizeof text,
                 "HTTP/1.1 %d %s\r\nConnection: close\r\nContent-Type: application/json\r\nX-Request-Id: %s\r\nContent-Length: %d\r\n\r\n%s",
                 status, status == 413 ? "Content Too Large" : "Bad Request", r->id, n, body);
    r->begun = r->replied = r->gave_way = true;
    r->method = "-";
    r->status = status;
    if (!h->cert) (void)!send(r->conn->fd, text, (size_t)n, MSG_DONTWAIT | MSG_NOSIGNAL);
    shutdown(r->conn->fd, SHUT_RDWR);
    is_request_refused(r, "framing");
}

/* What libmicrohttpd reads as a number of bytes: digits, and no more than 64 bits of them. */
static bool is_length(const char *s, bool *too_long)
{
    unsigned long long n = 0;
    *too_long = false;
    for (const char *p = s; *p; p++) {
        if (!isdigit((unsigned char)*p)) return *too_long = false;
        *too_long |= __builtin_mul_overflow(n, 10ull, &n) || __builtin_add_overflow(n, (unsigned)(*p - '0'), &n);
    }
    return *s && !*too_long;
}

void is_raw_said(struct is_http *h)
{
    if (!is_raw_needed() || !h->has_thread || !pthread_equal(pthread_self(), h->thread)) return;
    if (pthread_mutex_trylock(&h->lock) != 0) return; /* it speaks of what we are just asking of it */
    for (uint32_t i = 0; i < h->n_slots; i++) {
        is_conn *c = &h->conns[i];
        is_request *r = c->fd >= 0 && c->state == CONN_READ ? c->request : NULL;
        bool too_long;
        if (!r || r->begun || MHD_lookup_connection_value(r->con, MHD_HEADER_KIND, "Transfer-Encoding")) continue;
        const char *said = MHD_lookup_connection_value(r->con, MHD_HEADER_KIND, "Content-Length");
        if (!said || is_length(said, &too_long)) continue;
        refuse(h, r, too_long ? 413 : 400, too_long ? "\"request_too_large\"" : "null",
               too_long ? "the body is longer than any that is read here (max_body)" : "Content-Length is no number of bytes");
    }
    pthread_mutex_unlock(&h->lock);
}
