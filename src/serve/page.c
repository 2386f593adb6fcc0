/* page.c - the page at /: files inside the program, with what keeps a browser from doing anything else with them. They need no key and
 * hold nothing of the store; what the page shows it asks the API for. */
#include <string.h>

#include "base/hash.h"
#include "serve/embedded.h"
#include "serve/http.h"

static const char policy[] = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
                             "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/* A file's tag is a hash of its bytes, with the quotes that belong to it. */
static void tag_of(const is_embedded *f, char out[36])
{
    uint8_t hash[IS_HASH_BYTES];

    is_hash_once(NULL, f->data, f->len, hash);
    out[0] = '"';
    is_hex(hash, 16, out + 1);
    out[33] = '"';
    out[34] = '\0';
}

/* If-None-Match is a list of tags, some with W/ before them, or *. */
static bool is_known(const is_request *r, const char *tag)
{
    const char *list = is_request_header(r, "If-None-Match");

    return list && (strcmp(list, "*") == 0 || strstr(list, tag) != NULL);
}

static void reply(is_request *r, const char *name)
{
    const is_embedded *f = is_embedded_find(name);
    char tag[36];

    if (!f) {
        is_reply_error(r, 404, "invalid_request_error", "not_found", NULL, "this build carries no %s; the API is there without the page", name);
        return;
    }
    tag_of(f, tag);
    is_reply_header(r, "ETag", tag);
    is_reply_header(r, "Cache-Control", "no-cache"); /* asked for again each time, sent only when it changed */
    is_reply_header(r, "Content-Security-Policy", policy);
    is_reply_header(r, "Referrer-Policy", "no-referrer");
    is_reply_header(r, "Cross-Origin-Opener-Policy", "same-origin");
    is_reply_header(r, "Cross-Origin-Resource-Policy", "same-origin");
    if (is_known(r, tag)) is_reply_bytes(r, 304, f->type, "", 0);
    else is_reply_bytes(r, 200, f->type, f->data, f->len);
}

static void get_index(is_server *s, is_request *r) { (void)s, reply(r, "index.html"); }
static void get_script(is_server *s, is_request *r) { (void)s, reply(r, "app.js"); }
static void get_style(is_server *s, is_request *r) { (void)s, reply(r, "style.css"); }

const is_route is_routes_page[] = {
    { "GET", "/", get_index, IS_FACE_OPENAI, IS_ROUTE_OPEN },
    { "GET", "/app.js", get_script, IS_FACE_OPENAI, IS_ROUTE_OPEN },
    { "GET", "/style.css", get_style, IS_FACE_OPENAI, IS_ROUTE_OPEN },
    { 0 },
};
