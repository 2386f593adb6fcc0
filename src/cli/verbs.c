/* verbs.c - the commands, in the order of --help. */
#include "cli/cli.h"

const cli_verb *const cli_verbs[] = {
    &cli_verb_remember, &cli_verb_recall, &cli_verb_ask, &cli_verb_chat, &cli_verb_ls, &cli_verb_show, &cli_verb_history,
    &cli_verb_update, &cli_verb_supersede, &cli_verb_pin, &cli_verb_unpin, &cli_verb_forget, &cli_verb_encode, &cli_verb_import,
    &cli_verb_import_locomo, &cli_verb_export, &cli_verb_fsck, &cli_verb_gc, &cli_verb_du, &cli_verb_backup, &cli_verb_restore,
    &cli_verb_rebuild, &cli_verb_serve, &cli_verb_mcp, &cli_verb_config_check, &cli_verb_bench_ttft, &cli_verb_bench_compose, &cli_verb_bench_encode,
    &cli_verb_bench_remember, &cli_verb_bench_scale, &cli_verb_bench_serve, &cli_verb_eval_recall, &cli_verb_eval_fidelity,
    &cli_verb_eval_compare, &cli_verb_eval_accuracy, &cli_verb_eval_report, &cli_verb_demo,
    &cli_verb_doctor, &cli_verb_completion, &cli_verb_man, &cli_verb_help, NULL,
};
