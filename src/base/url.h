/* url.h - is it the address of a server? Asked where arguments and settings are read, so that a slip is told at once and not waited for. */
#ifndef IS_BASE_URL_H
#define IS_BASE_URL_H

#include <stddef.h>

#include "base/status.h"

/* url[0..n): http(s)://host[:port][/path], without user, password, query or fragment. E_INVALID: what is wrong with it, and how it is written;
 * what may hold a password is not repeated. */
is_status is_url_check(const char *url, size_t n);
/* One or more of them, commas (and blanks) between; empty ones are passed over. E_INVALID too if there is none. */
is_status is_urls_check(const char *list);

#endif
