"""The record of a run, and everything rendered from it.

the record  record_builder.py builds it from the run directory, the tally and the verdict
            (verdict.py), with node_records.py, rank_records.py, job_progress.py, topology.py,
            settings_excerpt.py and acknowledgements.py for its larger parts. record_schema.py has
            its JSON Schema; evidence/run_record.py has its types
the files   publication.py writes reports/<run_id>/: the record and its views. run_archive.py keeps
            the evidence, redaction.py leaves out what must not be published. recovery.py reports a
            run whose controller was killed; unreported_runs.py finds it
one page    page.py and html/ make index.html, with page_view.py, page_ranks.py, page_curves.py,
            page_sheet.py (for paper) and highlights.py (what is shown first)
all runs    runs_page.py makes reports/index.html
text views  terminal.py and summary.py (GitHub), which share phase_table.py; run_digest.py (ten
            lines), next_steps.py, screen_lists.py
machines    junit.py, openmetrics.py; backfill.py has the metrics of past runs
nodes       node_evidence.py (what one run says of a node), node_ledger.py (what past runs say),
            node_standing.py, node_matrix.py, named_nodes.py
"""
