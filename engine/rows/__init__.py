"""Rows: reading dataset files, normalising every shape in use, and saying what is wrong where. No torch."""

from engine.rows.check import Report, check, usable
from engine.rows.declared import AS_SEEN, Declared
from engine.rows.files import FORMATS, read, sniff
from engine.rows.model import Format, Kind, Message, Problem, RawRow, Row
from engine.rows.shapes import normalise

__all__ = [
    "AS_SEEN",
    "FORMATS",
    "Declared",
    "Format",
    "Kind",
    "Message",
    "Problem",
    "RawRow",
    "Report",
    "Row",
    "check",
    "normalise",
    "read",
    "sniff",
    "usable",
]
