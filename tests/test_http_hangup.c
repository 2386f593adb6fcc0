/* What must hold when a client hangs up around the moment its stream begins: before, while or just after its head is made. All that the request
 * held goes: response and request once kept one another for good, a stream's buffer each time. */
#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "serve/http.h"
#include "serve/server.h"
#include "support/scratch.h"
#include "support/serve_kit.h"

enum { TIMES = 150, BUFFER_BYTES = 64 * 1024 };

static serve_kit *kit;
static atomic_int started, over; /* handlers */
static atomic_uint delay_us;
static atomic_bool wait_for_it; /* the handler begins its stream only after the client has gone */

static void stream(is_server *s, is_request *r)
{
    (void)s;
    atomic_fetch_add(&started, 1);
    for (int i = 0; atomic_load(&wait_for_it) && i < 5000 && !__atomic_load_n(is_request_cancel(r), __ATOMIC_ACQUIRE); i++) usleep(1000);
    usleep(atomic_load(&delay_us));
    if (is_stream_begin(r, 200, "text/event-stream")) {
        is_stream_event(r, json_pack("{s:i}", "i", 1));
        is_stream_end(r);
    }
    atomic_fetch_add(&over, 1);
}

static const is_route routes[] = { { "GET", "/stream", stream, IS_FACE_OPENAI, IS_ROUTE_ENGINE }, { 0 } };

size_t __sanitizer_get_current_allocated_bytes(void) __attribute__((weak));

static size_t allocated(void)
{
    return __sanitizer_get_current_allocated_bytes ? __sanitizer_get_current_allocated_bytes() : mallinfo2().uordblks;
}

/* The handler may not be called at all any more. */
static void hang_up(unsigned after_us)
{
    int fd = serve_connect(kit), now = atomic_load(&started);

    serve_sendf(fd, "GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n");
    for (int i = 0; atomic_load(&wait_for_it) && i < 10000 && atomic_load(&started) == now; i++) usleep(500);
    usleep(after_us);
    close(fd);
    for (int i = 0; i < 20000 && atomic_load(&started) != atomic_load(&over); i++) usleep(500);
}

/* Everything of those that have gone is free: nearly as much as before is in use, and soon. */
static void expect_nothing_left(size_t before)
{
    size_t now;

    /* A request may have been read before its client was missed, and begin only now. */
    for (int i = 0; i < 20000 && atomic_load(&started) != atomic_load(&over); i++) usleep(500);
    assert_true(atomic_load(&started) > TIMES / 2 && atomic_load(&started) == atomic_load(&over));
    now = allocated();
    for (int i = 0; i < 200 && now > before + TIMES * BUFFER_BYTES / 8; i++, now = allocated()) usleep(20000);
    if (now > before + TIMES * BUFFER_BYTES / 8) fail_msg("%zu bytes in use, %zu before %d clients hung up", now, before, TIMES);
}

static void gone_before_the_stream_begins(void **state)
{
    size_t before;
    (void)state;

    atomic_store(&wait_for_it, true);
    atomic_store(&delay_us, 0);
    for (int i = 0; i < 5; i++) hang_up(2000);
    before = allocated();
    for (int i = 0; i < TIMES; i++) hang_up(1000);
    expect_nothing_left(before);
}

static void gone_while_it_begins(void **state)
{
    unsigned long long seed = scratch_seed("hang up while it begins");
    size_t before;
    (void)state;

    atomic_store(&wait_for_it, false);
    for (int i = 0; i < 5; i++) hang_up(500);
    before = allocated();
    for (int i = 0; i < TIMES; i++) {
        atomic_store(&delay_us, scratch_below(&seed, 2000));
        hang_up(scratch_below(&seed, 2000));
    }
    expect_nothing_left(before);
}

static int begin(void **state)
{
    (void)state;
    is_server_set_extra(routes);
    kit = serve_start("parallel", "2", NULL);
    return 0;
}

static int end(void **state)
{
    (void)state;
    serve_stop(kit);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gone_before_the_stream_begins),
        cmocka_unit_test(gone_while_it_begins),
    };

    return cmocka_run_group_tests(tests, begin, end);
}
