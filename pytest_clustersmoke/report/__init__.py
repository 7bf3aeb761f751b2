"""One record of a run, and what is rendered from it.

model.py        the shape of the record (report.json); json_schema.py: its JSON Schema
record.py       the record, made from a run's directory and from what was judged
    nodes.py, ranks.py, topology.py, differences.py: its larger parts
publish.py      reports/<run_id>/: the record, what is rendered from it, the evidence worth keeping
    files.py: each file, whole or not at all
recover.py      the same for a run whose controller was killed
page.py, html/  index.html: templates, styles, scripts, and the charts' libraries
    standout.py: what it says first
    page_view.py, page_facts.py, page_ranks.py: what it needs of the record
terminal.py     the table and the verdict at the end of the terminal's output
properties.py   the JUnit properties of cases; junit.py: those of the suite
markdown.py     GitHub's step summary (markdown_text.py: its escapes); github.py: where it goes
openmetrics.py  metrics.prom
"""
