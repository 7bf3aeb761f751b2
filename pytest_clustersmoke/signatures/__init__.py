"""Known failures by their text: `signatures.yaml` -> signatures -> found in logs -> findings.

`model` has the signature, `schema` reads and checks the file, `place` tells whose a line is and
when it was written, `search` reads logs of any size, `pieces` finds the lines around a word,
`unknown` keeps errors that no signature knows, `order` makes findings of all that was found, the
first cause first.
"""
