"""Files of tables as programs write them in different countries."""

import pandas as pd
import pytest

from calibayes.tables.columns import require_columns
from calibayes.tables.files import read_table

TABLE = pd.DataFrame({"y": [1.5, -2.25, 3.0], "n": [1, 2, 3], "place": ["a,1", "b", "c"]})


@pytest.mark.parametrize(("separator", "decimal"), [(",", "."), (";", "."), (";", ","), ("\t", ",")])
def test_separators_and_decimal_commas_are_recognized(tmp_path, separator, decimal):
    TABLE.to_csv(tmp_path / "table.csv", sep=separator, decimal=decimal, index=False)
    pd.testing.assert_frame_equal(read_table(tmp_path / "table.csv"), TABLE)


def test_names_without_backticks_are_explained():
    frame = pd.DataFrame(columns=["Ticket price (EUR)", "sold"])
    with pytest.raises(
        ValueError, match=r"no column 'Ticket'. Did you mean 'Ticket price \(EUR\)'\? Names with spaces"
    ):
        require_columns(frame, ["Ticket"])
    with pytest.raises(ValueError, match=r"no column 'Sold'. Did you mean 'sold'\?$"):
        require_columns(frame, ["Sold"])
