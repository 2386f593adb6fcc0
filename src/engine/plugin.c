/* plugin.c - finding and loading plug-ins. A loaded plug-in stays for the life of the process: its threads and thread-local
 * storage cannot be taken out safely. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "engine/engine.h"

enum { PLUGINS_MAX = 16, PATH_MAX_BYTES = 4096 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    char name[64];
    const is_plugin *plugin;
} loaded[PLUGINS_MAX];
static int n_loaded;

/* A plug-in's error sentence, in the thread that called it. */
static void take_error(is_status status, const char *sentence)
{
    is_fail(status, "%s", sentence);
}

static void take_log(int level, const char *message)
{
    is_log(level, "%s", message);
}

static bool good_name(const char *name)
{
    if (!name || !*name || strlen(name) >= sizeof loaded[0].name) return false;
    for (const char *c = name; *c; c++)
        if (!((*c >= 'a' && *c <= 'z') || (*c >= '0' && *c <= '9') || *c == '-')) return false;
    return true;
}

/* The folder of the library or binary that holds this function; "" if it cannot be told. */
static void own_folder(char *out, size_t cap)
{
    Dl_info info;
    char path[PATH_MAX_BYTES], *slash;
    ssize_t n;

    *out = 0;
    if (!dladdr((void *)own_folder, &info) || !info.dli_fname || !strchr(info.dli_fname, '/') || !realpath(info.dli_fname,
        path)) {
        n = readlink("/proc/self/exe", path, sizeof path - 1); /* a program started by its bare name */
        if (n <= 0) return;
        path[n] = 0;
    }
    slash = strrchr(path, '/');
    if (!slash) return;
    *slash = 0;
    snprintf(out, cap, "%s", path);
}

/* Opens dir/libinferscale-name.so. NULL if it is not there; *why = the loader's reason if it is there and cannot be loaded. */
static void *open_in(const char *dir, const char *name, char *why, size_t cap)
{
    char path[PATH_MAX_BYTES];
    void *handle;

    if (snprintf(path, sizeof path, "%s/libinferscale-%s.so", dir, name) >= (int)sizeof path || access(path,
        F_OK) != 0) return NULL;
    handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        const char *e = dlerror();

        snprintf(why, cap, "%s", e ? e : path);
    }
    return handle;
}

/* Tries the folders in turn; tried = their list for the error. */
static void *find(const char *dir, const char *name, char *tried, size_t cap, char *why, size_t why_cap)
{
    const char *env = getenv("INFERSCALE_PLUGINS");
    char own[PATH_MAX_BYTES], beside[2][PATH_MAX_BYTES + 32];
    const char *folders[3] = { NULL, NULL, NULL };
    void *handle = NULL;
    size_t len = 0;

    if (dir && *dir) {
        folders[0] = dir;
    } else if (env && *env) {
        folders[0] = env;
    } else {
        own_folder(own, sizeof own);
        snprintf(beside[0], sizeof beside[0], "%s/../lib", own);
        snprintf(beside[1], sizeof beside[1], "%s/../lib/inferscale", own);
        folders[0] = own;
        folders[1] = beside[0];
        folders[2] = beside[1];
    }
    *tried = 0;
    for (int i = 0; i < 3 && folders[i] && !handle && !*why; i++) {
        int n = snprintf(tried + len, cap - len, "%s%s", len ? ", " : "", folders[i]);

        len += n > 0 && (size_t)n < cap - len ? (size_t)n : 0;
        handle = open_in(folders[i], name, why, why_cap);
    }
    return handle;
}

static is_status load(const char *dir, const char *name, const is_plugin **out)
{
    static const is_host host = { IS_ENGINE_ABI, take_error, take_log, is_mem_refuse, is_reader_now };
    char tried[1024], why[PATH_MAX_BYTES + 512] = "";
    void *handle, *symbol;
    is_plugin_entry entry;

    if (n_loaded == PLUGINS_MAX) return is_fail(INFERSCALE_E_UNSUPPORTED, "%d plug-ins are loaded, which is the limit",
                                                PLUGINS_MAX);
    handle = find(dir, name, tried, sizeof tried, why, sizeof why);
    if (!handle && *why) return is_fail(INFERSCALE_E_ENGINE, "the plug-in '%s' cannot be loaded: %s; run 'make' again", name,
                                        why);
    if (!handle)
        return is_fail(INFERSCALE_E_NOTFOUND, "libinferscale-%s.so is not in %s; build it with 'make' or set "
                       "INFERSCALE_PLUGINS to its folder",
                       name, tried);
    symbol = dlsym(handle, "inferscale_plugin");
    memcpy(&entry, &symbol, sizeof entry); /* ISO C has no cast from an object to a function pointer */
    *out = entry ? entry(&host) : NULL;
    if (!*out || (*out)->abi != IS_ENGINE_ABI) {
        *out = NULL;
        dlclose(handle);
        return is_fail(INFERSCALE_E_UNSUPPORTED, "the plug-in '%s' was built for another version of InferScale; build both "
                       "again", name);
    }
    snprintf(loaded[n_loaded].name, sizeof loaded[0].name, "%s", name);
    loaded[n_loaded++].plugin = *out;
    return INFERSCALE_OK;
}

is_status is_plugin_load(const char *dir, const char *name, const is_plugin **out)
{
    is_status st = INFERSCALE_OK;

    *out = NULL;
    if (!good_name(name))
        return is_fail(INFERSCALE_E_INVALID, "'%s' is not a plug-in's name; use one like 'llama' or 'mock'", name ? name : "");
    pthread_mutex_lock(&lock);
    for (int i = 0; i < n_loaded; i++)
        if (strcmp(loaded[i].name, name) == 0) *out = loaded[i].plugin;
    if (!*out) st = load(dir, name, out);
    pthread_mutex_unlock(&lock);
    return st;
}
