#!/usr/bin/env bash
# Runs the suite once, for cron. Prints nothing if the cluster is FIT, otherwise the run in ten
# lines, which cron mails; the end of pytest's output if there is no report. Exits with pytest's
# status. Arguments are passed on to pytest.
set -euo pipefail

SUITE=${SUITE:-$HOME/clustersmoke}  # the directory that `clustersmoke init` wrote

# cron sets only HOME, LOGNAME, SHELL and PATH=/usr/bin:/bin, and reads no shell profile. Set
# everything else in nightly.env: CLUSTER, PATH with Slurm's commands, SLURM_CONF, proxies.
if [ -r "$SUITE/nightly.env" ]; then
  set -a
  # shellcheck source=/dev/null
  . "$SUITE/nightly.env"
  set +a
fi
if [ -z "${CLUSTER:-}" ]; then
  echo "CLUSTER is not set: set it in nightly.env" >&2
  exit 4
fi
PYTHON=${PYTHON:-$SUITE/.venv/bin/python}
REPORTS=${REPORTS:-$SUITE/reports}
LIMIT=${LIMIT:-8h}

cd "$SUITE" || exit 4
mkdir -p "$REPORTS" || exit 3
log=$REPORTS/nightly-$(date +%Y%m%d-%H%M%S)-$$.log
(umask 077 && : >"$log") || exit 3  # it has paths and names of users, whatever `publish` says
status=0
# At the limit, SIGTERM makes pytest cancel its jobs and report what is known (status 2); then
# timeout's own status is 124.
timeout --kill-after=10m "$LIMIT" \
  "$PYTHON" -m pytest smoke_tests --cluster "$CLUSTER" --cluster-exclusive \
  --cluster-report-dir="$REPORTS" --color=no "$@" >"$log" 2>&1 </dev/null || status=$?
limit=
case $status in
  124) status=2 limit="stopped by the nightly limit of $LIMIT" ;;
  137) limit="pytest was killed (out of memory, or ten minutes after the limit of $LIMIT)" ;;
esac
if [ "$status" -ne 0 ]; then
  run=$(sed -n 's/^cluster: .*, run \([0-9a-f-]*\).*/\1/p;T;q' "$log")  # in pytest's header
  body=$("$PYTHON" -m pytest_clustersmoke.cli summary --report-dir="$REPORTS" \
    --cluster="$CLUSTER" --log="$log" "${run:-none}" 2>/dev/null) || body="no report"
  subject=${body%%$'\n'*}
  case $status in
    1 | 2 | 6) ;;  # the verdict says it
    *) subject="exit status $status: $subject" ;;
  esac
  text=$(printf '%s\n' ${limit:+"$limit"} "$body" "exit status $status; pytest's output: $log")
  if [ -n "${MAIL_TO:-}" ]; then
    mail -s "$CLUSTER: ${limit:+$limit: }$subject" "$MAIL_TO" <<<"$text" || echo "$text"
  else
    echo "$text"
  fi
fi
find "$REPORTS" -maxdepth 1 -name 'nightly-*.log' -mtime +30 -delete || true
exit "$status"
