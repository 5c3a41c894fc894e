"""Head-to-head: intervals for a regression slope by calibayes and by other software, over designs and sample sizes.

`designs.py` draws the data and computes the parameter to be covered, `ours.py` applies calibayes, `rivals.py` and
`quantreg.R` the other software, and `tables.py`, `figures.py` and `page.py` describe the stored results.
"""
