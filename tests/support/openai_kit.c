/* openai_kit.c - see openai_kit.h. */
#include "support/openai_kit.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

serve_kit *kit;

int openai_stop(void **state)
{
    serve_stop(kit);
    kit = NULL;
    return 0;
}

json_t *loads(const char *text)
{
    json_error_t e;
    json_t *v = json_loads(text, 0, &e);
    if (!v) fail_msg("%s at %d: %s", e.text, e.position, text);
    return v;
}

json_t *at(json_t *o, const char *path)
{
    char part[64];
    const char *p = path;

    while (o && *p) {
        size_t n = strcspn(p, ".");
        snprintf(part, sizeof part, "%.*s", (int)n, p);
        o = json_is_array(o) ? json_array_get(o, (size_t)strtoul(part, NULL, 10)) : json_object_get(o, part);
        p += n + (p[n] == '.');
    }
    if (!o) fail_msg("%s is not there", path);
    return o;
}

const char *json_text_at(json_t *o, const char *path)
{
    const char *s = json_string_value(at(o, path));
    if (!s) fail_msg("%s is no string", path);
    return s;
}

json_int_t json_number_at(json_t *o, const char *path) { return json_integer_value(at(o, path)); }

serve_reply post(const char *path, const char *body, int status)
{
    serve_reply r = serve_call(kit, "POST", path, NULL, body);
    if (r.status != status) fail_msg("status %d, not %d: %s\n%s", r.status, status, body, r.body);
    return r;
}

void remembers(const char *user, const char *text)
{
    char body[300];
    snprintf(body, sizeof body, "{\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}],\"user_id\":\"%s\",\"infer\":false}", text, user);
    serve_reply r = post("/memories", body, 200);
    serve_reply_free(&r);
}
