/* models.c - where installed models are. */
#include <stdlib.h>
#include <string.h>

#include "api/handle.h"
#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"

static is_status no_memory(void)
{
    return is_fail(INFERSCALE_E_NOMEM, "out of memory for a file's name; free some and try again");
}

is_status is_cache_folder(const char *what, char **out)
{
    const char *cache = getenv("INFERSCALE_CACHE"), *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    is_buf b = IS_BUF_INIT;

    *out = NULL;
    if (cache && cache[0]) is_buf_fmt(&b, "%s/%s", cache, what);
    else if (xdg && xdg[0]) is_buf_fmt(&b, "%s/inferscale/%s", xdg, what);
    else if (home && home[0]) is_buf_fmt(&b, "%s/.cache/inferscale/%s", home, what);
    else return INFERSCALE_OK;
    *out = is_buf_take(&b);
    return *out ? INFERSCALE_OK : no_memory();
}

/* The folder of installed models, as scripts/setup.sh fills it. */
static is_status models_dir(char **out)
{
    const char *models = getenv("INFERSCALE_MODELS");

    *out = NULL;
    if (models && models[0]) *out = is_strdup(models);
    else {
        IS_TRY(is_cache_folder("models", out));
        if (!*out) *out = is_strdup("models"); /* nobody's home: here */
    }
    return *out ? INFERSCALE_OK : no_memory();
}

/* Takes the name if a file has it: *path stays NULL if none has. */
static is_status take_if_there(is_buf *name, char **path)
{
    char *p = is_buf_take(name);

    if (!p) return no_memory();
    if (is_fs_posix()->exists(is_fs_posix(), p)) *path = p;
    else is_free(p);
    return INFERSCALE_OK;
}

static is_status find_in(const char *dir, const char *name, char **path)
{
    static const char *const suffixes[] = { "", ".gguf" };
    is_buf b = IS_BUF_INIT;

    for (int i = 0; i < 2 && !*path; i++) {
        is_buf_fmt(&b, "%s/%s%s", dir, name, suffixes[i]);
        IS_TRY(take_if_there(&b, path));
    }
    if (*path) return INFERSCALE_OK;
    is_buf_str(&b, name);
    IS_TRY(take_if_there(&b, path));
    if (*path) return INFERSCALE_OK;
    return is_fail(INFERSCALE_E_NOTFOUND, "model \"%s\" is not installed in %s; give a path to a GGUF file, or run scripts/setup.sh "
                   "(make demo does) to install the default models", name, dir);
}

is_status is_model_find(const char *name, const char *fallback, char **path)
{
    is_buf b = IS_BUF_INIT;
    char *dir = NULL;
    is_status st;

    *path = NULL;
    if (!name || !name[0]) name = fallback;
    if (strchr(name, '/')) {
        is_buf_str(&b, name);
        IS_TRY(take_if_there(&b, path));
        return *path ? INFERSCALE_OK : is_fail(INFERSCALE_E_NOTFOUND, "there is no model file %s; check the path", name);
    }
    IS_TRY(models_dir(&dir));
    st = find_in(dir, name, path);
    is_free(dir);
    return st;
}
