"""Linear models fitted to tabular data: files, formulas, categorical columns, missing values and weights.

`calibayes.fit` and the command line share this layer.
"""
