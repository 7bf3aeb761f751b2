"""The record of a run, and everything rendered from it.

record_schema.py   the JSON Schema of the record, which is evidence/run_record.py
record_builder.py  builds the record from the run directory, the tally and the verdict
    node_records.py, rank_records.py, topology.py: its larger parts
publication.py     reports/<run_id>/: the record and its views; run_archive.py: the evidence kept
recovery.py        reports a run whose controller was killed; unreported_runs.py finds it
page.py, html/     index.html: templates, styles, scripts, and the charts' libraries
    highlights.py: what it shows first
    page_view.py, page_ranks.py: what the templates need beside the record
terminal.py        the table and the verdict at the end of the output
junit.py           properties of test cases and of the suite
summary.py         GitHub's step summary
openmetrics.py     metrics.prom
"""
