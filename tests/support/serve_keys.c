/* serve_keys.c - see serve_keys.h. */
#include "support/serve_keys.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "serve/server.h"
#include "support/scratch.h"

const char *const serve_keys[3] = { "isk_aaaaaaaaaaaaaaaa", "isk_bbbbbbbbbbbbbbbb", "isk_cccccccccccccccc" };

const char *serve_keys_file(const char *folder)
{
    const char *path = scratch_path(folder, "keys");
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f, "%s user=anna\n%s user=ben\n%s admin\n", serve_keys[0], serve_keys[1], serve_keys[2]);
    fclose(f);
    assert_int_equal(chmod(path, 0600), 0);
    return path;
}

void serve_expect(int fd, int status)
{
    serve_reply r = serve_read(fd, "GET");
    if (r.status != status) fail_msg("%d, not %d: %s", r.status, status, r.body);
    serve_reply_free(&r);
    close(fd);
}

void serve_end(serve_kit **kit)
{
    serve_kit *k = *kit;
    *kit = NULL;
    if (k) serve_stop(k);
}

void serve_end_hard(serve_kit **kit)
{
    if (*kit) is_server_stop();
    serve_end(kit);
}
