/* secret.c - HOME/vllm/secret: what tickets are signed with. It is read again when its file has changed, as the connector does: who
 * replaces it need not restart anything. */
#include "engine/vllm/internal.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"

enum { SECRET_HEX = 2 * IS_KEY_BYTES };

static is_status read_secret(const char *path, uint8_t out[IS_KEY_BYTES])
{
    const is_fs *fs = is_fs_default();
    uint8_t *text = NULL;
    size_t n = 0;
    is_stat stat;
    bool good;

    IS_TRY(is_file_read_all(fs, path, 4096, &text, &n));
    while (n && (text[n - 1] == '\n' || text[n - 1] == '\r' || text[n - 1] == ' ')) n--;
    good = n == SECRET_HEX && is_unhex((const char *)text, IS_KEY_BYTES, out);
    is_wipe(text, n);
    is_free(text);
    if (!good) return is_fail(INFERSCALE_E_CORRUPT, "%s does not hold 32 bytes as hex; remove it, and a new one is made", path);
    if (fs->stat(fs, path, &stat) == INFERSCALE_OK && stat.is_regular && (stat.mode & 077)) {
        is_log(IS_LOG_WARN, "%s was readable by others; its mode is set to 0600, and it may be known: replace it", path);
        IS_TRY(fs->set_mode(fs, path, 0600));
    }
    return INFERSCALE_OK;
}

/* Of several processes that make one at once, one wins, and all read that one. */
static is_status make_secret(const char *path)
{
    const is_fs *fs = is_fs_default();
    uint8_t secret[IS_KEY_BYTES], id[8];
    char hex[SECRET_HEX + 2], mark[17];
    is_buf own = IS_BUF_INIT;
    is_file *f = NULL;
    is_status st;

    is_random(secret, sizeof secret);
    is_random(id, sizeof id);
    is_hex(secret, sizeof secret, hex);
    is_hex(id, sizeof id, mark);
    hex[SECRET_HEX] = '\n';
    is_buf_fmt(&own, "%s.%s", path, mark);
    st = is_buf_ok(&own) ? fs->open(fs, (const char *)own.data, IS_OPEN_CREATE_NEW, &f) : vllm_no_memory();
    if (st == INFERSCALE_OK) st = fs->pwrite(fs, f, hex, SECRET_HEX + 1, 0);
    if (st == INFERSCALE_OK) st = fs->sync(fs, f);
    if (f) fs->close(fs, f);
    if (st == INFERSCALE_OK) {
        st = fs->link(fs, (const char *)own.data, path);
        if (st == INFERSCALE_E_UNSUPPORTED) st = fs->rename(fs, (const char *)own.data, path);
        else fs->unlink(fs, (const char *)own.data);
        if (st != INFERSCALE_OK && fs->exists(fs, path)) st = INFERSCALE_OK;
    }
    is_wipe(secret, sizeof secret);
    is_wipe(hex, sizeof hex);
    is_buf_free(&own);
    return st;
}

/* ---- As it is now ------------------------------------------------------------------------------------------------------------------ */

/* Which file it is; 0 = there is none, or a link, whose target may change unseen. */
static uint64_t identity(const char *path)
{
    is_stat stat;

    return is_fs_default()->stat(is_fs_default(), path, &stat) == INFERSCALE_OK && stat.is_regular ? stat.version : 0;
}

/* Under its lock. *changed: it is another one than before. */
static is_status load(vllm_secret *s, bool *changed)
{
    const uint64_t file = identity(s->path);
    uint8_t bytes[IS_KEY_BYTES];
    is_status st = INFERSCALE_OK;

    *changed = false;
    if (!is_fs_default()->exists(is_fs_default(), s->path)) st = make_secret(s->path);
    if (st == INFERSCALE_OK) st = read_secret(s->path, bytes);
    if (st != INFERSCALE_OK) return st;
    *changed = s->n_read == 0 || memcmp(bytes, s->bytes, sizeof bytes) != 0;
    s->n_read += *changed;
    s->file = file;
    memcpy(s->bytes, bytes, sizeof bytes);
    is_wipe(bytes, sizeof bytes);
    return st;
}

is_status vllm_secret_open(vllm *e)
{
    bool changed;

    e->secret.path = is_path_join(e->dir, "secret");
    return e->secret.path ? load(&e->secret, &changed) : vllm_no_memory();
}

void vllm_secret_close(vllm *e)
{
    is_wipe(e->secret.bytes, sizeof e->secret.bytes);
    is_free(e->secret.path);
    e->secret.path = NULL;
}

/* What cannot be read, half written perhaps, leaves the old one in force: it is looked at again with the next ticket. */
static bool look_again(vllm_secret *s)
{
    bool changed = false;

    if (load(s, &changed) != INFERSCALE_OK) {
        if (!s->said) is_log(IS_LOG_WARN, "the secret has changed and cannot be read, the old one is used: %s", is_error());
        s->said = true;
        return false;
    }
    s->said = false;
    if (changed) is_log(IS_LOG_INFO, "%s has changed: tickets are signed with the new secret", s->path);
    return changed;
}

uint64_t vllm_secret_get(vllm *e, uint8_t out[IS_KEY_BYTES])
{
    vllm_secret *s = &e->secret;
    uint64_t file, n;

    pthread_mutex_lock(&s->lock);
    file = identity(s->path);
    if (file == 0 || file != s->file) look_again(s);
    memcpy(out, s->bytes, IS_KEY_BYTES);
    n = s->n_read;
    pthread_mutex_unlock(&s->lock);
    return n;
}

bool vllm_secret_again(vllm *e)
{
    bool changed;

    pthread_mutex_lock(&e->secret.lock);
    changed = look_again(&e->secret);
    pthread_mutex_unlock(&e->secret.lock);
    return changed;
}
