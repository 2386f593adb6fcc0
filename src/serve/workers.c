/* workers.c - segments for workers on other hosts, and the rows that they captured.
 *
 * Neither a client's key nor its absence opens these paths: a worker shows a pass (kv/pass.h), signed with the secret that this store shares
 * with its workers alone, for this one request. Names are hashes in hex, which are made into a path here; what is sent ends with a seal. */
#include "serve/workers.h"

#include <string.h>
#include <time.h>

#include "api/handle.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "kv/pass.h"
#include "serve/log.h"
#include "serve/server.h"

enum { NAME_HEX = 2 * IS_HASH_BYTES, PIECE = 256 << 10 };

/* ---- Who may --------------------------------------------------------------------------------------------------------------- */

static is_status read_pass(is_server *s, is_request *r, uint8_t secret[IS_KEY_BYTES], is_pass *out)
{
    const char *text = is_request_header(r, "X-Inferscale-Pass"), *range = is_request_header(r, "Content-Range");
    const is_pass_for of = { is_request_method(r), is_request_path(r), range ? range : "" };

    IS_TRY(is_engine_worker_secret(is_handle_engine_if_loaded(s->is), secret));
    return is_pass_read(secret, &of, text ? text : "", (int64_t)time(NULL), out);
}

bool is_worker_authorise(is_server *s, is_request *r)
{
    uint8_t secret[IS_KEY_BYTES];
    is_pass pass;
    is_status st;

    if (!is_handle_engine_if_loaded(s->is)) {
        is_reply_header(r, "Retry-After", "2");
        is_reply_error(r, 503, "server_error", "loading", NULL, "the model is being loaded; try again in a moment");
        return false;
    }
    st = read_pass(s, r, secret, &pass);
    is_wipe(secret, sizeof secret);
    if (st == INFERSCALE_OK) return true;
    if (st == INFERSCALE_E_UNSUPPORTED) is_reply_error(r, 404, "invalid_request_error", "not_found", NULL, "%s", is_error());
    else if (st == INFERSCALE_E_NOMEM) is_reply_failed(r, st, NULL);
    else is_reply_error(r, 401, "authentication_error", st == INFERSCALE_E_STALE ? "stale_pass" : "invalid_pass", NULL, "%s", is_error());
    return false;
}

/* ---- Segments ---------------------------------------------------------------------------------------------------------------- */

/* FOLDER/ab/abcd....seg in the store; is_free. NULL: no name of a segment, or out of memory. */
static char *path_of(const is_server *s, const char *folder, const char *name)
{
    is_buf b = IS_BUF_INIT;

    if (!name || strlen(name) != NAME_HEX || strspn(name, "0123456789abcdef") != NAME_HEX) return NULL;
    is_buf_fmt(&b, "%s/%s/%.2s/%s.seg", s->is->home, folder, name, name);
    return is_buf_take(&b);
}

/* The file's bytes, then their seal. What fails midway cuts the stream. */
static is_status send_file(is_request *r, is_file *f, uint64_t size, is_hash *seal)
{
    const is_fs *fs = is_fs_default();
    uint8_t *piece = is_malloc(PIECE), end[IS_HASH_BYTES];
    is_status st = piece ? INFERSCALE_OK : is_fail(INFERSCALE_E_NOMEM, "out of memory for a segment's bytes");
    bool sent = true;

    for (uint64_t at = 0; st == INFERSCALE_OK && sent && at < size; at += PIECE) {
        size_t n = size - at < PIECE ? (size_t)(size - at) : PIECE;

        st = fs->pread(fs, f, piece, n, at);
        if (st != INFERSCALE_OK) break;
        is_hash_bytes(seal, piece, n);
        sent = is_stream_write(r, piece, n);
    }
    is_free(piece);
    is_hash_end(seal, end);
    if (st != INFERSCALE_OK) return st;
    if (sent && is_stream_write(r, end, sizeof end)) is_stream_end(r);
    return INFERSCALE_OK;
}

