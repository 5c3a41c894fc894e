"""Studies over many datasets: the paper's table and figures, and what lies past them."""
