# SPDX-License-Identifier: Apache-2.0
"""Files as numpy.save writes them, as hex in npy.json: those that the data loader takes and those that it must refuse.

    build/venv/bin/python tests/goldens/npy.py
"""
import io
import json
import pathlib

import numpy as np


def saved(array, version=None):
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version=version)
    return file.getvalue().hex()


def main():
    ids = np.array([7, 300, 0, 65535, 12, 1, 2], dtype=np.int64)
    rows = np.arange(12, dtype=np.int32).reshape(3, 4)
    files = {
        "u2": saved(ids.astype(np.uint16)),
        "i4": saved(ids.astype(np.int32)),
        "u4": saved(ids.astype(np.uint32)),
        "i8": saved(ids),
        "rows": saved(rows),
        "format_2": saved(rows, (2, 0)),
        "format_3": saved(rows, (3, 0)),
        "negative": saved(np.array([3, -1, 2], dtype=np.int32)),
        "f4": saved(ids.astype(np.float32)),
        "u1": saved(np.arange(5, dtype=np.uint8)),
        "big_endian": saved(ids.astype(">i4")),
        "structured": saved(np.zeros(2, dtype=[("a", "<i4"), ("b", "<f8")])),
        "fortran": saved(np.asfortranarray(rows)),
        "scalar": saved(np.array(5, dtype=np.int32)),
        "three_dims": saved(rows.reshape(3, 2, 2)),
        "none": saved(np.zeros(0, dtype=np.int32)),
        "no_rows": saved(np.zeros((0, 4), dtype=np.int32)),
        "empty_rows": saved(np.zeros((4, 0), dtype=np.int32)),
    }
    path = pathlib.Path(__file__).with_name("npy.json")
    path.write_text(json.dumps(files, indent=1) + "\n")


if __name__ == "__main__":
    main()
