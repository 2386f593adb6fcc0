/* url.c - see url.h. */
#include "base/url.h"

#include <string.h>

#include "base/buf.h"

enum { SHOWN = 200, PORT_MAX = 65535 };

static bool is_digit(char c) { return c >= '0' && c <= '9'; }
static bool is_hex_digit(char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }
static bool is_name_char(char c) { return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' || c == '-' || c == '_'; }

static is_status wrong(const char *url, size_t n, const char *what)
{
    size_t shown = n < SHOWN ? n : SHOWN;

    for (size_t i = 0; i < n; i++)
        if ((unsigned char)url[i] < 0x20 || (unsigned char)url[i] > 0x7e || url[i] == '@') shown = 0;
    return is_fail(INFERSCALE_E_INVALID, "'%.*s' is no server's address: %s; write it as http://host:port", (int)shown, url, what);
}

/* Bytes of the host at s: a name, an IPv4 address, or an IPv6 address in brackets; 0 = none. */
static size_t host_length(const char *s, size_t n)
{
    size_t at = 0;

    if (n == 0) return 0;
    if (*s != '[') {
        while (at < n && is_name_char(s[at])) at++;
        return at;
    }
    for (at = 1; at < n && (is_hex_digit(s[at]) || s[at] == ':' || s[at] == '.'); at++) continue;
    return at > 2 && at < n && s[at] == ']' ? at + 1 : 0;
}

is_status is_url_check(const char *url, size_t n)
{
    size_t at = n >= 7 && memcmp(url, "http://", 7) == 0 ? 7 : n >= 8 && memcmp(url, "https://", 8) == 0 ? 8 : 0, host;
    uint32_t port = 0;

    if (memchr(url, '@', n)) return wrong(url, n, "a user or a password does not belong there (a key is given apart)");
    if (!at) return wrong(url, n, "it begins with neither http:// nor https://");
    host = host_length(url + at, n - at);
    if (!host) return wrong(url, n, "it names no host");
    at += host;
    if (at < n && url[at] == ':') {
        const size_t begin = ++at;

        for (; at < n && is_digit(url[at]) && at - begin < 6; at++) port = 10 * port + (uint32_t)(url[at] - '0');
        if (at == begin || port == 0 || port > PORT_MAX || (at < n && is_digit(url[at]))) return wrong(url, n, "its port is not from 1 to 65535");
    }
    if (at < n && url[at] != '/') return wrong(url, n, "what follows the host is neither :port nor a path");
    for (; at < n; at++)
        if ((unsigned char)url[at] <= 0x20 || (unsigned char)url[at] > 0x7e || strchr("?#\"<>\\^`{|}", url[at]))
            return wrong(url, n, "its path holds what does not belong in one");
    return INFERSCALE_OK;
}

is_status is_urls_check(const char *list)
{
    size_t n_urls = 0;

    for (const char *p = list; *p;) {
        size_t n = strcspn(p, ","), begin = strspn(p, " \t"), end = n;

        while (end > begin && (p[end - 1] == ' ' || p[end - 1] == '\t')) end--;
        if (end > begin) {
            IS_TRY(is_url_check(p + begin, end - begin));
            n_urls++;
        }
        p += n + (p[n] == ',');
    }
    return n_urls ? INFERSCALE_OK : is_fail(INFERSCALE_E_INVALID, "no server is named; write its address as http://host:port");
}
