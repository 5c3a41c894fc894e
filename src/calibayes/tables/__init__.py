"""Linear models of tables: files, formulas, categorical columns, missing values and weights.

`calibayes.fit` and the command line share this layer.
"""
