/* serve_keys.h - a server with three keys, as the tests of its budgets and of its fairness share
 * it: anna's and ben's, each bound to its owner, and an admin's. Everything asserts. */
#ifndef TESTS_SERVE_KEYS_H
#define TESTS_SERVE_KEYS_H

#include "support/serve_kit.h"

enum { KEY_ANNA, KEY_BEN, KEY_ADMIN, KEY_NONE };
#define KEY_ADMIN_HEADER "Authorization: Bearer isk_cccccccccccccccc\r\n"
extern const char *const serve_keys[3];

/* Writes their file into the folder; its path, as scratch_path gives it. */
const char *serve_keys_file(const char *folder);
/* The reply that comes on fd has this status; closes it. */
void serve_expect(int fd, int status);
/* Ends the server, if there is one: *kit is NULL then. */
void serve_end(serve_kit **kit);
/* The same after a test that failed: it may hold a request. */
void serve_end_hard(serve_kit **kit);

#endif
