/* models.c - where installed models are, for verbs that open an engine by themselves. */
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/status.h"
#include "cli/cli.h"

static char *models_dir(void)
{
    const char *dir = getenv("INFERSCALE_MODELS"), *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    is_buf b = IS_BUF_INIT;
    if (dir && *dir)
        is_buf_str(&b, dir);
    else if (cache && *cache)
        is_buf_fmt(&b, "%s/inferscale/models", cache);
    else
        is_buf_fmt(&b, "%s/.cache/inferscale/models", home && *home ? home : ".");
    return is_buf_take(&b);
}

static char *installed(const char *name, const char *fallback)
{
    const is_fs *fs = is_fs_posix();
    char *dir, *path = NULL;
    size_t n;
    if (name && (strchr(name, '/') || fs->exists(fs, name))) {
        if (!fs->exists(fs, name)) {
            is_fail(INFERSCALE_E_NOTFOUND, "there is no model file %s; check the path, or name an installed model", name);
            return NULL;
        }
        return is_strdup(name);
    }
    if (!name) name = fallback;
    n = strlen(name);
    dir = models_dir();
    if (dir) {
        is_buf b = IS_BUF_INIT;
        is_buf_fmt(&b, "%s/%s%s", dir, name, n > 5 && strcmp(name + n - 5, ".gguf") == 0 ? "" : ".gguf");
        path = is_buf_take(&b);
    }
    if (!path) {
        is_fail(INFERSCALE_E_NOMEM, "out of memory while looking for a model; close other programs and try again");
    } else if (!fs->exists(fs, path)) {
        is_fail(INFERSCALE_E_NOTFOUND, "the model %s is not in %s; run scripts/setup.sh, or give the path of a GGUF file", name,
                dir);
        is_free(path);
        path = NULL;
    }
    is_free(dir);
    return path;
}

char *cli_model_path(const char *name) { return installed(name, "smollm2-135m-instruct-q4_0"); }
char *cli_embedder_path(const char *name) { return installed(name, "all-minilm-l6-v2-f16"); }
