/* wipe.h - what the program does so that nothing forgotten stays in its memory. */
#ifndef IS_CLI_WIPE_H
#define IS_CLI_WIPE_H

/* Before anything else: SQLite keeps no memory for itself. That freed memory is wiped needs no call. */
void cli_wipe_set_up(void);

#endif
