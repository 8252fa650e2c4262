"""``python -m firststep`` is the command ``firststep``."""

from firststep.cli import main

if __name__ == "__main__":
    main(prog_name="firststep")
