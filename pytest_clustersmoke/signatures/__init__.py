"""Known failures by their text: `signatures.yaml` -> signatures -> found in logs -> findings.

`signature_file` reads and checks the file, `log_lines` finds the lines around a word, who wrote
them and when, `signature_search` reads logs of any size, `first_error` keeps errors that no
signature knows, `signature_findings` makes findings of all that was found, the first cause first.
"""
