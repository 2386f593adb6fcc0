/* models.c - where installed models are. */
#include <stdlib.h>
#include <string.h>

#include "api/handle.h"
#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"

/* The folder of installed models, as scripts/setup.sh fills it. */
static char *models_dir(void)
{
    const char *models = getenv("INFERSCALE_MODELS"), *cache = getenv("INFERSCALE_CACHE");
    const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    is_buf b = IS_BUF_INIT;

    if (models && models[0]) is_buf_str(&b, models);
    else if (cache && cache[0]) is_buf_fmt(&b, "%s/models", cache);
    else if (xdg && xdg[0]) is_buf_fmt(&b, "%s/inferscale/models", xdg);
    else is_buf_fmt(&b, "%s/.cache/inferscale/models", home && home[0] ? home : ".");
    return is_buf_take(&b);
}

static char *candidate(const char *dir, const char *name, const char *suffix)
{
    is_buf b = IS_BUF_INIT;

    is_buf_fmt(&b, "%s/%s%s", dir, name, suffix);
    return is_buf_take(&b);
}

is_status is_model_find(const char *name, const char *fallback, char **path)
{
    const is_fs *fs = is_fs_posix();
    char *dir;
    is_status st;

    *path = NULL;
    if (!name || !name[0]) name = fallback;
    if (strchr(name, '/')) {
        *path = is_strdup(name);
        if (!*path) return is_fail(INFERSCALE_E_NOMEM, "out of memory");
        if (fs->exists(fs, name)) return INFERSCALE_OK;
        is_free(*path);
        *path = NULL;
        return is_fail(INFERSCALE_E_NOTFOUND, "there is no model file %s; check the path", name);
    }
    dir = models_dir();
    if (!dir) return is_fail(INFERSCALE_E_NOMEM, "out of memory");
    for (int i = 0; i < 2 && !*path; i++) {
        char *p = candidate(dir, name, i ? ".gguf" : "");

        if (p && fs->exists(fs, p)) *path = p;
        else is_free(p);
    }
    if (!*path && fs->exists(fs, name)) *path = is_strdup(name);
    st = *path ? INFERSCALE_OK
               : is_fail(INFERSCALE_E_NOTFOUND, "model \"%s\" is not installed in %s; give a path to a GGUF file, or run scripts/setup.sh "
                         "(make demo does) to install the default models", name, dir);
    is_free(dir);
    return st;
}
