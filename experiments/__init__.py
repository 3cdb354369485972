"""Experiments that make the tables and figures of the documents. They are not part of the installed package."""
