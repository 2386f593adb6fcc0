/* openai.c - the OpenAI face's routes: completions, embeddings, models. openai.h says what is where. */
#include "serve/openai.h"

#include <stdio.h>
#include <string.h>

#include "api/handle.h"

void is_oa_reply_fault(is_request *r, const is_oa_fault *f)
{
    is_reply_error(r, f->status, f->type, f->code, *f->param ? f->param : NULL, "%s", f->message);
}

/* ---- Models -------------------------------------------------------------------------------------------------------------- */

/* A file's name without folders and ".gguf". */
static void file_name(const char *path, char *out, size_t size)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    const size_t n = strlen(name), end = n > 5 && strcmp(name + n - 5, ".gguf") == 0 ? n - 5 : n;

    snprintf(out, size, "%.*s", (int)(end < size ? end : size - 1), name);
}

/* An embedder behind HTTP is "URL#MODEL". */
void is_oa_embedder_name(is_server *s, char *out, size_t size)
{
    const char *spec = s->config->embedder && *s->config->embedder ? s->config->embedder : IS_DEFAULT_EMBEDDER;
    const char *hash = strncmp(spec, "http", 4) == 0 ? strrchr(spec, '#') : NULL;

    if (hash) snprintf(out, size, "%s", hash + 1);
    else file_name(spec, out, size);
}

/* Is name one of the list, commas between. */
static bool in_list(const char *list, const char *name)
{
    const size_t n = strlen(name);

    for (const char *p = list; p && *p;) {
        const size_t len = strcspn(p, ",");
        const char *begin = p + strspn(p, " ");
        size_t own = len > (size_t)(begin - p) ? len - (size_t)(begin - p) : 0;

        while (own && begin[own - 1] == ' ') own--;
        if (own == n && n && memcmp(begin, name, n) == 0) return true;
        p += len + (p[len] == ',');
    }
    return false;
}

/* The served name (the model file's), the same with ".gguf", the name that is written in the file, the aliases. */
bool is_oa_knows_model(is_server *s, const char *name)
{
    inferscale_model_info info;
    const size_t n = strlen(s->model);

    if (strcmp(name, s->model) == 0 || in_list(s->config->alias, name)) return true;
    if (strncmp(name, s->model, n) == 0 && strcmp(name + n, ".gguf") == 0) return true;
    return inferscale_model(s->is, &info) == INFERSCALE_OK && strcmp(name, info.name) == 0;
}

void is_oa_not_a_model(is_request *r, const char *name, const char *served, const char *more)
{
    is_reply_error(r, 404, "invalid_request_error", "model_not_found", "model",
                   "the model \"%.100s\" is not served here; \"%s\" is: send that or leave model out%s", name, served, more);
}

static json_t *model_object(is_server *s, const char *name)
{
    return json_pack("{s:s, s:s, s:I, s:s}", "id", name, "object", "model", "created", (json_int_t)s->started, "owned_by",
                     "inferscale");
}

static void list_models(is_server *s, is_request *r)
{
    json_t *data = json_array();
    char embedder[128];

    is_oa_embedder_name(s, embedder, sizeof embedder);
    json_array_append_new(data, model_object(s, s->model));
    for (const char *p = s->config->alias; p && *p;) {
        const size_t len = strcspn(p, ",");
        char name[128];
        int n = 0;

        snprintf(name, sizeof name, "%.*s", (int)(len < sizeof name ? len : sizeof name - 1), p);
        while (name[n] == ' ') n++;
        for (size_t end = strlen(name); end > (size_t)n && name[end - 1] == ' ';) name[--end] = '\0';
        if (name[n]) json_array_append_new(data, model_object(s, name + n));
        p += len + (p[len] == ',');
    }
    if (strcmp(embedder, s->model) != 0) json_array_append_new(data, model_object(s, embedder));
    is_reply_json(r, 200, json_pack("{s:s, s:o}", "object", "list", "data", data));
}

static void show_model(is_server *s, is_request *r)
{
    const char *name = is_request_param(r, "id");
    char embedder[128];

    is_oa_embedder_name(s, embedder, sizeof embedder);
    if (name && (strcmp(name, embedder) == 0 || is_oa_knows_model(s, name))) is_reply_json(r, 200, model_object(s, name));
    else is_oa_not_a_model(r, name ? name : "", s->model, "");
}

/* ---- Completions --------------------------------------------------------------------------------------------------------- */

static int default_mode(const is_config *c)
{
    if (c->mode && strcmp(c->mode, "text") == 0) return INFERSCALE_MODE_TEXT;
    return c->mode && strcmp(c->mode, "none") == 0 ? INFERSCALE_MODE_NONE : INFERSCALE_MODE_KV;
}

static void answer(is_server *s, is_request *r, is_oa_ask *a)
{
    json_t *memory = json_object_get(a->body, "memory");
    is_owner owner;

    if (a->model && !is_oa_knows_model(s, a->model)) {
        is_oa_not_a_model(r, a->model, s->model, "; --alias gives it further names");
        return;
    }
    if (is_scope_read(r, json_is_object(memory) ? memory : NULL, &owner) != INFERSCALE_OK) return;
    if (a->memory_named && !owner.given) {
        is_reply_error(r, 400, "invalid_request_error", NULL, "memory.user_id",
                       "memory is asked for and nobody's is named: send memory.user_id (or agent_id, run_id, app_id), or "
                       "X-Inferscale-User");
        return;
    }
    if (!owner.given || a->form == IS_OA_TEXT) a->o.ask.mode = INFERSCALE_MODE_NONE;
    is_oa_answer(s, r, a, owner.given && a->form == IS_OA_CHAT ? &owner.scope : NULL);
}

static void handle(is_server *s, is_request *r, int form)
{
    json_t *body = is_request_json(r);
    is_oa_known known = { .k = s->config->k, .mode = default_mode(s->config) };
    inferscale_model_info info;
    is_oa_ask a;
    is_oa_fault f;

    if (!body) return;
    if (inferscale_model(s->is, &info) == INFERSCALE_OK) known.n_vocab = info.n_vocab;
    if (is_oa_parse(form, body, &known, &a, &f)) answer(s, r, &a);
    else is_oa_reply_fault(r, &f);
    is_oa_ask_free(&a);
}

static void chat(is_server *s, is_request *r) { handle(s, r, IS_OA_CHAT); }

static void completions(is_server *s, is_request *r) { handle(s, r, IS_OA_TEXT); }

const is_route is_routes_openai[] = {
    { "POST", "/v1/chat/completions", chat, IS_FACE_OPENAI, IS_ROUTE_ENGINE | IS_ROUTE_ANSWERS },
    { "POST", "/v1/completions", completions, IS_FACE_OPENAI, IS_ROUTE_ENGINE | IS_ROUTE_ANSWERS },
    { "POST", "/v1/embeddings", is_oa_handle_embeddings, IS_FACE_OPENAI, IS_ROUTE_ENGINE },
    { "GET", "/v1/models", list_models, IS_FACE_OPENAI, 0 },
    { "GET", "/v1/models/{id}", show_model, IS_FACE_OPENAI, 0 },
    { NULL, NULL, NULL, IS_FACE_OPENAI, 0 },
};
