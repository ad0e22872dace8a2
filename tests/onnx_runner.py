"""Runs ONNX models in the ONNX Runtime that PYTHONPATH names: python onnx_runner.py FOLDER.

FOLDER has models, ``name.anything.onnx`` or ``name-part.anything.onnx``, and their inputs,
``name.number.npz``: arrays by the names of inputs. What comes out is left in
``results-version.pickle``: by model and whether it is optimized the outputs for each file of
inputs, or the text of an error. Only numpy is needed besides.
"""

import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime


def run(path, is_optimized):
    """The outputs for each file of inputs."""
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = settings.inter_op_num_threads = 1
    settings.log_severity_level = 4
    levels = onnxruntime.GraphOptimizationLevel
    settings.graph_optimization_level = (
        levels.ORT_ENABLE_ALL if is_optimized else levels.ORT_DISABLE_ALL
    )
    session = onnxruntime.InferenceSession(str(path), settings, ["CPUExecutionProvider"])
    names, results = [input.name for input in session.get_inputs()], {}
    whole = path.name.split(".")[0].split("-")[0]
    for file in sorted(path.parent.glob(f"{whole}.*.npz")):
        with np.load(file) as arrays:
            feed = {name: arrays[name] for name in names}
        results[file.name] = session.run(None, feed)
    return results


def main(folder):
    results: dict[tuple[str, bool], Any] = {}
    for path in sorted(folder.glob("*.onnx")):
        for is_optimized in (True, False):
            try:
                results[path.name, is_optimized] = run(path, is_optimized)
            except Exception as error:
                results[path.name, is_optimized] = str(error)
    with (folder / f"results-{onnxruntime.__version__}.pickle").open("wb") as file:
        pickle.dump(results, file)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
