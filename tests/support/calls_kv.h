/* calls_kv.h - rows of calls.c that stand in calls_kv.c. */
#ifndef TESTS_CALLS_KV_H
#define TESTS_CALLS_KV_H

#include "support/calls.h"

inferscale_status calls_run_kv_open(calls *c);
void calls_close_kv(calls *c, inferscale_status st);
void calls_have_kv(calls *c);
inferscale_status calls_run_kv_geometry(calls *c);
inferscale_status calls_run_kv_match(calls *c);
inferscale_status calls_run_kv_write(calls *c);
void calls_kv_written_or_not(calls *c, inferscale_status st);
void calls_have_kv_file(calls *c);
inferscale_status calls_run_kv_check(calls *c);
inferscale_status calls_run_kv_load_open(calls *c);
void calls_have_kv_load(calls *c);
inferscale_status calls_run_kv_load_open_again(calls *c);
inferscale_status calls_run_kv_load_read(calls *c);
inferscale_status calls_run_ticket_write(calls *c);
void calls_have_ticket(calls *c);
inferscale_status calls_run_ticket_read(calls *c);

#endif
