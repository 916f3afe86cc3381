"""The answers that a head was trained on, as a text for a store: `python -m demo.smollm2.answers WORK --out FILE`."""

from __future__ import annotations

import argparse
from pathlib import Path

from services.generation.engine.text.tokenizer import Tokenizer
from services.generation.target.model_path import model_path
from services.training.prompts import AnswerFile
from services.training.recordings import ANSWERS


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m demo.smollm2.answers", description=__doc__.partition("\n")[0])
    parser.add_argument("work", type=Path, help="working folder of `kolm heads train`, <out>.work")
    parser.add_argument("--model", default="smollm2", help="the model that answered (smollm2)")
    parser.add_argument("--out", type=Path, required=True, help="text file to write")
    options = parser.parse_args()
    tokenizer = Tokenizer(model_path(options.model)).fast
    file = AnswerFile(options.work / "train" / ANSWERS)
    answers = [tokenizer.decode(answer.output, skip_special_tokens=False) for answer in file]
    options.out.write_text("".join(answers))  # each ends with the model's own end of a turn, which is drafted as well
    print(f"{options.out}: {len(answers):,} answers")


if __name__ == "__main__":
    main()
