"""Every field of a setting, in reading order: what the command line, TOML, the explorer and titles are made of."""

from firststep.setting import inputs, network, teacher, training
from firststep.setting.fields import Field

# The first six are those of the papers; a new part's fields go to the end, where positions do not move.
FIELDS: tuple[Field, ...] = (
    network.FIELDS[0],
    *teacher.FIELDS,
    *network.FIELDS[1:],
    *inputs.FIELDS,
    *training.FIELDS,
)
BY_NAME = {field.name: field for field in FIELDS}
