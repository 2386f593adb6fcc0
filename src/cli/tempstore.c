/* tempstore.c - temporary stores. */
#include "cli/tempstore.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/status.h"

static int remove_one(const char *path, const struct stat *sb, int type, struct FTW *ftw) { return remove(path); }

inferscale_status cli_tempstore_open(const inferscale_options *options, cli_tempstore *out)
{
    const char *tmp = getenv("TMPDIR");
    inferscale_options o = *options;
    inferscale_status st;
    out->is = NULL;
    snprintf(out->home, sizeof out->home, "%.480s/inferscale-XXXXXX", tmp && *tmp ? tmp : "/tmp");
    if (!mkdtemp(out->home)) {
        st =
            is_fail_errno("no folder can be made in %.480s; set TMPDIR to one that can be written", tmp && *tmp ? tmp : "/tmp");
        out->home[0] = '\0';
        return st;
    }
    o.home = out->home;
    o.read_only = 0;
    st = inferscale_open(&out->is, &o);
    if (st != INFERSCALE_OK) cli_tempstore_close(out);
    return st;
}

void cli_tempstore_close(cli_tempstore *t)
{
    inferscale_close(t->is);
    t->is = NULL;
    if (t->home[0]) nftw(t->home, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    t->home[0] = '\0';
}
