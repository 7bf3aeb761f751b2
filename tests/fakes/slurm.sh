#!/bin/sh
# A fake of Slurm's commands: linked as sbatch, squeue, sacct, scontrol and scancel into a directory
# on PATH. Each call is logged in $FAKE_SLURM/calls and answered from NAME.out, NAME.err, NAME.rc,
# or by the shell lines of NAME.answer.
name=${0##*/}
printf '%s\n' "$name $*" >> "$FAKE_SLURM/calls"
env > "$FAKE_SLURM/$name.env"
ps -o sid= -p $$ > "$FAKE_SLURM/$name.sid"
[ -e "$FAKE_SLURM/$name.answer" ] && . "$FAKE_SLURM/$name.answer"
[ -e "$FAKE_SLURM/$name.err" ] && cat "$FAKE_SLURM/$name.err" >&2
[ -e "$FAKE_SLURM/$name.out" ] && cat "$FAKE_SLURM/$name.out"
[ -e "$FAKE_SLURM/$name.rc" ] && exit "$(cat "$FAKE_SLURM/$name.rc")"
exit 0
