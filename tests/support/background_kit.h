/* background_kit.h - what the tests of the background encoder share: stores with a mock engine behind them, owners who tell facts, and what
 * became of these. Everything asserts. */
#ifndef TESTS_BACKGROUND_KIT_H
#define TESTS_BACKGROUND_KIT_H

#include <unistd.h>

#include "support/store_kit.h"

enum { FOREVER_MS = 120000 }; /* longer than any test may take: a wait that needs it has failed */

extern char bg_plugins[1024];
extern char *bg_home;                        /* the store's folder, new for each test */
static const inferscale_scope anna = { .user = "anna" }, ben = { .user = "ben" }, cleo = { .user = "cleo" };

int bg_find_plugins(void **state);           /* of a group; the others of each test */
int bg_set_up(void **state);
int bg_tear_down(void **state);

inferscale_options bg_options(const char *model);
inferscale *bg_open(const inferscale_options *o);
inferscale *bg_open_plain(void);

inferscale_status bg_tell(inferscale *is, const inferscale_scope *who, int n, int64_t *id /* or NULL */);
void bg_tell_many(inferscale *is, const inferscale_scope *who, int from, int n);
inferscale_encoder_state bg_state(inferscale *is, const inferscale_scope *who);
/* How many facts of the owner have KV for the model that is loaded; *n: of how many. */
size_t bg_ready(inferscale *is, const inferscale_scope *who, size_t *n);
void bg_expect_ready(inferscale *is, const inferscale_scope *who, size_t want);

/* Polls until the condition holds; a condition that never comes fails the test. */
#define UNTIL(cond)                                                                                                            \
    do {                                                                                                                       \
        int tries_ = 0;                                                                                                        \
        while (!(cond)) {                                                                                                      \
            if (++tries_ > FOREVER_MS) fail_msg("never: %s", #cond);                                                           \
            usleep(1000);                                                                                                      \
        }                                                                                                                      \
    } while (0)

#endif
