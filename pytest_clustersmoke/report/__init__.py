"""One record of a run, and what is rendered from it.

run_record.py      the record, report.json, and its JSON Schema
record_builder.py  the record of a run, from its directory, what was counted, and its verdict
    node_facts.py, rank_records.py, topology.py: its larger parts
publication.py     reports/<run_id>/: the record and its views; run_archive.py: the evidence kept
recovery.py        the same for a run whose controller was killed
page.py, html/     index.html: templates, styles, scripts, and the charts' libraries
    highlights.py: what it says first
    page_view.py, page_ranks.py: what it needs of the record
terminal.py        a failed job's text; the table and the verdict at the end of the output
junit.py           the properties of cases and of the suite
summary.py         GitHub's step summary
openmetrics.py     metrics.prom
"""
