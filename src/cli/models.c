/* models.c - installed models, for verbs that open an engine by themselves: found where the library finds them. */
#include "api/handle.h"
#include "cli/cli.h"

static char *installed(const char *name, const char *fallback)
{
    char *path = NULL;

    return is_model_find(name, fallback, &path) == INFERSCALE_OK ? path : NULL;
}

char *cli_model_path(const char *name) { return installed(name, IS_DEFAULT_MODEL); }
char *cli_embedder_path(const char *name) { return installed(name, IS_DEFAULT_EMBEDDER); }
