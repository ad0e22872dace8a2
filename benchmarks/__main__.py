"""``python -m benchmarks NAME``: each name is a file of this folder and answers one question."""

import importlib
import sys

QUESTIONS = {
    "rows": "how fast is each pooling call beside ATen, ONNX Runtime and Inductor?",
    "calls": "how fast are the calls of real models, what does each implementation bring?",
    "models": "how fast are whole networks, on a CPU or a GPU?",
    "gpu": "is everything right and fast on this GPU?",
    "overhead": "what does a call to the Triton backend cost on the host?",
    "report": "write docs/benchmarks.md and the README's table of networks",
}


def main() -> int:
    if len(sys.argv) < 2 or sys.argv[1] not in QUESTIONS:
        print("python -m benchmarks NAME [--help]\n")
        for name, question in QUESTIONS.items():
            print(f"  {name:10}{question}")
        return 2
    return importlib.import_module(f"benchmarks.{sys.argv[1]}").main(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
