/* out.c - text for people: cut, wrapped and harmless to the terminal. */
#include "cli/out.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>
#include <wchar.h>

#include "base/clock.h"
#include "base/time.h"
#include "cli/cli.h"

static bool color_in(FILE *f)
{
    const char *no = getenv("NO_COLOR"), *term = getenv("TERM");
    return isatty(fileno(f)) && !(no && *no) && !(term && strcmp(term, "dumb") == 0);
}

const char cli_output_lost[] = "the output could not be written; is the disk full?";

bool cli_reader_left(void)
{
    struct pollfd p = { .fd = STDOUT_FILENO };

    return ferror(stdout) && poll(&p, 1, 0) == 1 && (p.revents & (POLLERR | POLLHUP));
}

bool cli_printed(void) { return fflush(stdout) == 0 && !ferror(stdout); }

bool cli_color(void) { return color_in(stdout); }

const char *cli_on_in(FILE *f, cli_style style)
{
    static const char *const codes[] = { "", "\033[1m", "\033[2m", "\033[31m", "\033[32m", "\033[33m", "\033[36m" };
    return color_in(f) ? codes[style] : "";
}

const char *cli_off_in(FILE *f) { return color_in(f) ? "\033[0m" : ""; }
const char *cli_on(cli_style style) { return cli_on_in(stdout, style); }
const char *cli_off(void) { return cli_off_in(stdout); }

int cli_columns(void)
{
    struct winsize w;
    const char *c = getenv("COLUMNS");
    if (!isatty(STDOUT_FILENO)) return 0;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col >= 20) return w.ws_col;
    long said = c ? strtol(c, NULL, 10) : 0;
    return said >= 20 && said <= 10000 ? (int)said : 80;
}

/* One character of s: its code point, or -1 for a byte that is not UTF-8; *len = bytes taken. */
static int32_t next_char(const char *s, int *len)
{
    const unsigned char *p = (const unsigned char *)s;
    int n = p[0] < 0x80                   ? 1
            : p[0] >= 0xf0 && p[0] < 0xf5 ? 4
            : p[0] >= 0xe0 && p[0] < 0xf0 ? 3
            : p[0] >= 0xc2 && p[0] < 0xe0 ? 2
                                          : 0;
    static const int32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
    int32_t c = n == 1 ? p[0] : n == 4 ? p[0] & 7 : n == 3 ? p[0] & 15 : p[0] & 31;
    *len = 1;
    if (n == 0) return -1;
    for (int i = 1; i < n; i++) {
        if ((p[i] & 0xc0) != 0x80) return -1;
        c = c << 6 | (p[i] & 0x3f);
    }
    if (c < least[n] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000)) return -1;
    *len = n;
    return c;
}

/* Control characters, and those that turn the direction of a line or hide in it. */
static bool is_harmful(int32_t c)
{
    return c < 0x20 || (c >= 0x7f && c < 0xa0) || (c >= 0x202a && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069);
}

/* What is printed for the character at s, and its columns. */
static const char *show_char(const char *s, bool one_line, int *len, int *bytes, int *columns)
{
    int32_t c = next_char(s, len);
    *bytes = *len;
    *columns = 1;
    if (c == '\n' || c == '\t' || c == '\r') {
        *bytes = 1;
        return one_line || c == '\r' ? " " : s;
    }
    if (c < 0 || is_harmful(c)) {
        *bytes = 3;
        return "\xef\xbf\xbd";
    }
    int w = c < 0x80 ? 1 : wcwidth((wchar_t)c);
    *columns = w < 0 ? 1 : w;
    return s;
}

int cli_text_width(const char *s)
{
    int total = 0;
    while (*s) {
        int len, bytes, columns;
        show_char(s, true, &len, &bytes, &columns);
        total += columns;
        s += len;
    }
    return total;
}

void cli_put_text(FILE *f, const char *s, bool one_line)
{
    while (*s) {
        int len, bytes, columns;
        const char *p = show_char(s, one_line, &len, &bytes, &columns);
        fwrite(p, 1, (size_t)bytes, f);
        s += len;
    }
}