static is_status open_seal(is_server *s, is_request *r, is_hash **seal)
{
    uint8_t secret[IS_KEY_BYTES];
    is_pass pass;
    is_status st = read_pass(s, r, secret, &pass);

    if (st == INFERSCALE_OK) st = is_pass_seal(secret, &pass, seal);
    is_wipe(secret, sizeof secret);
    return st;
}

static void send_segment(is_server *s, is_request *r, const char *folder)
{
    const is_fs *fs = is_fs_default();
    char *path = path_of(s, folder, is_request_param(r, "name"));
    is_hash *seal = NULL;
    is_file *f = NULL;
    uint64_t size = 0;
    is_status st;

    if (!path) {
        is_reply_error(r, 400, "invalid_request_error", NULL, "name", "a segment's name has %d digits of hex, in small letters", NAME_HEX);
        return;
    }
    st = fs->open(fs, path, IS_OPEN_READ, &f);
    if (st == INFERSCALE_OK) st = fs->size(fs, f, &size);
    if (st == INFERSCALE_OK && strcmp(is_request_method(r), "HEAD") != 0) st = open_seal(s, r, &seal);
    if (st == INFERSCALE_E_NOTFOUND) is_reply_error(r, 404, "invalid_request_error", "not_found", "name", "there is no such segment (any more)");
    else if (st != INFERSCALE_OK) is_reply_failed(r, st, NULL);
    else if (!seal) is_reply_bytes(r, 200, "application/octet-stream", "", 0);
    else if (!is_stream_begin(r, 200, "application/octet-stream")) is_hash_end(seal, (uint8_t[IS_HASH_BYTES]){ 0 });
    else if (send_file(r, f, size, seal) != INFERSCALE_OK)
        is_serve_log(IS_LOG_WARN, "a segment could not be sent to a worker to its end: %s", is_error());
    if (f) fs->close(fs, f);
    is_free(path);
}

static void send_vault(is_server *s, is_request *r)
{
    send_segment(s, r, "vault");
}

static void send_head(is_server *s, is_request *r)
{
    send_segment(s, r, "vllm/heads");
}

/* ---- Captured rows ------------------------------------------------------------------------------------------------------------ */

static void take_rows(is_server *s, is_request *r)
{
    is_rows_piece p = { .name = is_request_param(r, "name") };
    const char *range = is_request_header(r, "Content-Range");
    uint8_t secret[IS_KEY_BYTES];
    uint64_t said;
    is_pass pass;
    is_status st = read_pass(s, r, secret, &pass);

    is_wipe(secret, sizeof secret);
    p.data = is_request_body(r, &p.n);
    if (st != INFERSCALE_OK || !is_pass_fits(&pass, p.data, p.n)) {
        is_reply_error(r, 401, "authentication_error", "invalid_pass", NULL, "the pass is not for this body");
        return;
    }
    if (!range || !is_pass_range(range, &p.at, &said, &p.total) || said != p.n) {
        is_reply_error(r, 400, "invalid_request_error", NULL, NULL, "Content-Range must say where the body's bytes stand: bytes FIRST-LAST/TOTAL");
        return;
    }
    st = is_engine_worker_rows(is_handle_engine_if_loaded(s->is), &p);
    if (st == INFERSCALE_OK) is_reply_json(r, 200, json_pack("{s:I}", "have", (json_int_t)(p.at + p.n)));
    else if (st == INFERSCALE_E_NOTFOUND) is_reply_error(r, 404, "invalid_request_error", "not_found", "name", "%s", is_error());
    else if (st == INFERSCALE_E_STALE) is_reply_error(r, 409, "invalid_request_error", "out_of_order", NULL, "%s", is_error());
    else is_reply_failed(r, st, NULL);
}

/* Beside the faces' tables: what is not for clients does not stand in openapi.json. */
const is_route is_worker_routes[] = {
    { "GET", "/inferscale/kv/vault/{name}", send_vault, IS_FACE_OPENAI, IS_ROUTE_WORKER },
    { "GET", "/inferscale/kv/heads/{name}", send_head, IS_FACE_OPENAI, IS_ROUTE_WORKER },
    { "PUT", "/inferscale/kv/spool/{name}", take_rows, IS_FACE_OPENAI, IS_ROUTE_WORKER },
    { 0 },
};
