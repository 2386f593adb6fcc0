/* lease.h - who is using a partition's memory right now, across threads and processes.
 *
 * A reader holds a lease from the moment it plans to its last token. Leases are file locks on HOME/leases/PARTITION.EPOCH: shared by
 * all readers of one epoch, gone with the process that held them, however it ends. Whoever raises the epoch waits for the files of
 * older ones; readers that come later use a file of their own, so that they never keep the writer waiting. A reader that goes on
 * under a new epoch, because nothing that it holds is concerned, moves its lease there. */
#ifndef IS_BANK_LEASE_H
#define IS_BANK_LEASE_H

#include "bank/bank.h"

typedef struct is_lease is_lease;

/* Refreshes p and takes a lease on its epoch: when it returns, p->epoch was current while the lease was held. *lease must be NULL or
 * a lease, which is moved: the old one is held until the new one is. Where no lease can be taken (a read-only filesystem, a full
 * disk) *lease is NULL and the log says so once a process: then only the epoch protects. watch: the handle that reads the epoch.
 * E_NOTFOUND (no such partition), E_BUSY (the memory changes faster than it can be read), E_NOMEM, E_IO. */
is_status is_lease_take(is_bank *watch, is_partition *p, is_lease **lease);
/* The same for who is about to store what he computed from the memory, in a file of its own: he does not if the epoch moved on since,
 * and holds it until the books have taken or refused it. */
is_status is_lease_take_writing(is_bank *watch, is_partition *p, is_lease **lease);
/* A lock on the names of the partition's segment files. Rounding rows to another codec takes it alone, storing new rows takes it
 * shared: so no process removes a file that another one is about to name. It is held for a few rows. The call waits up to two
 * seconds. E_STALE: the other processes did not end; try again later. Where no lease can be taken, as above: OK, and *lease is
 * NULL. */
is_status is_lease_take_names(is_bank *b, const is_partition *p, bool alone, is_lease **lease);
void is_lease_drop(is_lease *lease); /* NULL is allowed */
/* Does a process, this one or another, hold a lease of the second kind on the partition, of whatever epoch? */
is_status is_lease_is_writing(is_bank *b, int64_t partition, bool *is_writing);

/* Waits until no lease on an epoch of the partition before p->epoch is held, at most wait_ms; removes their files. *n_pending = how
 * many epochs are held still (0 with OK). E_BUSY when the time is over. */
is_status is_lease_wait(is_bank *b, const is_partition *p, uint32_t wait_ms, size_t *n_pending);

#endif