int cli_put_cut(FILE *f, const char *s, int limit)
{
    int done = 0;
    bool cut = limit > 0 && cli_text_width(s) > limit;
    while (*s) {
        int len, bytes, columns;
        const char *p = show_char(s, true, &len, &bytes, &columns);
        if (cut && done + columns > limit - 1) {
            fputs("\xe2\x80\xa6", f); /* ellipsis */
            return done + 1;
        }
        fwrite(p, 1, (size_t)bytes, f);
        done += columns;
        s += len;
    }
    return done;
}

void cli_put_pad(FILE *f, int n)
{
    while (n-- > 0) fputc(' ', f);
}

void cli_put_wrapped(FILE *f, const char *s, int columns, int indent)
{
    int at = indent, room = columns > indent + 10 ? columns : 0;
    bool first = true;
    while (*s) {
        char word[256];
        size_t n = strcspn(s, " \n\t"), skip;
        int width;
        bool whole = n < sizeof word;
        if (!whole) n = sizeof word - 1;
        while (!whole && n > sizeof word - 5 && ((unsigned char)s[n] & 0xc0) == 0x80) n--; /* cut between characters */
        memcpy(word, s, n);
        word[n] = '\0';
        width = cli_text_width(word);
        if (n && !first) {
            if (room && at + 1 + width > room) {
                fputc('\n', f);
                cli_put_pad(f, indent);
                at = indent;
            } else {
                fputc(' ', f);
                at++;
            }
        }
        if (n) {
            cli_put_text(f, word, true);
            at += width;
            first = false;
        }
        skip = whole ? strspn(s + n, " \n\t") : 0;
        if (n + skip == 0) break;
        if (!whole) first = true; /* a word longer than the buffer goes on without a space */
        s += n + skip;
    }
    fputc('\n', f);
}

void cli_date(int64_t epoch, char out[32])
{
    char iso[32];
    if (!is_time_given(epoch)) {
        snprintf(out, 32, "-");
        return;
    }
    is_date_iso(epoch, iso);
    if (strlen(iso) < 16) {
        snprintf(out, 32, "%s", iso);
        return;
    }
    if (is_time_seconds(epoch) % 86400 == 0) {
        iso[strcspn(iso, "T")] = '\0';
    } else {
        iso[strlen(iso) - 4] = '\0'; /* without ":00Z" */
        iso[strcspn(iso, "T")] = ' ';
    }
    snprintf(out, 32, "%s", iso);
}

void cli_size(uint64_t bytes, char out[32])
{
    static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB" };
    double v = (double)bytes;
    int u = 0;
    while (v >= 1024 && u < 4) {
        v /= 1024;
        u++;
    }
    snprintf(out, 32, u == 0 || v >= 100 ? "%.0f %s" : v >= 10 ? "%.1f %s" : "%.2f %s", v, units[u]);
}

void cli_count(uint64_t n, char out[32])
{
    char digits[24];
    int len = snprintf(digits, sizeof digits, "%llu", (unsigned long long)n), at = 0;
    for (int i = 0; i < len; i++) {
        if (i && (len - i) % 3 == 0) out[at++] = ',';
        out[at++] = digits[i];
    }
    out[at] = '\0';
}

const char *cli_n_of(uint64_t n, const char *one, char out[64])
{
    char count[32];
    cli_count(n, count);
    snprintf(out, 64, "%s %s%s", count, one, n == 1 ? "" : "s");
    return out;
}

void cli_ms(double ms, char out[32])
{
    if (ms >= 1000)
        snprintf(out, 32, "%.2f s", ms / 1000);
    else
        snprintf(out, 32, ms >= 100 ? "%.0f ms" : ms >= 10 ? "%.1f ms" : "%.2f ms", ms);
}

const char *cli_source_name(int source)
{
    return source == INFERSCALE_SOURCE_STORED     ? "stored"
           : source == INFERSCALE_SOURCE_COMPUTED ? "computed"
           : source == INFERSCALE_SOURCE_RESIDENT ? "resident"
                                                  : "unknown";
}

const char *cli_mode_name(int mode)
{
    return mode == INFERSCALE_MODE_KV     ? "kv"
           : mode == INFERSCALE_MODE_TEXT ? "text"
           : mode == INFERSCALE_MODE_NONE ? "none"
                                          : "unknown";
}
