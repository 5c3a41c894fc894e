"""Check the declared sizes of a NetCDF file before anything in it is read.

A small HDF5 file can declare arrays of any size: compressed, never written, or as references to one long text. Results
are stored without compression. So every array must be present in the file in its full size, and all arrays and texts
together are at most as large as the file. Links to other files are rejected.
"""

from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np

from calibayes.io.layout import MAX_VARIABLES

if TYPE_CHECKING:
    from h5py import Dataset, Group
else:
    # h5py is an optional dependency, so that its types are not available at run time.
    Dataset = Group = Any

_MAX_GROUPS = 20
"""Number of groups of a file; results have seven."""
_MAX_VARIABLES = MAX_VARIABLES + 10
"""Number of variables of a group: those of the draws, with coordinates."""
_STRINGS_AT_ONCE = 64
"""Number of texts that are read before their total length is checked again."""


def check_sizes(content: BytesIO) -> None:
    """Check that reading a file needs no more memory than its own size, up to a small factor.

    Parameters
    ----------
    content : BytesIO
        Content of a NetCDF file with groups of variables, and without groups in groups.

    Raises
    ------
    ValueError
        If the file has another structure, or an array is not stored in it in full size.
    OSError
        If the file is not in the HDF5 format.
    """
    import h5py

    size = content.getbuffer().nbytes
    with h5py.File(content, "r") as file:
        _check_links(file, _MAX_GROUPS)
        _check_attributes(file, size)
        total = 0
        for name, group in file.items():
            if not isinstance(group, h5py.Group):
                raise ValueError(f"{name} is not a group.")
            _check_links(group, _MAX_VARIABLES)
            _check_attributes(group, size)
            for variable in group.values():
                if not isinstance(variable, h5py.Dataset):
                    raise ValueError(f"{variable.name} is not an array.")
                total += _checked_size(variable, size)
                if total > size:
                    raise ValueError("its arrays are larger than the file.")


def _check_links(group: Group, max_members: int) -> None:
    import h5py

    if len(group) > max_members:
        raise ValueError(f"{group.name} has more than {max_members} members.")
    if not all(isinstance(group.get(name, getlink=True), h5py.HardLink) for name in group):
        raise ValueError(f"{group.name} has a link to another place.")


def _check_attributes(node: Dataset | Group, size: int) -> None:
    """Reject arrays of variable-length strings, whose elements may all refer to one long string, and arrays larger
    than the file.
    """
    import h5py

    for name in node.attrs:
        attribute = node.attrs.get_id(name)
        kind = attribute.get_type()
        is_string = isinstance(kind, h5py.h5t.TypeStringID) and kind.is_variable_str()
        if (is_string and attribute.shape != ()) or attribute.get_storage_size() > size:
            raise ValueError(f"the attribute {name} of {node.name} is an array of strings, or is larger than the file.")


def _checked_size(variable: Dataset, size: int) -> int:
    """Return the number of bytes of an array, or raise an error unless all are stored, uncompressed, in this file."""
    import h5py

    _check_attributes(variable, size)
    is_string = h5py.check_string_dtype(variable.dtype) is not None
    if not is_string and variable.dtype.kind not in "iuf":
        raise ValueError(f"{variable.name} has the type {variable.dtype}.")
    n_bytes = int(np.prod(variable.shape, dtype=object)) * variable.id.get_type().get_size()
    if not n_bytes:
        return 0
    layout = variable.id.get_create_plist()
    if layout.get_layout() not in (h5py.h5d.CONTIGUOUS, h5py.h5d.COMPACT) or layout.get_nfilters() or variable.external:
        raise ValueError(f"{variable.name} is compressed or is stored elsewhere.")
    if n_bytes > size or variable.id.get_storage_size() < n_bytes:
        raise ValueError(f"the file has fewer bytes of {variable.name} than its shape {variable.shape} requires.")
    return n_bytes + (_length_of_strings(variable, size) if is_string else 0)


def _length_of_strings(variable: Dataset, size: int) -> int:
    """Return the total length of an array of strings, or raise an error as soon as it is longer than the file."""
    if variable.ndim != 1:
        raise ValueError(f"{variable.name} is not a one-dimensional array of strings.")
    total = 0
    for start in range(0, len(variable), _STRINGS_AT_ONCE):
        total += sum(len(string) for string in variable[start : start + _STRINGS_AT_ONCE])
        if total > size:
            raise ValueError(f"the strings in {variable.name} are longer than the file.")
    return total
