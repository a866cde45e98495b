"""A scenario for every finding code: ``simcoll simulate SC104`` plays one."""
