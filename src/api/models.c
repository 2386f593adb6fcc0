/* models.c - where installed models are. */
#include <stdlib.h>
#include <string.h>

#include "api/handle.h"
#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"

char *is_cache_folder(const char *what)
{
    const char *cache = getenv("INFERSCALE_CACHE"), *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    is_buf b = IS_BUF_INIT;

    if (cache && cache[0]) is_buf_fmt(&b, "%s/%s", cache, what);
    else if (xdg && xdg[0]) is_buf_fmt(&b, "%s/inferscale/%s", xdg, what);
    else if (home && home[0]) is_buf_fmt(&b, "%s/.cache/inferscale/%s", home, what);
    else return NULL;
    return is_buf_take(&b);
}

/* The folder of installed models, as scripts/setup.sh fills it. */
static char *models_dir(void)
{
    const char *models = getenv("INFERSCALE_MODELS");
    char *dir = models && models[0] ? is_strdup(models) : is_cache_folder("models");

    return dir ? dir : is_strdup("models"); /* nobody's home: here */
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
