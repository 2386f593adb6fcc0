/* backup.c - `inferscale backup` and `inferscale restore`: a store copied while it serves, and made again. */
#include <stdio.h>

#include "cli/args.h"
#include "cli/out.h"

static int cmd_backup(const cli_args *a)
{
    inferscale *is = NULL;
    inferscale_backup_options o = INFERSCALE_BACKUP_OPTIONS_INIT;
    inferscale_status st;
    char bank[32], vault[32], files[64];
    cli_progress p;
    int rc;
    if (cli_n(a) != 1) return cli_usage(a, "give the folder to write to; it must be new or empty");
    o.no_vault = cli_flag(a, "--no-vault");
    o.link = cli_flag(a, "--link");
    if (o.no_vault && o.link) return cli_usage(a, "give --no-vault or --link, not both");
    rc = cli_open(a, &is);
    if (rc != CLI_OK) return rc;
    cli_progress_start(&p, "Copying", 0);
    o.on_progress = cli_progress_at;
    o.progress_ctx = &p;
    st = inferscale_backup(is, cli_at(a, 0), &o);
    cli_progress_end(&p);
    cli_size(o.bank_bytes, bank);
    cli_size(o.vault_bytes, vault);
    if (st != INFERSCALE_OK)
        rc = cli_fail_as(a, st);
    else if (cli_wants_json(a))
        cli_print_json(json_pack("{s:o,s:I,s:I,s:I,s:I,s:I}", "folder", cli_json_text(cli_at(a, 0)), "bank_bytes",
                                 (json_int_t)o.bank_bytes, "vault_files", (json_int_t)o.vault_files, "vault_bytes",
                                 (json_int_t)o.vault_bytes, "linked_files", (json_int_t)o.linked_files, "missing_files",
                                 (json_int_t)o.missing_files));
    else
        printf("Backed up: %s of memory, %s (%s)%s. What is forgotten from now on stays in this backup.\n", bank,
               cli_n_of(o.vault_files, "KV file", files), vault, o.missing_files ? "; some are encoded again after a restore" : "");
    inferscale_close(is);
    return rc;
}

static const cli_option backup_options[] = {
    { "--no-vault", NULL, "leave keys and values out: smaller, and computed again after a restore" },
    { "--link", NULL, "second names instead of copies of KV files: at once and without space; forgetting later overwrites them there too" },
    { NULL, NULL, NULL },
};

const cli_verb cli_verb_backup = {
    "backup", "FOLDER", "Copy the store while it is in use",
    "Copies the store as it is at one instant; others may read and write meanwhile. The manifest with all checksums is written last: "
    "what was interrupted is never taken for whole, and the next try begins anew. A backup HOLDS WHAT IS FORGOTTEN LATER: its text, and "
    "keys and values unless --no-vault; delete old backups when people ask to be forgotten. It is as private as the store.\n\n"
    "Examples:\n  inferscale backup /mnt/disk/memory-2024-05-01\n  inferscale backup --no-vault --json nightly\n",
    backup_options, CLI_STORE | CLI_JSON | CLI_THERE, cmd_backup,
};

static int cmd_restore(const cli_args *a)
{
    inferscale_restore_options o = INFERSCALE_RESTORE_OPTIONS_INIT;
    inferscale_options open;
    inferscale_status st;
    char bank[32], vault[32], files[64];
    cli_progress p;
    if (cli_n(a) != 1) return cli_usage(a, "give the folder of a backup");
    cli_options(a, &open);
    o.verify_only = cli_flag(a, "--verify");
    cli_progress_start(&p, "Restoring", 0);
    o.on_progress = cli_progress_at;
    o.progress_ctx = &p;
    st = inferscale_restore(cli_at(a, 0), open.home, &o);
    cli_progress_end(&p);
    cli_size(o.bank_bytes, bank);
    cli_size(o.vault_bytes, vault);
    if (st != INFERSCALE_OK) return cli_fail_as(a, st);
    if (cli_wants_json(a))
        return cli_print_json(json_pack("{s:b,s:o,s:I,s:I,s:I,s:I}", "verified_only", o.verify_only, "created", cli_json_time(o.created),
                                        "bank_bytes", (json_int_t)o.bank_bytes, "vault_files", (json_int_t)o.vault_files,
                                        "vault_bytes", (json_int_t)o.vault_bytes, "bad_files", (json_int_t)o.bad_files));
    printf("%s: %s of memory, %s (%s)", o.verify_only ? "Whole" : "Restored", bank, cli_n_of(o.vault_files, "KV file", files), vault);
    if (o.bad_files)
        printf("; %s %s missing or damaged%s", cli_n_of(o.bad_files, "KV file", files), o.bad_files == 1 ? "is" : "are",
               o.verify_only ? "" : ", `inferscale encode` makes them again");
    puts(".");
    return CLI_OK;
}

static const cli_option restore_options[] = {
    { "--verify", NULL, "only check the backup, with every checksum" },
    { NULL, NULL, NULL },
};

const cli_verb cli_verb_restore = {
    "restore", "FOLDER", "Make a store from a backup",
    "Restores into --home, which must be new or empty: nothing is ever overwritten. The memory must match its checksums; keys and values "
    "that do not are left out and computed again by `inferscale encode`. What was forgotten after the backup was taken is remembered "
    "again: forget it once more.\n\n"
    "Examples:\n  inferscale restore /mnt/disk/memory-2024-05-01 --home ~/restored\n  inferscale restore --verify nightly\n",
    restore_options, CLI_STORE | CLI_JSON, cmd_restore,
};
