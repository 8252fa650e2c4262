"""The command line: ``firststep``."""
