"""`python -m trainer`: the same as orchestrate-trainer, where no folder here is named trainer."""

import sys

from trainer.commands import main

if __name__ == "__main__":
    sys.exit(main())
