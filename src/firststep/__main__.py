"""``python -m firststep`` is the command ``firststep``."""

from firststep.cli.app import main

if __name__ == "__main__":
    main(prog_name="firststep")
